"""Run programs: argument lists, never a shell; only the end of the output is kept; with a timeout."""

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from provision.errors import Exit, Trouble
from provision.journal import say

TAIL = 16_384
CAPTURED = 4 << 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str  # bytes of standard output
    tail: str  # bytes of standard error


class CommandFailed(Trouble):
    def __init__(self, program: str, reason: str, tail: str) -> None:
        last = " / ".join(line.strip() for line in tail.strip().splitlines()[-3:])
        super().__init__(f"{program} {reason}" + (f": {last}" if last else ""), Exit.COMMAND)


def environment() -> dict[str, str]:
    """Return an environment with only PATH and the like, so that a recipe's variables reach no tool that runs as root."""
    return {"PATH": os.environ.get("PATH") or PATH, "LC_ALL": "C", "HOME": "/root", "TERM": "dumb"}


def run(
    argv: Sequence[str], *, stdin: bytes = b"", timeout: float | None = 600, check: bool = True, quiet: bool = False
) -> Outcome:
    """Run a program. `timeout` None: it must never be killed. `quiet`: it runs too often to be logged."""
    if not quiet:
        say("$ " + " ".join(argv))
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise CommandFailed(argv[0], f"cannot be started: {error.strerror}", "") from None
    streams = [Drain(process.stdout, CAPTURED, aloud=False), Drain(process.stderr, TAIL, aloud=True)]
    feeder = threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True)
    feeder.start()
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        end(process)
        raise CommandFailed(argv[0], f"did not end within {timeout:g} seconds", streams[1].text()) from None
    except BaseException:
        end(process)
        raise
    feeder.join(5)
    outcome = Outcome(code, streams[0].text(), streams[1].text())
    if check and code:
        # Many tools write their errors to standard output.
        raise CommandFailed(argv[0], ended_by(code), outcome.tail or outcome.output[-TAIL:])
    return outcome


def ended_by(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and all its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Drain:
    """Reads a stream to its end, so that the program does not block, and keeps only the end of it."""

    def __init__(self, stream: IO[bytes] | None, limit: int, *, aloud: bool) -> None:
        self._kept = bytearray()
        self._limit = limit
        self._aloud = aloud
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes] | None) -> None:
        if stream is None:
            return
        with stream:
            for line in iter(lambda: stream.readline(65_536), b""):
                self._kept += line
                del self._kept[: -self._limit]
                if self._aloud and line.strip():
                    say("  " + line.decode("utf-8", "replace").rstrip())

    def text(self) -> str:
        self._thread.join(5)  # a grandchild may keep the stream open
        return self._kept.decode("utf-8", "replace")


def _feed(stream: IO[bytes] | None, data: bytes) -> None:
    if stream is None:
        return
    with suppress(BrokenPipeError), stream:  # it ended without reading: its exit code says why
        stream.write(data)
