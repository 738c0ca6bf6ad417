"""Run `chargehand` in tests: as a process, or without one."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner

from chargehand.cli import app

CHARGEHAND = str(Path(sys.executable).with_name("chargehand"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("CHARGEHAND_")} | {
    "COLUMNS": "200",
    "TZ": "UTC",
}


@dataclass(frozen=True)
class Told:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def objects(self) -> list[Any]:
        """Return the JSON objects, one a line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    def good(self, code: int = 0) -> "Told":
        assert self.code == code, self
        return self


@asynccontextmanager
async def running(url: str, *words: str, environ: Mapping[str, str] = {}, **pipes: Any) -> AsyncIterator[Process]:
    """Run the command as a process; it ends with `ended`, or is killed at the end of the block."""
    process = await _started(url, *words, environ=environ, **pipes)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _started(url: str, *words: str, environ: Mapping[str, str] = {}, **pipes: Any) -> Process:
    given = {**ENVIRON, "CHARGEHAND_URL": url, **environ}
    pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, "preexec_fn": hear_ctrl_c, **pipes}
    return await asyncio.create_subprocess_exec(CHARGEHAND, *words, env=given, **pipes)


def hear_ctrl_c() -> None:
    """Undo that SIGINT is ignored: a shell makes its background processes ignore it, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def ended(process: Process, stdin: bytes = b"", seconds: float = 90) -> Told:
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate(stdin if process.stdin else None)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Told(process.returncode, (out or b"").decode(), (err or b"").decode())


async def chargehand(url: str, *words: str, stdin: bytes = b"", environ: Mapping[str, str] = {}) -> Told:
    return await ended(await _started(url, *words, environ=environ), stdin)


async def invoked(url: str, *words: str, stdin: bytes = b"", environ: Mapping[str, str] = {}) -> Told:
    """Run the command without a process, in a thread beside the server: for what does not need one, and faster."""
    unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith("CHARGEHAND_")}
    given = {**unset, "CHARGEHAND_URL": url, "COLUMNS": "200", **environ}
    result = await asyncio.to_thread(CliRunner().invoke, app, list(words), input=stdin, env=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Told(result.exit_code, result.stdout, result.stderr)
