"""Notify systemd that the server is ready, alive or stopping, if systemd asked for that when it started the server. So does the parent
of several processes (`commands/serve/parent.py`).

Each message is one datagram to the socket that `NOTIFY_SOCKET` names. The event loop sends the watchdog messages: if it hangs, they
stop, and systemd restarts the server after the unit's `WatchdogSec`. An unreachable database is no reason for that: waiting for it
does not block the loop.
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
        self._notify("READY=1")

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    async def keep_alive(self) -> None:
        """Send watchdog messages until cancelled, also while draining."""
        while self._address and self.beat_seconds:
            self._notify("WATCHDOG=1")
            await asyncio.sleep(self.beat_seconds)

    def _notify(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ means the zero byte of an abstract address.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as to:
                to.sendto(message.encode(), address)
        except OSError as error:
            log.warning("the supervisor could not be notified", message=message, error=error.strerror)


def _beat_seconds(environ: Mapping[str, str], pid: int) -> float:
    """Return half of systemd's watchdog timeout, or 0 if it does not watch this process."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    allowed = environ.get("WATCHDOG_USEC", "")
    return int(allowed) / 2_000_000 if allowed.isascii() and allowed.isdigit() else 0.0
