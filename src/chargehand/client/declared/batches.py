"""Functions that get many tasks at once, and an outcome for each: one insert for a hundred rows.

A batch ends for all of its tasks at once. The first of them that passes a time limit ends it for the others too, as it would end a
function of its own: `worker/limits.py`. So no task goes to another batch while this one still has its payload.
"""

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Raw

from chargehand.client.declared.handler import Surroundings, packed, unpacked
from chargehand.client.declared.values import Returns, Single, hints_of
from chargehand.client.errors import SoftTimeLimit
from chargehand.client.worker.held import Held
from chargehand.client.worker.limits import SoftlyLimited, ThreadLimit

Outcomes = Sequence[Any] | None
T = TypeVar("T")


class BatchOf(msgspec.Struct, frozen=True, kw_only=True):
    """Up to `size` tasks; a batch begins when there are so many, or `wait_seconds` after its first came."""

    size: int
    wait_seconds: float = 0.1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be 1 or more, not {self.size}")
        if self.wait_seconds < 0:
            raise ValueError(f"wait_seconds must not be negative, and is {self.wait_seconds:g}")


@dataclass(eq=False)
class _Waiting:
    value: Any
    held: Held
    outcome: "asyncio.Future[Any]"
    batch: "_Batch | None" = None  # once that has begun


class _Batch:
    """A run of the function."""

    def __init__(self, tasks: list[_Waiting]) -> None:
        self.tasks = tasks
        self.work: asyncio.Task[None] | None = None
        self._thread = ThreadLimit()
        self._coroutine: SoftlyLimited | None = None
        self._softened = False

    async def call(self, function: Callable[[list[Any]], Any]) -> Any:
        values = [each.value for each in self.tasks]
        if inspect.iscoroutinefunction(function):
            self._coroutine = SoftlyLimited(function(values))
            return await self._coroutine
        context = contextvars.copy_context()

        def call() -> Any:
            with self._thread:
                return context.run(function, values)

        return await _in_a_thread(call)

    def soften(self) -> None:
        """Raise SoftTimeLimit in the function, once."""
        if self._softened or self.work is None:
            return
        self._softened = True
        if self._coroutine is not None:
            self._coroutine.end(self.work)
        else:
            self._thread.end()

    def cancel(self) -> None:
        """A thread cannot be stopped: it runs on."""
        if self._coroutine is not None and self.work is not None:
            self.work.cancel()


class BatchHandler:
    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        single: Single,
        returns: Returns[Any],
        surroundings: Surroundings,
        of: BatchOf,
    ) -> None:
        self.waits_for_a_thread = not inspect.iscoroutinefunction(function)
        self._function = function
        self._single = single
        self._returns = returns
        self._around = surroundings
        self._of = of
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()  # a batch runs for no task in particular

    def for_worker(self) -> Callable[[Held], Any]:
        return self

    async def __call__(self, held: Held) -> Raw:
        return await self.arun(held)

    async def arun(self, held: Held) -> Raw:
        with self._around.of(held):
            one = self._join(unpacked(self._single, held), held)
            outcome = await self._outcome(one)
            if isinstance(outcome, BaseException):
                raise outcome
            return packed(self._returns, outcome)

    async def _outcome(self, one: _Waiting) -> Any:
        """Wait until the batch has ended, also if this task is to end before: until then its payload is in use."""
        try:
            try:
                await asyncio.wait({one.outcome})
            except SoftTimeLimit:
                if one.batch is None:
                    raise
                one.batch.soften()
                await asyncio.wait({one.outcome})
        except BaseException:
            if one.batch is None:
                self._waiting.remove(one)
                raise
            if not one.held.lost.is_set() or all(each.held.lost.is_set() for each in one.batch.tasks):
                one.batch.cancel()
            await asyncio.wait({one.outcome})
            raise
        return one.outcome.result()

    def _join(self, value: Any, held: Held) -> _Waiting:
        loop = asyncio.get_running_loop()
        one = _Waiting(value, held, loop.create_future())
        self._waiting.append(one)
        if len(self._waiting) >= self._of.size:
            self._begin()
        elif self._timer is None:
            self._timer = loop.call_later(self._of.wait_seconds, self._begin)
        return one

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        tasks, self._waiting = self._waiting, []
        if tasks:
            batch = _Batch(tasks)
            batch.work = asyncio.get_running_loop().create_task(self._work(batch), context=self._context.copy())
            for each in tasks:
                each.batch = batch

    async def _work(self, batch: _Batch) -> None:
        count = len(batch.tasks)
        try:
            outcomes = _one_for_each(await batch.call(self._function), count)
        except (
            BaseException
        ) as error:  # also a cancellation and sys.exit(): each task must have an outcome, and the loop goes on
            outcomes = [error] * count
        for each, outcome in zip(batch.tasks, outcomes, strict=True):
            each.outcome.set_result(outcome)


def _one_for_each(outcomes: Outcomes, count: int) -> Sequence[Any]:
    if outcomes is None:
        return [None] * count
    if len(outcomes) != count:
        raise RuntimeError(f"a batch of {count} tasks needs as many outcomes; the function returned {len(outcomes)}")
    return outcomes


def _in_a_thread(call: Callable[[], T]) -> "asyncio.Future[T]":
    """In a daemon thread, unlike an executor's: a function that hangs must not keep the process alive."""
    ended: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        if not ended.set_running_or_notify_cancel():
            return
        try:
            ended.set_result(call())
        except StopIteration as error:  # a future cannot hold this one
            ended.set_exception(RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=run, name="batch of tasks", daemon=True).start()
    return asyncio.wrap_future(ended)


def types_of(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The type of one payload and of one outcome of a function that takes `list[…]` and returns `list[… | Exception]`, or None."""
    hints = hints_of(function)
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 1:
        raise TypeError(f"{function.__name__}: a batch function has one parameter, the list of payloads")
    return _item(hints.get(parameters[0], list[Any])), _without_errors(_item(hints.get("return", list[Any])))


def _item(kind: Any) -> Any:
    if kind is type(None):
        return kind
    lists = [each for each in _members(kind) if each is not type(None)]
    return (get_args(lists[0]) or (Any,))[0]


def _without_errors(kind: Any) -> Any:
    left = [each for each in _members(kind) if not (isinstance(each, type) and issubclass(each, BaseException))]
    return Union[tuple(left)] if left else type(None)  # noqa: UP007 - made of what was found


def _members(kind: Any) -> Sequence[Any]:
    """The members of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
