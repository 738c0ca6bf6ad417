"""A worker: it claims tasks and calls a function for each.

    worker = Worker("http://127.0.0.1:8484", token="…", concurrency=4)

    @worker.task("render_video", lease_seconds=60)
    async def render(task):
        await task.progress(50, "half")
        return {"ok": True}

    worker.run()

A task may run more than once: when the worker dies, or cannot reach the server for as long as its lease, another worker gets it.
After SIGTERM or SIGINT the worker claims no more tasks and waits up to `grace_seconds` for the running ones; those left are given back, and
the attempt does not count. A second signal ends the grace.
"""

import asyncio
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from chargehand.client.client import AsyncClient
from chargehand.client.worker.attempt import TaskEnded
from chargehand.client.worker.calls import CallsInProcess, FunctionCalls
from chargehand.client.worker.children import Children, ChildrenSettings, check_functions
from chargehand.client.worker.functions import TaskFunction
from chargehand.client.worker.held import Held
from chargehand.client.worker.limits import TimeLimits
from chargehand.client.worker.mailbox import Mailbox
from chargehand.client.worker.notifications import NotifiedClaims
from chargehand.client.worker.own_loop import OwnLoop
from chargehand.client.worker.pool import TaskPool
from chargehand.client.worker.presence import ServerPresence
from chargehand.client.worker.sources import ClaimSource, NoStreams, PolledClaims, StreamedClaims, until_one_ends

Decorated = TypeVar("Decorated", bound=Callable[[Held], Any])


