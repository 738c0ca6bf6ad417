"""A pseudo-terminal for a process: the test reads its output and types into it."""

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def terminal() -> AsyncIterator[tuple[dict[str, Any], list[bytes], Callable[[bytes], object]]]:
    """Return the pipes for a process, the list of what it prints, and a function that types into it."""
    master, slave = pty.openpty()
    seen: list[bytes] = []
    loop = asyncio.get_running_loop()
    loop.add_reader(master, lambda: seen.append(_read(master)))
    pipes = {"environ": {"TERM": "xterm"}, "stdin": slave, "stdout": slave, "stderr": slave}
    try:
        yield pipes, seen, lambda typed: os.write(master, typed)
    finally:
        loop.remove_reader(master)
        os.set_blocking(master, False)
        while piece := _read(master):  # the rest of its output
            seen.append(piece)
        os.close(slave)
        os.close(master)


def own_the_terminal() -> None:
    """Start as the child of a shell does, with a controlling terminal: the password prompt reads from /dev/tty."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the test runner may have been started with SIGINT ignored
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(descriptor: int) -> bytes:
    with contextlib.suppress(OSError):
        return os.read(descriptor, 65536)
    return b""
