"""Log once when the server goes away and once when it is back, however many calls notice."""

import logging

from chargehand.client.errors import ClientError

log = logging.getLogger("chargehand.client")


class ServerPresence:
    def __init__(self, url: str) -> None:
        self._url = url
        self._known = False
        self._away = False

    def answered(self) -> None:
        self._known = True
        if self._away:
            self._away = False
            log.warning("%s is back", self._url)

    def failed(self, error: ClientError) -> None:
        """Raise a refusal if no call has ever succeeded: then a setting is wrong, not the network."""
        if not error.away and not self._known:
            raise error
        if not self._away:
            self._away = True
            log.warning("%s is away, trying again: %s", self._url, error)
