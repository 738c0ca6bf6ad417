"""Run `chargehand provision` in tests."""

from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.commands.running import Told, ended, hear_ctrl_c, invoked
from tests.commands.running import running as any_running

__all__ = ["Told", "ended", "hear_ctrl_c", "provision", "running"]


def running(
    url: str, *words: str, environ: Mapping[str, str] = {}, **pipes: Any
) -> AbstractAsyncContextManager[Process]:
    return any_running(url, "provision", *words, environ=environ, **pipes)


async def provision(url: str, *words: str, stdin: bytes = b"", environ: Mapping[str, str] = {}) -> Told:
    """Run the command without a process; `running` is for tests that need one."""
    return await invoked(url, "provision", *words, stdin=stdin, environ=environ)
