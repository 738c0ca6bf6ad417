"""The head of an answer waits for the beginning of its body, so that both go out in one segment and one system call.

uvicorn writes them one after the other, and the event loop sends what is written at once: two calls here and two wake-ups at
the client for every answer. A head whose body is not there yet goes out at the end of the same turn of the loop.

Every head passes here, whoever made the answer, and is given here what all of them have.
"""

import asyncio
from typing import Any

from chargehand.http.headers import protected

_CONTINUE = b"HTTP/1.1 100 "  # a word in between, and no head of an answer
LARGE = 65_536


class Cork:
    """A transport to uvicorn, in front of the real one."""

    __slots__ = ("_head", "_loop", "_transport", "is_closing", "new_answer")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self.is_closing = transport.is_closing  # asked several times for each request
        self.new_answer = True  # what is written next is a head; by its looks it cannot be told from a body

    def write(self, data: bytes) -> None:
        if self._head is not None and len(data) > LARGE:
            self._pull()  # to put them together would take the body's size once more
        elif self._head is not None:
            data, self._head = self._head + data, None
        elif self.new_answer and not data.startswith(_CONTINUE):
            self.new_answer = False
            self._head = protected(data)
            self._loop.call_soon(self._pull)
            return
        self._transport.write(data)

    def _pull(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            if not self._transport.is_closing():
                self._transport.write(head)

    def close(self) -> None:
        self._pull()
        self._transport.close()

    def write_eof(self) -> None:
        self._pull()
        self._transport.write_eof()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
