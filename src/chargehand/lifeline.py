"""End processes when the one that started them is gone, however that ended: its end of a pipe closes.

`end_with_stdin` is for a process that can look after itself. A `Guardian` is a small process that ends the process groups of others.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Self

TERM_SECONDS = 2.0  # between SIGTERM and SIGKILL


def end_with_stdin() -> None:
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):  # not by sys.stdin, whose lock a thread must not hold when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class Guardian:
    """Ends the registered process groups once this process is gone. A group started but not yet registered is missed."""

    def __init__(self) -> None:
        # Isolated and in a session of its own: neither what Python loads at its start nor a Ctrl-C concerns it.
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def leave(self, group: int) -> None:
        """The group has ended, or may live on."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # it was killed: then nobody guards
            if self._process.stdin is not None:
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


def _guard() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A supervisor that stops everything sends it before the programs have ended.
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        change = groups.add if line.startswith(b"+") else groups.discard
        change(int(line[1:]))
    _end(groups)


def _end(groups: set[int]) -> None:
    left = [group for group in groups if signal_group(group, signal.SIGTERM)]
    until = time.monotonic() + TERM_SECONDS
    while time.monotonic() < until and (left := [group for group in left if signal_group(group, 0)]):
        time.sleep(0.05)
    for group in left:
        signal_group(group, signal.SIGKILL)


def signal_group(group: int, number: int) -> bool:
    """Send a signal; return whether the group has any process."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a process in it runs as another user; the others got the signal
    return True


if __name__ == "__main__":
    _guard()
