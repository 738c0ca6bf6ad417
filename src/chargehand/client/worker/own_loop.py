"""The worker's own loop, in a thread of its own: claims, heartbeats and reports go on whatever a function does to the loop that it runs in."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any


class OwnLoop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None

    async def run(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine in the thread and raise what it raises. Cancelled, cancel it and wait for its end all the same."""
        here = asyncio.get_running_loop()
        ended = here.create_future()

        def work() -> None:
            error = self._serve(make)
            with suppress(RuntimeError):  # the caller's loop is closed: nobody waits
                here.call_soon_threadsafe(_settle, ended, error)

        # In the caller's context, so that functions see what was set there.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), name="chargehand worker's own", daemon=True).start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            if ended.done():
                raise
            self.call(self._cancel)
            await asyncio.wait({ended})
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Call it in the loop, from any thread."""
        with suppress(RuntimeError):  # the loop, and so the worker, has ended
            self.loop.call_soon_threadsafe(function)

    def _serve(self, make: Callable[[], Coroutine[Any, Any, None]]) -> BaseException | None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._remembered(make))
        except BaseException as error:
            return error
        return None

    async def _remembered(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.current_task()
        await make()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _settle(ended: "asyncio.Future[None]", error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
