"""Calls from one loop into another. Those of one turn go together: waking a loop in another thread costs more than a call."""

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Mailbox:
    def __init__(self, sender: asyncio.AbstractEventLoop, receiver: asyncio.AbstractEventLoop) -> None:
        self._sender = sender
        self._receiver = receiver
        self._waiting: list[Callable[[], object]] = []

    def put(self, call: Callable[[], object]) -> None:
        """Have it called in the receiver. To be used in the sender."""
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._sender.call_soon(self._post)

    def _post(self) -> None:
        calls, self._waiting = self._waiting, []
        with suppress(RuntimeError):  # the receiver is closed: the worker has stopped
            self._receiver.call_soon_threadsafe(_make, calls)


def _make(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()
