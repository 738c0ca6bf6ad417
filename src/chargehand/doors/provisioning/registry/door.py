"""The registry over HTTP: authorises each request, finds its operation, answers."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.names import PULL, PUSH, TAG
from chargehand.doors.provisioning.registry import receiving, sending, uploads
from chargehand.doors.provisioning.registry.collector import Collected, Collector
from chargehand.doors.provisioning.registry.documents import INDEX, MAX_BYTES
from chargehand.doors.provisioning.registry.layout import DEFAULT, Layout
from chargehand.doors.provisioning.registry.names import SHA256, checked_name, digest_hex, is_hex, is_name
from chargehand.doors.provisioning.registry.paths import Thing, parse, scope
from chargehand.doors.provisioning.registry.refusals import API_VERSION, CHALLENGE, Code, RegistryRefused, write_oci
from chargehand.doors.provisioning.registry.shelves import Shelf, Shelves
from chargehand.doors.provisioning.registry.uploads import location, range_of
from chargehand.engine.chores import Chore
from chargehand.errors import Forbidden
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, read_body, reply

PAGE = 1000  # names in one answer, unless the client asks for fewer
REFERRER_BYTES = 3 << 20  # of descriptors in one answer: clients read at most as much as for a manifest

Admit = Callable[[Request, str], Awaitable[str]]  # returns the tenant; or raises Unauthenticated or Forbidden
Operation = Callable[[Request, Response, Shelf, str, str], Awaitable[None]]


class TagList(msgspec.Struct):
    name: str
    tags: list[str]


class Catalog(msgspec.Struct):
    repositories: list[str]


class Index(msgspec.Struct, rename="camel"):
    manifests: list[msgspec.Raw]
    schema_version: int = 2
    media_type: str = INDEX


class Registry:
    def __init__(
        self,
        root: Path,
        *,
        settings: ProvisioningConfig,
        admit: Admit,
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        layout = Layout(root)
        self._settings = settings
        self._admit = admit
        self._shelves = Shelves(layout, settings.registry_max_blob_bytes, now)
        self._collector = Collector(
            layout,
            self._shelves,
            grace_seconds=settings.registry_grace_seconds,
            upload_seconds=settings.registry_upload_seconds,
            now=now,
        )
        # fmt: off
        self._operations: dict[tuple[Thing, str], Operation] = {
            (Thing.CATALOG, "GET"): self._catalog,
            (Thing.TAGS, "GET"): self._tags,
            (Thing.REFERRERS, "GET"): self._referrers,
            (Thing.MANIFEST, "GET"): self._get_manifest,
            (Thing.MANIFEST, "HEAD"): self._get_manifest,
            (Thing.MANIFEST, "PUT"): self._put_manifest,
            (Thing.MANIFEST, "DELETE"): self._delete_manifest,
            (Thing.UPLOADS, "POST"): self._begin,
            (Thing.UPLOAD, "GET"): self._status,
            (Thing.UPLOAD, "PATCH"): self._append,
            (Thing.UPLOAD, "PUT"): self._finish,
            (Thing.UPLOAD, "DELETE"): self._cancel,
            (Thing.BLOB, "GET"): self._get_blob,
            (Thing.BLOB, "HEAD"): self._head_blob,
            (Thing.BLOB, "DELETE"): self._delete_blob,
        }
        # fmt: on

    def routes(self) -> list[Route]:
        """Names have slashes, so there is one route for each method: docs/reference/registry.md describes the operations."""
        shape: dict[str, Any] = {"tag": TAG, "error_writer": write_oci, "hidden": True}
        methods = ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE")
        return [
            *(Route(method, "/v2", self._ping, "Check that this is a registry", **shape) for method in ("GET", "HEAD")),
            *(Route(method, "/v2/{rest:path}", self._serve, "The OCI registry", **shape) for method in methods),
        ]

    def chores(self) -> list[Chore]:
        return [Chore("registry garbage", self._settings.registry_gc_seconds, self.collect)]

    async def collect(self) -> Collected:
        """Collect garbage. Safe during pushes and pulls, and on several nodes at once."""
        return await self._collector.collect()

    # every request ----------------------------------------------------------------------------------------------------

    async def _serve(self, req: Request, resp: Response, rest: str) -> None:
        asked = parse(rest, req.method)
        if asked.thing is Thing.ROOT:
            await self._ping(req, resp)
            return
        needed = scope(asked, req.method)
        anonymous = needed == PULL and self._settings.registry_anonymous_pull and _is_nobody(req)
        tenant = DEFAULT if anonymous else await self._admit(req, needed)
        resp.set_header(*API_VERSION)
        if asked.thing is not Thing.CATALOG:
            checked_name(asked.name)
        await self._operations[asked.thing, req.method](req, resp, self._shelves.of(tenant), asked.name, asked.item)

    async def _ping(self, req: Request, resp: Response) -> None:
        """Clients check the password of `login` here. Any scope of the registry is enough."""
        if self._settings.registry_anonymous_pull and _is_nobody(req):
            # Sent although not needed: skopeo and podman remember it, and send credentials when they push.
            resp.set_header("www-authenticate", CHALLENGE)
        else:
            try:
                await self._admit(req, PULL)
            except Forbidden:
                await self._admit(req, PUSH)
        resp.set_header(*API_VERSION)
        reply(resp, {})

    # blobs ------------------------------------------------------------------------------------------------------------

    async def _head_blob(self, req: Request, resp: Response, shelf: Shelf, name: str, digest: str) -> None:
        digits = digest_hex(digest)
        size = await asyncio.to_thread(shelf.blobs.size, name, digits)
        if not sending.is_known(req, resp, digits):
            resp.content_type = "application/octet-stream"
            resp.set_header("accept-ranges", "bytes")
            resp.set_header("content-length", str(size))

    async def _get_blob(self, req: Request, resp: Response, shelf: Shelf, name: str, digest: str) -> None:
        digits = digest_hex(digest)
        file, size = await asyncio.to_thread(shelf.blobs.open, name, digits)
        sent = None
        try:
            if sending.is_known(req, resp, digits):
                return
            span = sending.span(req, resp, digits, size)
            if span is None:
                headers = {"content-range": f"bytes */{size}"}
                raise RegistryRefused(416, Code.SIZE_INVALID, f"the blob has {size} bytes", headers=headers)
            resp.content_type = "application/octet-stream"
            resp.set_header("content-length", str(span[1] - span[0]))
            sent = resp.stream = sending.FileBody(file, *span)
        finally:
            if sent is None:
                file.close()

    async def _delete_blob(self, _req: Request, resp: Response, shelf: Shelf, name: str, digest: str) -> None:
        await asyncio.to_thread(shelf.blobs.delete, name, digest_hex(digest))
        resp.status = 202

    # uploads ----------------------------------------------------------------------------------------------------------

    async def _begin(self, req: Request, resp: Response, shelf: Shelf, name: str, _: str) -> None:
        if digest := req.get_param("digest"):
            await self._all_at_once(req, shelf, name, digest_hex(digest))
            _created(resp, f"/v2/{name}/blobs/{digest}", digest)
            return
        if mounted := await self._mounted(req, shelf, name):
            _created(resp, f"/v2/{name}/blobs/{mounted}", mounted)
            return
        upload = await asyncio.to_thread(shelf.uploads.begin, name)
        _accepted(resp, name, upload, 0)

    async def _mounted(self, req: Request, shelf: Shelf, name: str) -> str:
        """Return the digest if the other repository has the blob; else the client must send it."""
        digest, source = req.get_param("mount"), req.get_param("from")
        if not digest or not source or not is_name(source):
            return ""
        return digest if await asyncio.to_thread(shelf.blobs.mount, name, digest_hex(digest), source) else ""

    async def _all_at_once(self, req: Request, shelf: Shelf, name: str, digits: str) -> None:
        upload = await asyncio.to_thread(shelf.uploads.begin, name)
        try:
            _, whole = await self._receive(req, shelf, name, upload, 0)
            if not whole:
                raise RegistryRefused(400, Code.SIZE_INVALID, "the body was cut off")
            await asyncio.to_thread(shelf.uploads.finish, name, upload, digits)
        except BaseException:
            # The client does not know the id of this upload, so it cannot resume it.
            with contextlib.suppress(RegistryRefused):
                await asyncio.to_thread(shelf.uploads.cancel, name, upload)
            raise

    async def _status(self, _req: Request, resp: Response, shelf: Shelf, name: str, upload: str) -> None:
        size = await asyncio.to_thread(shelf.uploads.size, name, upload)
        _accepted(resp, name, upload, size)
        resp.status = 204

    async def _append(self, req: Request, resp: Response, shelf: Shelf, name: str, upload: str) -> None:
        size = await asyncio.to_thread(shelf.uploads.size, name, upload)
        size, _ = await self._receive(req, shelf, name, upload, size)
        _accepted(resp, name, upload, size)

    async def _finish(self, req: Request, resp: Response, shelf: Shelf, name: str, upload: str) -> None:
        digest = req.get_param("digest")
        if not digest:
            raise RegistryRefused(400, Code.DIGEST_INVALID, "`?digest=` is missing: the digest of the whole upload")
        digits = digest_hex(digest)
        size = await asyncio.to_thread(shelf.uploads.size, name, upload)
        _, whole = await self._receive(req, shelf, name, upload, size)
        if not whole:
            # What arrived is kept: the client may ask how much that is, and send the rest.
            raise RegistryRefused(400, Code.SIZE_INVALID, "the body was cut off")
        await asyncio.to_thread(shelf.uploads.finish, name, upload, digits)
        _created(resp, f"/v2/{name}/blobs/{digest}", digest)

    async def _cancel(self, _req: Request, resp: Response, shelf: Shelf, name: str, upload: str) -> None:
        await asyncio.to_thread(shelf.uploads.cancel, name, upload)
        resp.status = 204

    async def _receive(self, req: Request, shelf: Shelf, name: str, upload: str, size: int) -> tuple[int, bool]:
        """Return the size of the upload after the body, and whether the body was complete. No lock is held while it is read."""
        declared = receiving.content_range(req)
        if declared is not None and declared[0] != size:
            raise uploads.out_of_order(name, upload, size)
        expected = req.content_length if declared is None else declared[1]
        if expected is not None and size + expected > self._settings.registry_max_blob_bytes:
            await asyncio.to_thread(shelf.uploads.cancel, name, upload)
            raise uploads.too_large(self._settings.registry_max_blob_bytes)
        received, incoming = 0, receiving.Incoming(req)
        async with contextlib.aclosing(incoming.pieces()) as pieces:
            async for piece in pieces:
                received += len(piece)
                if expected is not None and received > expected:
                    raise RegistryRefused(
                        400, Code.SIZE_INVALID, f"the body is longer than the {expected} bytes of Content-Range"
                    )
                size = await asyncio.to_thread(shelf.uploads.append, name, upload, size, piece)
        if incoming.is_whole and expected is not None and received != expected:
            raise RegistryRefused(
                400, Code.SIZE_INVALID, f"the body has {received} bytes, not the {expected} of Content-Range"
            )
        return size, incoming.is_whole

    # manifests --------------------------------------------------------------------------------------------------------

    async def _get_manifest(self, req: Request, resp: Response, shelf: Shelf, name: str, reference: str) -> None:
        stored = await asyncio.to_thread(shelf.manifests.get, name, reference)
        if not sending.is_known(req, resp, stored.digits):
            resp.content_type = stored.media_type
            resp.data = stored.body

    async def _put_manifest(self, req: Request, resp: Response, shelf: Shelf, name: str, reference: str) -> None:
        body = await read_body(req, MAX_BYTES)
        put = await asyncio.to_thread(shelf.manifests.put, name, reference, body, req.content_type or "")
        digest = SHA256 + put.digits
        _created(resp, f"/v2/{name}/manifests/{digest}", digest)
        if put.subject is not None:
            resp.set_header("oci-subject", put.subject)

    async def _delete_manifest(self, _req: Request, resp: Response, shelf: Shelf, name: str, reference: str) -> None:
        await asyncio.to_thread(shelf.manifests.delete, name, reference)
        resp.status = 202

    async def _referrers(self, req: Request, resp: Response, shelf: Shelf, name: str, digest: str) -> None:
        kind, after = req.get_param("artifactType"), req.get_param("last") or ""
        if after and not is_hex(after):
            raise RegistryRefused(400, Code.UNSUPPORTED, "`last` must be from the Link of the previous page")
        found, last = await asyncio.to_thread(
            shelf.manifests.referrers, name, digest_hex(digest), kind, after, REFERRER_BYTES
        )
        reply(resp, Index(found))
        resp.content_type = INDEX
        if kind is not None:
            resp.set_header("oci-filters-applied", "artifactType")
        if last:
            further = {"last": last, **({} if kind is None else {"artifactType": kind})}
            _link_next(resp, f"/v2/{name}/referrers/{digest}", further)

    # lists ------------------------------------------------------------------------------------------------------------

    async def _tags(self, req: Request, resp: Response, shelf: Shelf, name: str, _: str) -> None:
        found = await asyncio.to_thread(shelf.manifests.tags, name)
        reply(resp, TagList(name, _page(req, resp, f"/v2/{name}/tags/list", found)))

    async def _catalog(self, req: Request, resp: Response, shelf: Shelf, _name: str, _: str) -> None:
        found = await asyncio.to_thread(shelf.manifests.catalog)
        reply(resp, Catalog(_page(req, resp, "/v2/_catalog", found)))


def _is_nobody(req: Request) -> bool:
    """Return whether no credentials were sent. Without any, skopeo and podman send an empty name and password."""
    return (req.get_header("authorization") or "Basic Og==") == "Basic Og==" and req.get_header("x-api-key") is None


def _created(resp: Response, path: str, digest: str) -> None:
    resp.status = 201
    resp.set_header("location", path)
    resp.set_header("docker-content-digest", digest)


def _accepted(resp: Response, name: str, upload: str, size: int) -> None:
    resp.status = 202
    resp.set_header("location", location(name, upload))
    resp.set_header("range", range_of(size))
    resp.set_header("docker-upload-uuid", upload)


def _page(req: Request, resp: Response, path: str, sorted_names: list[str]) -> list[str]:
    asked, last = req.get_param("n"), req.get_param("last") or ""
    if asked is not None and not (asked.isascii() and asked.isdigit() and len(asked) < 10):
        raise RegistryRefused(400, Code.UNSUPPORTED, "`n` must be a number, 0 or more")
    count = min(PAGE, PAGE if asked is None else int(asked))
    rest = [name for name in sorted_names if name > last]
    if 0 < count < len(rest):
        _link_next(resp, path, {"n": str(count), "last": rest[count - 1]})
    return rest[:count]


def _link_next(resp: Response, path: str, query: dict[str, str]) -> None:
    resp.set_header("link", f'<{path}?{urlencode(query)}>; rel="next"')
