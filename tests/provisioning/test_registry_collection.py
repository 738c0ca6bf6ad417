"""Garbage collection: keeps all that a tag refers to, and removes the rest after the grace period."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chargehand.doors.provisioning.registry import Collected
from chargehand.engine.chores import Chores
from chargehand.errors import StoreCorrupt
from tests.api.serving import until
from tests.conftest import Clock
from tests.provisioning.registering import IMAGE, INDEX, Client, a_registry, calling, described, digest, image, index

NAME = "os-images/linux/demo"
GRACE = 3600.0
DATA = b"a layer" * 1000


@pytest.fixture
async def client(tmp_path: Path, clock: Clock) -> AsyncIterator[Client]:
    settings = {"registry_grace_seconds": GRACE, "registry_upload_seconds": 600.0}
    async with calling(a_registry(tmp_path, settings, now=clock)) as client:
        yield client


async def collect_after(client: Client, clock: Clock, seconds: float) -> Collected:
    clock.advance(seconds)
    return await client.registry.collect()


async def is_whole(client: Client, name: str, reference: str) -> None:
    """Pull a manifest with everything in it."""
    document = (await client.manifest(name, reference)).of(200).json
    for blob in [document["config"], *document["layers"]] if "config" in document else []:
        (await client.blob(name, blob["digest"])).of(200)
    for child in document.get("manifests", []):
        await is_whole(client, name, child["digest"])


def blobs_in(root: Path) -> set[str]:
    return {f"sha256:{path.name}" for path in (root / "blobs").rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["demo", "os-images/demo", "a/b/c/d/e/f"])
async def test_a_collection_never_removes_what_a_nested_repository_refers_to(
    client: Client, clock: Clock, name: str
) -> None:
    await client.image("a/b", "1", b"of a parent")
    await client.image(name, "1", DATA)
    for _ in range(3):
        counts = await collect_after(client, clock, 2 * GRACE)
        assert (counts.manifests, counts.links, counts.blobs) == (0, 0, 0)
    await is_whole(client, name, "1")
    await is_whole(client, "a/b", "1")


async def test_an_index_keeps_its_untagged_images(client: Client, clock: Clock) -> None:
    images = [await client.image(NAME, "", DATA + bytes([number])) for number in range(3)]
    inner = index(*images[:2])
    (await client.put(NAME, digest(inner), inner, INDEX)).of(201)
    (await client.put(NAME, "all", index(described(INDEX, inner)), INDEX)).of(201)
    counts = await collect_after(client, clock, GRACE + 1)
    await is_whole(client, NAME, "all")
    (await client.manifest(NAME, images[2]["digest"])).refused(404, "MANIFEST_UNKNOWN")
    assert (counts.manifests, counts.links, counts.blobs) == (1, 1, 2)  # the others use its config too


async def test_a_tagged_subject_keeps_its_referrers_and_they_keep_theirs(
    client: Client, clock: Clock, tmp_path: Path
) -> None:
    subject = await client.image(NAME, "1", DATA)
    signature = await client.image(NAME, "", b"signature", subject=subject)
    countersigned = await client.image(NAME, "", b"signature of it", subject=signature)
    lost = await client.image(NAME, "", b"of nothing", subject=described(IMAGE, b"never pushed"))
    await collect_after(client, clock, GRACE + 1)
    for kept in (subject, signature, countersigned):
        await is_whole(client, NAME, kept["digest"])
    (await client.manifest(NAME, lost["digest"])).refused(404, "MANIFEST_UNKNOWN")

    (await client.call("DELETE", f"/v2/{NAME}/manifests/1")).of(202)
    await collect_after(client, clock, GRACE - 1)
    await is_whole(client, NAME, countersigned["digest"])
    counts = await collect_after(client, clock, 2)
    assert counts.manifests == 3
    assert blobs_in(tmp_path) == set()


async def test_a_tagged_referrer_keeps_its_subject(client: Client, clock: Clock) -> None:
    subject = await client.image(NAME, "", DATA)
    await client.image(NAME, "signed", b"signature", subject=subject)
    await collect_after(client, clock, GRACE + 1)
    await is_whole(client, NAME, subject["digest"])


async def test_a_blob_that_is_referred_to_again_is_not_removed(client: Client, clock: Clock) -> None:
    """Also at the very end of the grace period, and after earlier collections."""
    config, layer = await client.push(NAME, b"{}"), await client.push(NAME, DATA)
    await collect_after(client, clock, GRACE - 1)
    (await client.put(NAME, "1", image(config, layer))).of(201)
    for _ in range(3):
        await collect_after(client, clock, GRACE - 1)
    await is_whole(client, NAME, "1")


async def test_a_blob_that_is_pushed_or_mounted_again_counts_as_new(
    client: Client, clock: Clock, tmp_path: Path
) -> None:
    await client.push(NAME, DATA)
    await client.push("other", b"mounted")
    clock.advance(GRACE - 1)
    await client.push(NAME, DATA)
    (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?mount={digest(b'mounted')}&from=other")).of(201)
    await collect_after(client, clock, 2)
    for data in (DATA, b"mounted"):
        (await client.blob(NAME, data)).of(200)
    (await client.blob("other", b"mounted")).refused(404, "BLOB_UNKNOWN")
    await collect_after(client, clock, GRACE)
    assert blobs_in(tmp_path) == set()


async def test_an_untagged_manifest_is_kept_for_the_grace_period_from_then_on(client: Client, clock: Clock) -> None:
    first = await client.image(NAME, "latest", DATA)
    clock.advance(10 * GRACE)
    second = await client.image(NAME, "latest", b"newer")
    await collect_after(client, clock, GRACE - 1)
    await is_whole(client, NAME, first["digest"])
    await collect_after(client, clock, 2)
    (await client.manifest(NAME, first["digest"])).refused(404, "MANIFEST_UNKNOWN")
    (await client.blob(NAME, DATA)).refused(404, "BLOB_UNKNOWN")
    await is_whole(client, NAME, second["digest"])


async def test_the_content_of_a_deleted_manifest_is_kept_for_the_grace_period_from_then_on(
    client: Client, clock: Clock
) -> None:
    body = await client.image(NAME, "1", DATA)
    clock.advance(10 * GRACE)
    (await client.call("DELETE", f"/v2/{NAME}/manifests/{body['digest']}")).of(202)
    await collect_after(client, clock, GRACE - 1)
    (await client.blob(NAME, DATA)).of(200)
    await collect_after(client, clock, 2)
    (await client.blob(NAME, DATA)).refused(404, "BLOB_UNKNOWN")


async def test_deleting_in_one_repository_removes_nothing_from_another(client: Client, clock: Clock) -> None:
    for name in ("a", "a/b"):
        await client.image(name, "1", DATA)
    (await client.call("DELETE", "/v2/a/manifests/1")).of(202)
    (await client.call("DELETE", f"/v2/a/blobs/{digest(DATA)}")).of(202)
    await collect_after(client, clock, GRACE + 1)
    await is_whole(client, "a/b", "1")
    assert (await client.call("GET", "/v2/_catalog")).of(200).json == {"repositories": ["a/b"]}


async def test_the_directory_of_an_empty_repository_is_removed(client: Client, clock: Clock, tmp_path: Path) -> None:
    subject = await client.image("a/b/c", "1", DATA)
    await client.image("a/b/c", "", b"signature", subject=subject)
    await client.image("a", "1", b"stays")
    (await client.call("DELETE", "/v2/a/b/c/manifests/1")).of(202)
    await collect_after(client, clock, GRACE + 1)
    assert [path.name for path in (tmp_path / "repositories").iterdir()] == ["a"]
    assert not (tmp_path / "repositories/a/b").exists()
    await client.image("a/b/c", "1", DATA)
    await is_whole(client, "a/b/c", "1")


async def test_an_upload_without_progress_expires(client: Client, clock: Clock) -> None:
    old = (await client.call("POST", f"/v2/{NAME}/blobs/uploads/")).of(202).location
    used = (await client.call("POST", f"/v2/{NAME}/blobs/uploads/")).of(202).location
    clock.advance(599)
    (await client.call("PATCH", used, DATA)).of(202)
    counts = await collect_after(client, clock, 2)
    assert counts.uploads == 1
    (await client.call("GET", old)).refused(404, "BLOB_UPLOAD_UNKNOWN")
    (await client.call("PUT", f"{used}?digest={digest(DATA)}")).of(201)


async def test_a_damaged_manifest_stops_the_collection_before_anything_is_removed(
    client: Client, clock: Clock, tmp_path: Path
) -> None:
    damaged = await client.image(NAME, "1", DATA)
    digits = damaged["digest"].removeprefix("sha256:")
    (tmp_path / "blobs/sha256" / digits[:2] / digits).write_bytes(b"{")
    before = blobs_in(tmp_path)
    with pytest.raises(StoreCorrupt, match=digits):
        await collect_after(client, clock, GRACE + 1)
    assert blobs_in(tmp_path) == before


async def test_a_collection_that_fails_is_retried(tmp_path: Path) -> None:
    settings = {"registry_grace_seconds": 0.01, "registry_gc_seconds": 0.01}
    async with calling(a_registry(tmp_path, settings)) as client:
        damaged = await client.image(NAME, "1", DATA)
        digits = damaged["digest"].removeprefix("sha256:")
        path = tmp_path / "blobs/sha256" / digits[:2] / digits
        body = path.read_bytes()
        path.write_bytes(b"{")
        chores = Chores(client.registry.chores())
        running = asyncio.create_task(chores.run())
        try:
            await client.push("other", b"garbage")
            await until(lambda: digits in chores.reports()[0].error)
            path.write_bytes(body)
            await until(lambda: digest(b"garbage") not in blobs_in(tmp_path))
            await is_whole(client, NAME, "1")
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_collections_run_periodically(tmp_path: Path) -> None:
    settings = {"registry_grace_seconds": 0.01, "registry_gc_seconds": 0.01}
    async with calling(a_registry(tmp_path, settings)) as client:
        running = asyncio.create_task(Chores(client.registry.chores()).run())
        try:
            await client.push(NAME, DATA)
            await until(lambda: not blobs_in(tmp_path))
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_a_push_during_collections_never_loses_a_blob(tmp_path: Path) -> None:
    """With almost no grace period, and on another node: a push may be refused for a missing blob, but an accepted one is complete."""
    settings = {"registry_grace_seconds": 0.03}
    one, other = a_registry(tmp_path, settings), a_registry(tmp_path, settings)
    accepted = {"pushed": 0, "tagged again": 0}
    removed = 0

    async def collecting() -> None:
        nonlocal removed
        while True:
            removed += (await other.collect()).blobs

    async def pushing(client: Client, name: str) -> None:
        layers = [b"shared", b"also shared", name.encode()]
        body = b""
        for round in range(400):
            if round >= 40 and min(removed, *accepted.values()) > 5:
                break  # on a slow machine it takes longer
            how = "pushed" if round % 4 == 0 else "tagged again"
            if how == "pushed":
                parts = [await client.push(name, each) for each in (b"{}", *layers)]
                body = image(*parts, annotations={"round": str(round)})
                await client.put(name, digest(body), body)
            # An image that lost its tag about a grace period ago: a collection may be removing it now.
            answer = await client.put(name, "latest", index(described(IMAGE, body)), INDEX)
            if answer.status == 201:
                accepted[how] += 1
                await is_whole(client, name, "latest")
                await client.call("DELETE", f"/v2/{name}/manifests/latest")
            else:
                answer.refused(400, "MANIFEST_BLOB_UNKNOWN")
            await asyncio.sleep(0.005 * (round % 8))

    async with calling(one) as client:
        collector = asyncio.create_task(collecting())
        await asyncio.gather(*(pushing(client, name) for name in ("a", "a/b", "c")))
        collector.cancel()
        await asyncio.wait({collector})
    assert collector.cancelled()
    assert min(removed, *accepted.values()) > 5, (removed, accepted)
