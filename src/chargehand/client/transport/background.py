"""A loop in a thread of its own, for those who have none.

The thread is started by the first call. A program that does not close its client ends all the same, and closes it then; a client
that everybody has forgotten takes its thread along. Any number of threads may call at once. A process that was forked has no copy of the
thread: it gets one of its own with its first call (`forks.py`).
"""

import asyncio
import atexit
import concurrent.futures
import selectors
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from chargehand.client.errors import NoAnswer
from chargehand.client.transport.forks import keep, watch_forks

T = TypeVar("T")
Farewell = Callable[[], Coroutine[Any, Any, None]]

PATIENCE_SECONDS = 2.0  # of a process that ends
STEP_SECONDS = 1.0

# Not epoll: its registrations are shared with forked processes, and whatever one of them lets go of is lost here. Where there is no
# poll there are no forks.
_Selector = getattr(selectors, "PollSelector", selectors.DefaultSelector)
_END: Final = object()
_all: "weakref.WeakSet[Background]" = weakref.WeakSet()


class Background:
    """`farewell` is the last thing that is done in the loop."""

    def __init__(self, farewell: Farewell) -> None:
        self._farewell = farewell
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._last: _Loop | None = None  # the one before it
        self._forgotten: weakref.finalize[..., Background] | None = None
        watch_forks(self)
        _all.add(self)

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """What the coroutine returns or raises. Ctrl-C, or whatever else ends the wait, cancels it."""
        return self._running().run(make)

    def iterate(self, make: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """What the generator yields, one at a time: it goes on only when it is asked to. Left early, it is closed."""
        loop = self._running()
        source = make()
        try:
            while (each := loop.run(lambda: _next(source))) is not _END:
                yield each
                if loop is not self._loop:  # or this process was forked in the meantime
                    raise NoAnswer("the client was closed")
        finally:
            self._leave(loop, source)

    def close(self, patience_seconds: float | None = None) -> None:
        """Ends what is under way, and the loop, if there ever was one. Another call would start a new one."""
        with self._lock:
            loop, forgotten = self._loop, self._forgotten
            self._loop = self._forgotten = None
            if loop is None or forgotten is None:
                return
            self._last = loop
        forgotten.detach()
        loop.end()
        loop.thread.join(patience_seconds)

    def forked(self) -> None:
        if self._forgotten is not None:
            self._forgotten.detach()
        keep((self._loop, self._last))
        self._lock = threading.Lock()  # somebody may have held it
        self._loop = self._last = self._forgotten = None

    def _running(self) -> "_Loop":
        with self._lock:
            if self._loop is None:
                self._loop = _Loop(self._farewell, self._last)
                self._forgotten = weakref.finalize(self, self._loop.end)
                self._forgotten.atexit = (
                    False  # the collector must not wait for the thread, and a process that ends should
                )
                self._loop.thread.start()
            elif threading.current_thread() is self._loop.thread:
                raise RuntimeError("a call of this client cannot be made from within another: it would wait for itself")
            return self._loop

    def _leave(self, loop: "_Loop", source: AsyncGenerator[T, None]) -> None:
        if loop.closed:
            return
        if loop is not self._loop:  # this process was forked in the meantime: what it left is the parent's
            keep(source)
        elif threading.current_thread() is loop.thread:  # the collector found it while a call was being made
            loop.begin(source.aclose, concurrent.futures.Future())
        else:
            loop.run(source.aclose)


class _Loop:
    """One loop and its thread. Whoever calls while it ends is told, however late: nobody waits for a loop that is gone."""

    def __init__(self, farewell: Farewell, after: "_Loop | None") -> None:
        self._farewell = farewell
        self._after = after
        self._loop = asyncio.SelectorEventLoop(_Selector())
        self._calls: set[concurrent.futures.Future[Any]] = set()  # that somebody waits for
        self._over = False  # read and written in the thread alone
        self.thread = threading.Thread(target=self._serve, name="chargehand client", daemon=True)

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        call: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self._calls.add(call)
            self.begin(make, call)
            if self.closed:  # since: either we see that here, or the thread sees our call
                call.cancel()
            while not call.done():  # step by step: a Ctrl-C in the very moment before a wait is noticed only after it
                with suppress(TimeoutError):
                    call.exception(STEP_SECONDS)
            return call.result()
        except concurrent.futures.CancelledError:
            raise NoAnswer("the client was closed") from None
        except BaseException:
            call.cancel()
            raise
        finally:
            self._calls.discard(call)

    def begin(self, make: Callable[[], Awaitable[T]], call: "concurrent.futures.Future[T]") -> None:
        """The coroutine is made in the loop, so that whatever happens here, there is none that is never awaited."""
        try:
            self._loop.call_soon_threadsafe(self._start, make, call)
        except RuntimeError:
            raise NoAnswer("the client was closed") from None

    def _start(self, make: Callable[[], Awaitable[T]], call: "concurrent.futures.Future[T]") -> None:
        if self._over:
            call.cancel()
        if call.cancelled():
            return
        task = self._loop.create_task(_await(make))

        def tell(_: object) -> None:
            if task.cancelled():
                call.cancel()
                return
            error = task.exception()  # looked at though nobody may wait any more, else asyncio would complain
            if not call.set_running_or_notify_cancel():
                return
            if error is None:
                call.set_result(task.result())
            else:
                call.set_exception(error)

        def stop(_: object) -> None:
            if call.cancelled():
                with suppress(RuntimeError):  # the loop has ended, and the task with it
                    self._loop.call_soon_threadsafe(task.cancel)

        task.add_done_callback(tell)
        call.add_done_callback(stop)

    def end(self) -> None:
        """Nobody is waited for: the collector may have called this, in whatever thread."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        if self._after is not None:  # its farewell must not be to our connections
            self._after.thread.join()
            self._after = None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            self._loop.close()
            for call in list(self._calls):
                call.cancel()

    async def _finish(self) -> None:
        me = {asyncio.current_task()}
        while True:  # what was called in the meantime may have opened the connections again
            others = asyncio.all_tasks() - me
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._farewell()
            if not asyncio.all_tasks() - me:
                self._over = True  # what is asked for now would begin in a loop that makes no further step
                return


async def _await(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


async def _next(source: AsyncGenerator[T, None]) -> Any:
    return await anext(source, _END)


@atexit.register
def _goodbye() -> None:
    for background in list(_all):
        background.close(PATIENCE_SECONDS)
