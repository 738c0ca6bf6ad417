"""Functions that the workers of tests run in child processes. Each process imports this module."""

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from chargehand.client import Fail, Held, Retry, SoftTimeLimit

_kept: list[bytes] = []


def who(_: Held) -> int:
    return os.getpid()


async def who_async(task: Held) -> int:
    await task.progress(50, "half", {"of": task.payload})
    task.attach("a.bin", b"\x00\xff", "application/octet-stream")
    return os.getpid()


def ends(task: Held) -> Any:
    how = task.payload
    if how == "fail":
        task.attach("why.txt", b"because")
        raise Fail("not a video")
    if how == "retry":
        raise Retry(120, "out of paper")
    if how == "raise":
        raise KeyError("no such file")
    if how == "bad name":
        task.attach("\ud800", b"")
    if how == "not json":
        return object()
    if how == "exit":
        raise SystemExit(3)
    return None


def breaks(task: Held) -> None:
    """End the process, in the way that the payload says, at the first attempt."""
    if task.attempt > 1:
        return
    if task.payload == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


def hangs(task: Held) -> None:
    """Write the ids of this process and of a child, and keep Python's lock for good at the first attempt."""
    if task.attempt > 1:
        return
    child = subprocess.Popen(["sleep", "300"])
    Path(task.payload).write_text(f"{os.getpid()} {child.pid}")
    ctypes.PyDLL(None).sleep(300)  # unlike CDLL, this keeps the lock


def keeps_the_lock(task: Held) -> str:
    ctypes.PyDLL(None).sleep(task.payload)
    return "done"


def waits_softly(task: Held) -> str:
    try:
        while True:
            time.sleep(0.01)
    except SoftTimeLimit:
        return "so far"


async def waits(task: Held) -> None:
    await asyncio.to_thread(Path(task.payload).touch)
    await asyncio.sleep(300)


def grows(_: Held) -> int:
    _kept.append(b"x" * (64 << 20))
    return os.getpid()
