"""Chargehand with targets behind it, and clients: of the API, of a raw connection, and of the targets themselves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp

from chargehand.app import Server
from chargehand.doors.inference.scheduler import Scheduler
from chargehand.http.credentials import hash_token
from tests.api.serving import Api, serving, until
from tests.inference.conformance import Model, OllamaTarget, Seen

SILENCE = 0.1  # how long to wait when asserting that nothing happens
MODELS = {
    "a": Model(),
    "b": Model(),
    "c": Model(),
    "plain": Model(capabilities=("completion",)),
    "thinker": Model(capabilities=("completion", "thinking", "tools")),
    "embedder": Model(capabilities=("embedding",)),
    "templated": Model(native_template=True),
}


def settings_for(folder: Path, *targets: OllamaTarget, **settings: Any) -> dict[str, Any]:
    """Settings for these targets, named laptop, desktop and so on. In `settings` two underscores stand for a dot."""
    names = ("laptop", "desktop", "attic")
    return {
        "server.data_dir": str(folder),
        "inference.targets": [{"name": name, "url": target.url} for name, target in zip(names, targets, strict=False)],
        "inference.probe_seconds": 0.25,
        "inference.wait_seconds": 10,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }


class Caller(Api):
    """A caller of the inference door."""

    def of(self, token: str) -> "Caller":
        return Caller(self.url, self.session, token)

    async def ask(self, **fields: Any) -> str:
        """Submit a job and return its id."""
        answer = await self.post("/jobs", chat(**fields) if "prompt" not in fields else {"model": "a"} | fields)
        return cast(str, answer.good(202)["job_id"])

    async def seen(self, job_id: str) -> dict[str, Any]:
        return cast(dict[str, Any], (await self.get(f"/jobs/{job_id}")).good())

    async def ended(self, job_id: str, seconds: float = 30) -> dict[str, Any]:
        """Wait until the job has ended and return it."""
        return await self.in_state(job_id, "done", "failed", seconds=seconds)

    async def in_state(self, job_id: str, *states: str, seconds: float = 30) -> dict[str, Any]:
        async def reached() -> dict[str, Any] | None:
            job = await self.seen(job_id)
            return job if job["state"] in states else None

        return cast(dict[str, Any], await until(reached, seconds))

    async def jobs(self, query: str = "") -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], (await self.get(f"/jobs?limit=500&{query}")).good()["jobs"])


def chat(text: str = "one two three", model: str = "a", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def scheduler_of(server: Server) -> Scheduler:
    assert server.inference is not None
    return server.inference.scheduler


async def all_there(server: Server) -> None:
    """Wait until the server has read the models of every target."""
    await until(lambda: all(ledger.up for ledger in scheduler_of(server).ledgers))


async def is_away(server: Server, name: str = "laptop") -> None:
    await until(lambda: not scheduler_of(server).targets[name].up)


@asynccontextmanager
async def before_targets(
    store_url: str, folder: Path, *targets: OllamaTarget, **settings: Any
) -> AsyncIterator[tuple[Server, Caller]]:
    """Yield a server that knows that its targets are up, and a client of it."""
    timeout = aiohttp.ClientTimeout(total=20)
    async with (
        serving(store_url, settings_for(folder, *targets, **settings)) as server,
        aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        await all_there(server)
        yield server, Caller(server.url, session)


def a_token(name: str, tenant: str, *scopes: str) -> dict[str, Any]:
    return {"name": name, "hash": hash_token(token_of(name)), "tenant": tenant, "scopes": list(scopes) or ["*"]}


def token_of(name: str) -> str:
    return f"the-token-of-{name}"


def ran(target: OllamaTarget, path: str = "/api/chat") -> list[Seen]:
    """Return the requests that ran a model, without those that only loaded one."""
    return [seen for seen in target.at(path) if any(seen.json.get(part) for part in ("messages", "prompt", "input"))]


# the wire -------------------------------------------------------------------------------------------------------------


class Line:
    """A raw connection, to see the bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        """Send a request with a Content-Length, a Host and the given headers alone."""
        lines = {"Host": "localhost", "Content-Length": str(len(body)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(10):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    async def rest(self) -> bytes:
        """Return all bytes until the other side closes or resets the connection."""
        got = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                while piece := await self.reader.read(65536):
                    got += piece
        return got

    async def is_silent(self) -> bool:
        try:
            async with asyncio.timeout(SILENCE):
                return not await self.reader.read(1) and False
        except TimeoutError:
            return True

    async def until_seen(self, piece: bytes) -> bytes:
        """Return the bytes up to the end of the line that contains the piece."""
        got = b""
        async with asyncio.timeout(10):
            while b"\n" not in got.partition(piece)[2]:
                more = await self.reader.read(65536)
                assert more, f"it ended without {piece!r}: {got[-500:]!r}"
                got += more
        return got

    def hang_up(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def a_line(url: str) -> AsyncIterator[Line]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**22)
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def unchunked(body: bytes) -> tuple[bytes, bool]:
    """Return the content of a chunked body, and whether its last chunk is there."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return found, True
        found, body = found + body[:length], body[length + 2 :]
    return found, False
