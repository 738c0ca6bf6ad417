"""A target that answers with whatever bytes a test gives it, over a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]
CHAT = b'{"model":"a","message":{"role":"assistant","content":"yes"},"done":true,"done_reason":"stop"}\n'
LISTED = b'{"models":[{"name":"a:latest","model":"a:latest","digest":"d"}]}'
MEGABYTE = 1 << 20


@dataclass
class HostileTarget:
    """A target that behaves well, except on the paths in `says`."""

    says: dict[str, Respond] = field(default_factory=dict)
    heads: list[bytes] = field(default_factory=list)  # of the received requests
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [head.split(b" ", 2)[1].decode() for head in self.heads]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if line)
            await reader.readexactly(int(fields.get(b"content-length", b"0")))
            respond = self.says.get(head.split(b" ", 2)[1].decode(), DEFAULTS.get(head.split(b" ", 2)[1].decode()))
            await (respond or reply(b'{"error":"not here"}', status=404))(writer)
        writer.close()


@asynccontextmanager
async def hostile_target(**says: Respond) -> AsyncIterator[HostileTarget]:
    target = HostileTarget(says)
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
    target.port = server.sockets[0].getsockname()[1]
    try:
        yield target
    finally:
        server.close()


# what it may say --------------------------------------------------------------------------------------------------------


def head(status: int = 200, headers: Mapping[str, str] = {}) -> bytes:
    lines = {"Content-Type": "application/json", "Connection": "close", **headers}
    return b"HTTP/1.1 %d X\r\n%b\r\n" % (status, "".join(f"{k}: {v}\r\n" for k, v in lines.items() if v).encode())


def reply(body: bytes, headers: Mapping[str, str] = {}, status: int = 200) -> Respond:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, {"Content-Length": str(len(body)), **headers}) + body)
        await writer.drain()

    return respond


def endless(piece: bytes, first: bytes | None = None, megabytes: int = 400, headers: Mapping[str, str] = {}) -> Respond:
    """Respond with so many megabytes of the same piece, or with as many as the client reads."""
    whole = piece * (MEGABYTE // len(piece))

    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(head(headers=headers) if first is None else first)
        for _ in range(megabytes):
            writer.write(whole)
            await writer.drain()

    return respond


def drip(piece: bytes, pause: float = 0.02) -> Respond:
    """Respond with a piece at a time, slowly and without an end."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(head())
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return respond


DEFAULTS: dict[str, Respond] = {
    "/api/version": reply(b'{"version":"1"}'),
    "/api/tags": reply(LISTED),
    "/api/ps": reply(LISTED),
    "/api/show": reply(b"{}"),
    "/v1/models": reply(b'{"object":"list","data":[{"id":"a"}]}'),
    "/v1/models/a": reply(b'{"id":"a"}'),
    "/api/chat": reply(CHAT, {"Content-Type": "application/x-ndjson"}),
    "/api/generate": reply(CHAT),
}


def nested(depth: int = 200_000) -> bytes:
    return msgspec.json.encode({"models": []})[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}"
