"""Tell on stderr when the server goes away and when it is back, once each, while a command follows a job."""

import sys

from chargehand.client import ClientError
from chargehand.commands.text import clean


class AwayNotices:
    def __init__(self) -> None:
        self._away = False

    def away(self, error: ClientError) -> None:
        if not self._away:
            print(
                f"the server is away ({clean(str(error))}); the job is safe, trying again", file=sys.stderr, flush=True
            )
        self._away = True

    def back(self) -> None:
        if self._away:
            print("the server is back", file=sys.stderr, flush=True)
        self._away = False
