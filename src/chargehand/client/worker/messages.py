"""What a worker and its child processes tell each other over a socket: a length of four bytes, then MessagePack."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec

from chargehand.client.types.tasks import Task, TaskArtifact

MAX_BYTES = 1 << 30  # of one message; a server takes no result that is nearly so long

Message = TypeVar("Message")
_encoder = msgspec.msgpack.Encoder()


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To a child: run the function of this command."""

    command: str
    task: Task


class Soften(msgspec.Struct, frozen=True, tag=True):
    """To a child: raise SoftTimeLimit in the function."""


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """To a child: cancel the function, whose result is dropped."""


Order = Begin | Soften | Cancel


class ChildReady(msgspec.Struct, frozen=True, tag=True):
    """From a child: it has its functions."""


class Progressed(msgspec.Struct, frozen=True, tag=True):
    percent: float | None
    message: str | None
    data: bytes | None  # JSON


class Returned(msgspec.Struct, frozen=True, tag=True):
    value: bytes  # JSON


class Raised(msgspec.Struct, frozen=True, tag=True):
    """`kind` says which error to raise in its place."""

    kind: str
    text: str
    delay_seconds: float | None = None
    trace: str = ""


class CallEnded(msgspec.Struct, frozen=True, tag=True):
    """The last word of a child on a task."""

    outcome: Returned | Raised
    artifacts: tuple[TaskArtifact, ...]
    memory: int  # bytes that the child has now


Report = ChildReady | Progressed | CallEnded


def framed(message: Order | Report) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


async def messages(reader: asyncio.StreamReader, kinds: Any) -> AsyncIterator[Any]:
    """Yield messages until the other side is gone."""
    decoder = msgspec.msgpack.Decoder(kinds)
    while True:
        try:
            size = int.from_bytes(await reader.readexactly(4), "big")
            if size > MAX_BYTES:
                raise ValueError(f"a message of {size} bytes; at most {MAX_BYTES} are allowed")
            body = await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        yield decoder.decode(body)
