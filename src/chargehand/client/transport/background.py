"""An event loop in a background thread, for programs that have none.

The first call starts the thread. A program that does not close its client can still end, and closes it then; a client that is
garbage ends its thread. Any number of threads may call at once. A forked process does not have the thread and starts one of its own with
its first call (`forks.py`).
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
from chargehand.client.transport.forks import leak, watch_forks

T = TypeVar("T")
CloseAll = Callable[[], Coroutine[Any, Any, None]]

EXIT_SECONDS = 2.0  # that the end of a process waits for its clients
STEP_SECONDS = 1.0

# Not epoll: forked processes share its registrations, and what one of them closes is lost in the others. Where there is no poll
# there is no fork.
_Selector = getattr(selectors, "PollSelector", selectors.DefaultSelector)
_END: Final = object()
_all: "weakref.WeakSet[Background]" = weakref.WeakSet()


class Background:
    """`on_close` runs last in the loop."""

    def __init__(self, on_close: CloseAll) -> None:
        self._on_close = on_close
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._last: _Loop | None = None  # the one before it
        self._forgotten: weakref.finalize[..., Background] | None = None
        watch_forks(self)
        _all.add(self)

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """Return or raise what the coroutine does. Ctrl-C, or any other end of the wait, cancels it."""
        return self._running().run(make)

    def iterate(self, make: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Yield what the generator yields; it advances only when the caller asks for the next item. Left early, it is closed."""
        loop = self._running()
        source = make()
        try:
            while (each := loop.run(lambda: _next(source))) is not _END:
                yield each
                if loop is not self._loop:  # the client was closed, or this process was forked
                    raise NoAnswer("the client was closed")
        finally:
            self._leave(loop, source)

    def close(self, patience_seconds: float | None = None) -> None:
        """Cancel running calls and end the loop, if there is one. Another call would start a new one."""
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
        leak((self._loop, self._last))
        self._lock = threading.Lock()  # a thread of the parent may have held it
        self._loop = self._last = self._forgotten = None

    def _running(self) -> "_Loop":
        with self._lock:
            if self._loop is None:
                self._loop = _Loop(self._on_close, self._last)
                self._forgotten = weakref.finalize(self, self._loop.end)
                self._forgotten.atexit = False  # `_close_all` waits for the thread, which the collector must not
                self._loop.thread.start()
            elif threading.current_thread() is self._loop.thread:
                raise RuntimeError(
                    "a call of this client cannot be made within another of its calls: it would wait for itself"
                )
            return self._loop

    def _leave(self, loop: "_Loop", source: AsyncGenerator[T, None]) -> None:
        if loop.closed:
            return
        if loop is not self._loop:  # this process was forked: the generator belongs to the parent
            leak(source)
        elif threading.current_thread() is loop.thread:  # the collector runs in the thread of the loop
            loop.begin(source.aclose, concurrent.futures.Future())
        else:
            loop.run(source.aclose)


class _Loop:
    """One loop and its thread. A call that is made while it ends raises: no caller waits for a loop that is gone."""

    def __init__(self, on_close: CloseAll, after: "_Loop | None") -> None:
        self._on_close = on_close
        self._after = after
        self._loop = asyncio.SelectorEventLoop(_Selector())
        self._calls: set[concurrent.futures.Future[Any]] = set()  # whose callers wait
        self._over = False  # only the thread reads and writes it
        self.thread = threading.Thread(target=self._serve, name="chargehand client", daemon=True)

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        call: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self._calls.add(call)
            self.begin(make, call)
            if self.closed:  # checked after `begin`: either this is seen here, or the thread sees the call
                call.cancel()
            while not call.done():  # in steps: a Ctrl-C just before a wait is noticed only after it
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
        """Make the coroutine in the loop, so that none is left that is never awaited."""
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

        def settle(_: object) -> None:
            if task.cancelled():
                call.cancel()
                return
            error = task.exception()  # retrieved even if no caller waits any more, else asyncio logs it
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

        task.add_done_callback(settle)
        call.add_done_callback(stop)

    def end(self) -> None:
        """Do not wait: the collector may call this, in any thread."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        if self._after is not None:  # it must not close our connections
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
        while True:  # a call that came meanwhile may have opened connections again
            others = asyncio.all_tasks() - me
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._on_close()
            if not asyncio.all_tasks() - me:
                self._over = True  # the loop makes no further step for later calls
                return


async def _await(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


async def _next(source: AsyncGenerator[T, None]) -> Any:
    return await anext(source, _END)


@atexit.register
def _close_all() -> None:
    for background in list(_all):
        background.close(EXIT_SECONDS)
