"""Each tenant has its own registry: another tenant cannot read, change, remove or notice anything in it."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.serving import on_sqlite
from tests.conftest import Clock
from tests.provisioning.guest import Script
from tests.provisioning.lab import SERIAL, lab
from tests.provisioning.registering import Answer, Client, a_registry, calling, digest, files_in, image, only

NAME = "os-images/debian"
DATA = b"a layer of tenant a" * 1000
GRACE = 3600.0


class Room(NamedTuple):
    root: Path
    nobody: Client
    a: Client
    b: Client
    default: Client


@pytest.fixture
async def room(tmp_path: Path, clock: Clock) -> AsyncIterator[Room]:
    root = tmp_path / "registry"
    admit = only(a="1", a_of="tenant-a", b="2", b_of="tenant-b", d="3")
    settings = {"registry_grace_seconds": GRACE, "registry_anonymous_pull": True}
    async with calling(a_registry(root, settings, admit, clock)) as client:
        yield Room(root, client, client.of("a:1"), client.of("b:2"), client.of("d:3"))


def shown(answer: Answer) -> tuple[int, bytes, dict[str, str]]:
    ours = {name.lower(): value for name, value in answer.headers.items() if name.lower() != "date"}
    return answer.status, answer.body, ours


READS: dict[str, Callable[[str, str], str]] = {
    "a tag": lambda name, _: f"/v2/{name}/manifests/1",
    "a manifest": lambda name, manifest: f"/v2/{name}/manifests/{manifest}",
    "a blob": lambda name, _: f"/v2/{name}/blobs/{digest(DATA)}",
    "tags": lambda name, _: f"/v2/{name}/tags/list",
    "referrers": lambda name, manifest: f"/v2/{name}/referrers/{manifest}",
    "the catalog": lambda _name, _: "/v2/_catalog",
}


@pytest.mark.parametrize("what", READS)
async def test_the_content_of_a_tenant_is_not_found_by_another(room: Room, what: str) -> None:
    before = [shown(await who.call("GET", READS[what](NAME, digest(b"m")))) for who in (room.b, room.nobody)]
    manifest = await room.a.image(NAME, "1", DATA)
    await room.a.image(NAME, "", b"a signature", subject=manifest)
    (await room.a.call("GET", READS[what](NAME, manifest["digest"]))).of(200)
    path = READS[what](NAME, manifest["digest"])
    assert [shown(await who.call("GET", path)) for who in (room.b, room.nobody)] == before


async def test_a_tenant_can_neither_read_nor_mount_a_blob_of_another(room: Room) -> None:
    await room.a.push(NAME, DATA)
    config = await room.b.push("mine", b"{}")
    for name in (NAME, "mine"):
        (await room.b.blob(name, DATA)).refused(404, "BLOB_UNKNOWN")
        (await room.b.call("HEAD", f"/v2/{name}/blobs/{digest(DATA)}")).of(404)
        (await room.b.call("DELETE", f"/v2/{name}/blobs/{digest(DATA)}")).refused(404, "BLOB_UNKNOWN")
    # The client must send it, as if nobody had it.
    begun = await room.b.call("POST", f"/v2/mine/blobs/uploads/?mount={digest(DATA)}&from={NAME}")
    assert "docker-content-digest" not in begun.of(202).headers
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(DATA), "size": len(DATA)}
    (await room.b.put("mine", "1", image(config, layer))).refused(400, "MANIFEST_BLOB_UNKNOWN")
    (await room.b.put("mine", "1", image(config, {**layer, "size": 1}))).refused(400, "MANIFEST_BLOB_UNKNOWN")
    (await room.b.call("PUT", f"{begun.location}?digest={digest(DATA)}", b"")).refused(400, "DIGEST_INVALID")


async def test_an_upload_of_another_tenant_is_not_found_even_by_its_id(room: Room) -> None:
    upload = await room.a.begin(NAME)
    (await room.a.call("PATCH", upload, DATA[:100])).of(202)
    (await room.b.call("GET", upload)).refused(404, "BLOB_UPLOAD_UNKNOWN")
    (await room.b.call("PATCH", upload, b"x")).refused(404, "BLOB_UPLOAD_UNKNOWN")
    (await room.b.call("PUT", f"{upload}?digest={digest(DATA[:100])}")).refused(404, "BLOB_UPLOAD_UNKNOWN")
    (await room.b.call("DELETE", upload)).refused(404, "BLOB_UPLOAD_UNKNOWN")
    (await room.a.call("PUT", f"{upload}?digest={digest(DATA)}", DATA[100:])).of(201)


async def test_two_tenants_may_use_the_same_name_and_do_not_change_each_others_content(room: Room) -> None:
    for one in (room.a, room.b, room.default):
        await one.image(NAME, "1", DATA)
    own = {one: (await one.image(NAME, "1", bytes([number])))["digest"]
           for number, one in enumerate((room.a, room.b, room.default))}  # fmt: skip
    (await room.b.call("DELETE", f"/v2/{NAME}/manifests/1")).of(202)
    (await room.b.call("DELETE", f"/v2/{NAME}/manifests/{own[room.b]}")).of(202)
    (await room.b.call("DELETE", f"/v2/{NAME}/manifests/{own[room.a]}")).refused(404, "MANIFEST_UNKNOWN")
    for one in (room.a, room.default):
        assert (await one.manifest(NAME, "1")).of(200).headers["docker-content-digest"] == own[one]
        (await one.blob(NAME, DATA)).of(200)


async def test_equal_bytes_are_stored_once_and_kept_while_any_tenant_has_them(room: Room, clock: Clock) -> None:
    for one in (room.a, room.b):
        await one.image(NAME, "1", DATA)
    [blob] = [path for path in files_in(room.root) if path.stat().st_size == len(DATA)]
    (await room.a.call("DELETE", f"/v2/{NAME}/manifests/1")).of(202)
    clock.advance(2 * GRACE)
    counts = await room.a.registry.collect()
    assert (counts.repositories, counts.manifests, counts.blobs) == (2, 1, 0)
    (await room.a.blob(NAME, DATA)).refused(404, "BLOB_UNKNOWN")
    (await room.b.blob(NAME, DATA)).of(200)
    (await room.b.call("DELETE", f"/v2/{NAME}/manifests/1")).of(202)
    clock.advance(2 * GRACE)
    await room.b.registry.collect()
    assert not blob.exists()


async def test_repositories_of_earlier_releases_belong_to_the_default_tenant(room: Room) -> None:
    await room.default.image(NAME, "1", DATA)
    assert (room.root / "repositories" / NAME / "_tags" / "1").is_file()  # where earlier releases store it
    for who in (room.default, room.nobody):  # `nobody` may pull, because anonymous pull is on
        (await who.manifest(NAME, "1")).of(200)
        (await who.blob(NAME, DATA)).of(200)
    (await room.a.manifest(NAME, "1")).refused(404, "MANIFEST_UNKNOWN")


@on_sqlite
async def test_a_machine_may_pull_only_from_the_tenant_of_its_job(store_url: str, tmp_path: Path) -> None:
    tokens = [
        {"name": tenant, "hash": f"sha256:{hashlib.sha256(tenant.encode()).hexdigest()}", "scopes": ["*"], "tenant": tenant}
        for tenant in ("tenant-a", "tenant-b")
    ]  # fmt: skip
    async with lab(store_url, tmp_path, script=Script(silent=True), settings={"auth.tokens": tokens}) as room:
        room.api = room.api.of("tenant-a")
        await room.waiting(SERIAL)
        token = (await room.on_medium())["token"]
        for tenant in ("tenant-a", "tenant-b"):
            data = tenant.encode()
            pushed = await room.api.of(tenant).call(
                "POST", f"/v2/{NAME}/blobs/uploads/?digest={digest(data)}", data=data
            )
            assert pushed.status == 201, pushed.body
        machine = room.api.of(token)
        assert (await machine.get(f"/v2/{NAME}/blobs/{digest(b'tenant-a')}")).status == 200
        refused = await machine.get(f"/v2/{NAME}/blobs/{digest(b'tenant-b')}")
        assert (refused.status, json.loads(refused.body)["errors"][0]["code"]) == (404, "BLOB_UNKNOWN")
