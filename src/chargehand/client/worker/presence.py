"""Whether the server is there. ProgressReport once when it goes and once when it is back, however many calls notice."""

import logging

from chargehand.client.errors import ClientError

log = logging.getLogger("chargehand.client")


class ServerPresence:
    def __init__(self, url: str) -> None:
        self._url = url
        self._known = False
        self._away = False

    def here(self) -> None:
        self._known = True
        if self._away:
            self._away = False
            log.warning("%s is back", self._url)

    def failed(self, error: ClientError) -> None:
        """Raises the error again if it is a refusal and nothing has ever worked: then a setting is wrong, not the network."""
        if not error.away and not self._known:
            raise error
        if not self._away:
            self._away = True
            log.warning("%s is away, trying on: %s", self._url, error)
