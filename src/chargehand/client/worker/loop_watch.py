"""Notice from the worker's own loop that the functions' loop stands still, or that all of Python does, and name who is to blame."""

import asyncio
import logging
import sys
import threading
import traceback
from contextlib import suppress

log = logging.getLogger("chargehand.client")

BLOCKED_SECONDS = 2.0
LOOK_SECONDS = 0.5


class LoopWatch:
    """`thread` is the one that the watched loop runs in."""

    def __init__(self, watched: asyncio.AbstractEventLoop, thread: int) -> None:
        self._watched = watched
        self._thread = thread

    async def run(self) -> None:
        """Look at the other loop again and again, from this one."""
        while True:
            await self._look()
            await self._rest()

    async def _look(self) -> None:
        own = asyncio.get_running_loop()
        since = own.time()
        answered = own.create_future()
        self._watched.call_soon_threadsafe(_answer, own, answered)
        await asyncio.wait({answered}, timeout=BLOCKED_SECONDS)
        if answered.done():
            return
        who = self._in_the_loop() or "something that is no task"
        log.warning("%s blocks the loop of all coroutines, at %s; use a plain function", who, self._top_line())
        await answered
        log.warning("%s blocked the loop of all coroutines for %.1f s", who, own.time() - since)

    async def _rest(self) -> None:
        own = asyncio.get_running_loop()
        since = own.time()
        await asyncio.sleep(LOOK_SECONDS)
        late = own.time() - since - LOOK_SECONDS
        if late > BLOCKED_SECONDS:
            log.warning(
                "nothing in this process ran for %.1f s, not even heartbeats: a call into C kept Python's lock, or the machine was busy; "
                "running: %s",
                late,
                ", ".join(filter(None, [self._in_the_loop(), *_in_threads()])) or "no task",
            )

    def _in_the_loop(self) -> str:
        task = asyncio.current_task(self._watched)
        return task.get_name() if task is not None else ""

    def _top_line(self) -> str:
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return "an unknown line"
        [top] = traceback.extract_stack(frame, limit=1)
        return f"{top.filename}:{top.lineno} in {top.name}: {top.line}"


def _answer(loop: asyncio.AbstractEventLoop, answered: "asyncio.Future[None]") -> None:
    with suppress(RuntimeError):  # that loop is closed: the worker has ended
        loop.call_soon_threadsafe(answered.set_result, None)


def _in_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("task ")]
