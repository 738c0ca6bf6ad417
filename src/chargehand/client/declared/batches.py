"""Functions that get many tasks at once, and an outcome for each: one insert for a hundred rows."""

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
from chargehand.client.worker.held import Held

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
    outcome: "asyncio.Future[Any]"


class BatchHandler:
    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        single: Single,
        returns: Returns[Any],
        surroundings: Surroundings,
        of: BatchOf,
    ) -> None:
        self._function = function
        self._single = single
        self._returns = returns
        self._around = surroundings
        self._of = of
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()  # a batch runs for no task in particular

    def for_worker(self) -> Callable[[Held], Any]:
        return self.arun

    async def arun(self, held: Held) -> Raw:
        with self._around.of(held):
            value = unpacked(self._single, held)
            outcome = await self._join(value)
            if isinstance(outcome, Exception):
                raise outcome
            return packed(self._returns, outcome)

    def _join(self, value: Any) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        one = _Waiting(value, loop.create_future())
        self._waiting.append(one)
        if len(self._waiting) >= self._of.size:
            self._begin()
        elif self._timer is None:
            self._timer = loop.call_later(self._of.wait_seconds, self._begin)
        return one.outcome

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        batch, self._waiting = [each for each in self._waiting if not each.outcome.cancelled()], []
        if batch:
            work = asyncio.get_running_loop().create_task(self._work(batch), context=self._context.copy())
            self._running.add(work)
            work.add_done_callback(self._running.discard)

    async def _work(self, batch: list[_Waiting]) -> None:
        try:
            outcomes = _one_for_each(await self._call([each.value for each in batch]), len(batch))
        except Exception as error:
            outcomes = [error] * len(batch)
        for each, outcome in zip(batch, outcomes, strict=True):
            if not each.outcome.done():  # its task was stopped, or lost its lease
                each.outcome.set_result(outcome)

    async def _call(self, values: list[Any]) -> Outcomes:
        if inspect.iscoroutinefunction(self._function):
            found: Outcomes = await self._function(values)
            return found
        context = contextvars.copy_context()
        return await _in_a_thread(lambda: context.run(self._function, values))


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
