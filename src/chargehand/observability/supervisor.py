"""Tells systemd that the server is ready, alive, or stopping, where systemd started it and wants to know.

The protocol is one datagram for each word to the socket that `NOTIFY_SOCKET` names. The words come from the event loop: a loop
that hangs says nothing, and after the unit's `WatchdogSec` systemd starts the server anew. A database that is away is no reason
for that: whoever waits for it is alive.
"""

import asyncio
import os
import socket
from collections.abc import Mapping

from chargehand.observability.logs import get_logger

log = get_logger(__name__)


class Supervisor:
    def __init__(self, environ: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.beat_seconds = _beat_seconds(environ, os.getpid() if pid is None else pid)

    def ready(self) -> None:
        self._tell("READY=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    async def keep_telling(self) -> None:
        """That the event loop turns, for as long as it does. Also while draining, which may take its time."""
        while self._address and self.beat_seconds:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.beat_seconds)

    def _tell(self, word: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of an abstract address.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as to:
                to.sendto(word.encode(), address)
        except OSError as error:
            log.warning("systemd was not told", word=word, error=error.strerror)


def _beat_seconds(environ: Mapping[str, str], pid: int) -> float:
    """Half of what systemd allows, or 0 where it does not watch, or watches another process."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    allowed = environ.get("WATCHDOG_USEC", "")
    return int(allowed) / 2_000_000 if allowed.isascii() and allowed.isdigit() else 0.0
