"""A registry on a real socket, in the test's own process or in another one, and a client for it."""

import asyncio
import base64
import hashlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
from yarl import URL

from chargehand.config import load_config
from chargehand.doors.provisioning.registry import Admit, Registry
from chargehand.errors import Forbidden, Unauthenticated
from chargehand.http.application import Application
from chargehand.http.auth import Caller
from chargehand.http.connection import Bounds
from chargehand.http.request import Request
from chargehand.http.server import HttpServer

IMAGE = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
BOUNDS = Bounds(65_536, 10, 30, 30, 200, 1)
ROOT = Path(__file__).parents[2]


class OpenGate:
    """A gate that admits every request, like the server's own for a route without a scope."""

    async def admit(self, req: Request, scope: str | None) -> None:
        req.caller = Caller("anonymous", tenant="")


async def everybody(_req: Request, _scope: str) -> str:
    """Admit everybody, as a server without [auth] does."""
    return "default"


def only(**passwords: str) -> Admit:
    """Admit these names with their passwords, by HTTP Basic. `name_may` has the scopes of a name, `name_of` its tenant."""

    async def admit(req: Request, scope: str) -> str:
        scheme, _, sent = (req.get_header("authorization") or "").partition(" ")
        name, _, password = base64.b64decode(sent).decode().partition(":") if scheme == "Basic" else ("", "", "")
        if not name or passwords.get(name) != password:
            raise Unauthenticated("wrong name or password")
        if scope not in passwords.get(f"{name}_may", scope):
            raise Forbidden(f"missing scope: this needs `{scope}`")
        return passwords.get(f"{name}_of", "default")

    return admit


def a_registry(
    root: Path,
    settings: Mapping[str, Any] = {},
    admit: Admit = everybody,
    now: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Registry:
    overrides = {f"provisioning.{name}": value for name, value in settings.items()}
    config = load_config(environ={}, overrides=overrides).provisioning
    return Registry(root, settings=config, admit=admit, now=now)


@asynccontextmanager
async def listening(registry: Registry) -> AsyncIterator[str]:
    """Serve the registry and yield its address."""
    app = Application(registry.routes(), OpenGate(), lambda *_: lambda *_: None)
    server = HttpServer(BOUNDS)
    await server.start(app, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.addresses[0][1]}"
    finally:
        await server.drain()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def location(self) -> str:
        return self.headers["location"]

    def of(self, *statuses: int) -> "Answer":
        assert self.status in statuses, (self.status, self.body)
        return self

    def refused(self, status: int, code: str) -> list[dict[str, Any]]:
        """Check status, code and format of a refusal; return its errors."""
        assert (self.status, self.headers["content-type"]) == (status, "application/json"), (self.status, self.body)
        errors: list[dict[str, Any]] = self.json["errors"]
        assert {error["code"] for error in errors} == {code}, errors
        assert all(error["message"] for error in errors)
        return errors


class Client:
    def __init__(self, address: str, session: aiohttp.ClientSession, registry: Registry, login: str = "") -> None:
        self.address = address
        self.session = session
        self.registry = registry
        self._headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()} if login else {}

    def of(self, login: str) -> "Client":
        return Client(self.address, self.session, self.registry, login)

    async def call(self, method: str, path: str, data: Any = None, headers: Mapping[str, str] = {}) -> Answer:
        url = URL(f"http://{self.address}{path}", encoded=True)  # sent unchanged, valid or not
        body = BytesIO(data) if isinstance(data, bytes) and len(data) > 1 << 20 else data
        async with self.session.request(method, url, data=body, headers={**self._headers, **headers}) as response:
            return Answer(response.status, response.headers, await response.read())

    async def begin(self, name: str) -> str:
        """Begin an upload and return its URL."""
        return (await self.call("POST", f"/v2/{name}/blobs/uploads/")).of(202).location

    async def push(self, name: str, data: bytes) -> dict[str, Any]:
        """Push a blob; return the descriptor by which a manifest refers to it."""
        (await self.call("POST", f"/v2/{name}/blobs/uploads/?digest={digest(data)}", data)).of(201)
        return described(LAYER, data)

    async def put(self, name: str, reference: str, manifest: bytes, media_type: str = IMAGE) -> Answer:
        return await self.call("PUT", f"/v2/{name}/manifests/{reference}", manifest, {"Content-Type": media_type})

    async def image(self, name: str, tag: str, *layers: bytes, **more: Any) -> dict[str, Any]:
        """Push an image with these layers, by its digest if there is no tag; return its descriptor."""
        config = {**await self.push(name, b"{}"), "mediaType": CONFIG}
        body = image(config, *[await self.push(name, layer) for layer in layers], **more)
        (await self.put(name, tag or digest(body), body)).of(201)
        return described(IMAGE, body)

    async def blob(self, name: str, data: bytes | str, **headers: str) -> Answer:
        reference = data if isinstance(data, str) else digest(data)
        return await self.call("GET", f"/v2/{name}/blobs/{reference}", headers=headers)

    async def manifest(self, name: str, reference: str) -> Answer:
        return await self.call("GET", f"/v2/{name}/manifests/{reference}")


@asynccontextmanager
async def calling(registry: Registry) -> AsyncIterator[Client]:
    async with listening(registry) as address, aiohttp.ClientSession() as session:
        yield Client(address, session, registry)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def files_in(root: Path) -> list[Path]:
    """Return all stored files, complete or not."""
    return [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]


def described(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def image(config: Mapping[str, Any], *layers: Mapping[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode(
        {"schemaVersion": 2, "mediaType": IMAGE, "config": config, "layers": list(layers), **more}
    )


def index(*manifests: Mapping[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(manifests), **more})


# in another process ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def elsewhere(root: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run the registry in another process; yield the process and its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, str(root), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout
    try:
        address = (await process.stdout.readline()).decode().strip()
        assert address, "it did not start"
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.stdout.read()


async def _serve(root: Path) -> None:
    async with listening(a_registry(root)) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1])))
