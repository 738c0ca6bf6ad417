"""Of the server, while a job is watched: told when it changes, and not at each try."""

import sys

from chargehand.client import ClientError
from chargehand.commands.text import clean


class Presence:
    def __init__(self) -> None:
        self._away = False

    def away(self, error: ClientError) -> None:
        if not self._away:
            self._say(f"the server is away ({clean(str(error))}); the job is safe, trying again")
        self._away = True

    def back(self) -> None:
        if self._away:
            self._say("the server is back")
        self._away = False

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