class Worker:
    """`timeout` and `soft_timeout`: how long a function may take, unless it has limits of its own (limits.py).

    `processes`: run functions in so many child processes, each one at a time, instead of `concurrency` in this one. A child is replaced after
    `max_tasks_per_child` tasks, or when it has more than `max_memory_per_child` bytes after one.

    `stream=False`: claim by long polls and not over a stream, as with servers that have no streams.

    `wake_port`: hold no connection; the server calls `wake_url` when there is work (default: this port on `wake_host`).
    `wake_secret` is the secret of the server's webhooks. Of the workers of one `wake_group` the server calls one at a time, in turn.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        concurrency: int = 1,
        lease_seconds: float = 60,
        grace_seconds: float = 30,
        timeout: float | None = None,
        soft_timeout: float | None = None,
        processes: int = 0,
        max_tasks_per_child: int | None = None,
        max_memory_per_child: int | None = None,
        stream: bool = True,
        wake_port: int | None = None,
        wake_host: str = "127.0.0.1",
        wake_url: str = "",
        wake_secret: str = "",
        wake_group: str = "",
        watch: Callable[[TaskEnded], None] = lambda _: None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be 1 or more")
        self._client = AsyncClient(url, token)
        self._concurrency = processes or concurrency
        self._lease_seconds = _lease(lease_seconds)
        self._grace_seconds = grace_seconds
        self._limits = TimeLimits(timeout, soft_timeout)
        self._children = _children(processes, max_tasks_per_child, max_memory_per_child, concurrency)
        self._stream = stream
        self._wake_port = wake_port
        self._wake = {"host": wake_host, "url": wake_url, "secret": wake_secret, "group": wake_group}
        self._watch = watch
        self._handlers: dict[str, TaskFunction] = {}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._own: OwnLoop | None = None

    def task(
        self,
        command: str,
        *,
        lease_seconds: float | None = None,
        timeout: float | None = None,
        soft_timeout: float | None = None,
    ) -> Callable[[Decorated], Decorated]:
        """Register the function for a command. A plain function runs in a thread of its own."""
        limits = TimeLimits(timeout, soft_timeout).over(self._limits)
        seconds = self._lease_seconds if lease_seconds is None else _lease(lease_seconds)

        def register(function: Decorated) -> Decorated:
            # Queues ignore case, but the server compares this spelling with the token's.
            name = command.strip().lower()
            if name in self._handlers:
                raise ValueError(f"there is a function for {command!r} already; upper and lower case are the same here")
            self._handlers[name] = TaskFunction(command.strip(), function, seconds, limits)
            return function

        return register

    def run(self) -> None:
        """Work until a signal. Raises ClientError if the server refuses the first call. Does nothing where a child process imports the
        program to find its functions."""
        if self._children is not None and getattr(multiprocessing.current_process(), "_inheriting", False):
            return
        print(self.introduction, file=sys.stderr, flush=True)
        asyncio.run(self.serve())

    @property
    def introduction(self) -> str:
        commands = ", ".join(handler.command for handler in self._handlers.values())
        return f"Working on {commands} for {self._client.url}; Ctrl-C stops."

    async def serve(self) -> None:
        """`run` inside a running loop, until `stop()`, or a signal if this is the main thread. Coroutines run in this loop; the worker
        itself has a loop of its own, in a thread."""
        if not self._handlers:
            raise ValueError("a worker needs at least one @worker.task")
        if self._children is not None:
            check_functions(self._handlers)
        own = self._own or OwnLoop()
        self._own = own
        here, thread = asyncio.get_running_loop(), threading.get_ident()
        with _signals(self.stop):
            await own.run(lambda: self._work(here, thread))

    async def _work(self, functions_loop: asyncio.AbstractEventLoop, thread: int) -> None:
        calls = self._calls(functions_loop, thread)
        source = self._source(calls, functions_loop)
        try:
            await until_one_ends(self._stop.wait(), self._claim(calls, source), calls.watch())
        finally:
            await source.pool.drain(self._grace_seconds, self._hurry)
            await calls.close()
            await self._client.close()

    def _calls(self, functions_loop: asyncio.AbstractEventLoop, thread: int) -> FunctionCalls:
        if self._children is None:
            return CallsInProcess(functions_loop, thread)
        return Children(self._handlers, self._children)

    def _source(self, calls: FunctionCalls, functions_loop: asyncio.AbstractEventLoop) -> ClaimSource:
        presence = ServerPresence(self._client.url)
        # A claim is for all commands, so it asks for the shortest lease; the first heartbeat asks for the function's own.
        shortest = min(handler.lease_seconds for handler in self._handlers.values())
        news = Mailbox(asyncio.get_running_loop(), functions_loop)

        def tell(ended: TaskEnded) -> None:
            news.put(lambda: self._watch(ended))

        pool = TaskPool(self._client.tasks, presence, self._handlers, calls, self._concurrency, shortest, tell)
        commands = [handler.command for handler in self._handlers.values()]
        return ClaimSource(self._client.tasks, presence, pool, commands, shortest)

    @contextmanager
    def running(self) -> Iterator[None]:
        """`run` in a thread until the end of the block, for tests and small programs. The end of the block raises its error."""
        begun = threading.Event()
        gave_up: list[BaseException] = []

        async def serve() -> None:
            self._own = OwnLoop()  # so that `stop` finds it
            begun.set()
            await self.serve()

        def work() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                gave_up.append(error)

        thread = threading.Thread(target=work, name="chargehand worker", daemon=True)
        thread.start()
        begun.wait()
        try:
            yield
        finally:
            self.stop()
            thread.join()
        for error in gave_up:
            raise error

    def stop(self) -> None:
        """Stop the worker, from any thread. The second call ends the grace."""
        if self._own is None:
            self._stop_or_hurry()
        else:
            self._own.call(self._stop_or_hurry)

    def _stop_or_hurry(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def _claim(self, calls: FunctionCalls, source: ClaimSource) -> None:
        await calls.open()
        if self._wake_port is not None:
            await NotifiedClaims(source, port=self._wake_port, **self._wake).run()
        if self._stream:
            with suppress(NoStreams):
                await StreamedClaims(source).run()
        await PolledClaims(source).run()


def _children(count: int, tasks: int | None, memory: int | None, concurrency: int) -> ChildrenSettings | None:
    for name, value, least in (
        ("processes", count, 0),
        ("max_tasks_per_child", tasks, 1),
        ("max_memory_per_child", memory, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} must be {least} or more, not {value}")
    if count and concurrency != 1:
        raise ValueError("give processes or concurrency, not both: each process runs one function at a time")
    if not count and (tasks or memory):
        raise ValueError("max_tasks_per_child and max_memory_per_child need processes")
    return ChildrenSettings(count, tasks, memory) if count else None


def _lease(seconds: float) -> float:
    if seconds < 1:
        raise ValueError("lease_seconds must be 1 or more")
    return seconds


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals; elsewhere the caller uses stop()
        return
    # Not by the loop: a function may block it, and a stop must be heard all the same.
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # None: it was not Python's
