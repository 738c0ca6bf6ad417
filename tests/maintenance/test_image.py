"""Images from a real registry: resolved, downloaded over dropped connections, unpacked, verified, and erased if they are wrong."""

import asyncio
import gzip
import hashlib
import io
import json
import lzma
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chargehand.errors import Unauthenticated
from provision.disks import look_at
from provision.errors import Exit, Trouble
from provision.image import chosen, image_linux, to_disk, untar, write_raw
from provision.layout import MIB
from provision.oci import Blob, DigestMismatch, Reference, resolve, stream
from provision.pipeline import packing, pour
from provision.places import Places
from provision.run import CommandFailed
from provision.wire import PATIENCE, fetch
from tests.maintenance.cutting import cutting
from tests.provisioning.registering import (
    CONFIG,
    INDEX,
    LAYER,
    Client,
    a_registry,
    calling,
    digest,
    image,
    index,
)

NAME = "os-images/demo"
TOKEN = "cht_the-token-of-a-job"
NOISE = hashlib.shake_128(b"noise").digest(3_000_000)


async def only_the_job(req: Any, _scope: str) -> str:
    if req.method in ("GET", "HEAD") and req.get_header("authorization") != f"Bearer {TOKEN}":
        raise Unauthenticated("not this job")
    return "default"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with calling(a_registry(tmp_path / "registry", admit=only_the_job)) as client:
        yield client


def tree(tmp_path: Path) -> bytes:
    """Return a tar with attributes that are easily lost: an owner, a mode, a link, a hole."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, mode, content in (("etc/hostname", 0o644, b"image\n"), ("usr/bin/su", 0o4755, b"\0" * 100_000)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid, entry.gid = len(content), mode, os.getuid(), os.getgid()
            tar.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("bin")
        link.type, link.linkname = tarfile.SYMTYPE, "usr/bin"
        tar.addfile(link)
    return made.getvalue()


async def pull(url: str, registry: str, token: str = TOKEN) -> tuple[Blob, bytes]:
    def work() -> tuple[Blob, bytes]:
        blob = resolve(url, registry, token)
        return blob, b"".join(stream(blob))

    return await asyncio.to_thread(work)


# resolving ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.example/b", Reference("a.example", "b", "latest", "")),
        ("a:5000/b/c:1.0", Reference("a:5000", "b/c", "1.0", "")),
        ("[::1]:5000/b@sha256:" + "0" * 64, Reference("[::1]:5000", "b", "latest", "sha256:" + "0" * 64)),
        ("a/b:t@sha256:" + "1" * 64, Reference("a", "b", "t", "sha256:" + "1" * 64)),
    ],
)
def test_a_reference_is_parsed(text: str, expected: Reference) -> None:
    assert Reference.read(text) == expected


def test_only_the_registry_of_the_controller_gets_the_token_and_may_use_http() -> None:
    own = Reference.read("10.0.2.2:8484/a")
    assert own.base("http://10.0.2.2:8484") == "http://10.0.2.2:8484/v2/a"
    assert Reference.read("c.example/a").base("https://c.example:443") == "https://c.example/v2/a"
    other = Reference.read("registry.example/a")
    assert other.base("http://10.0.2.2:8484") == "https://registry.example/v2/a"
    assert (own.is_in("http://10.0.2.2:8484"), other.is_in("http://10.0.2.2:8484"), own.is_in("")) == (
        True,
        False,
        False,
    )
    assert not Reference.read("10.0.2.2:8485/a").is_in("http://10.0.2.2:8484")


async def test_an_image_is_pulled_by_tag_and_by_digest_with_the_jobs_token(client: Client) -> None:
    described = await client.image(NAME, "1", NOISE)
    own = f"http://{client.address}"
    for reference in (":1", f"@{described['digest']}", f":gone@{described['digest']}"):
        blob, content = await pull(f"{client.address}/{NAME}{reference}", own)
        assert (blob.digest, blob.size, content) == (digest(NOISE), len(NOISE), NOISE)
        assert TOKEN not in repr(blob)
    with pytest.raises(Trouble, match="answered 401") as caught:
        await pull(f"{client.address}/{NAME}:1", own, "another")
    assert caught.value.code == Exit.REGISTRY
    with pytest.raises(Trouble, match="answered 404"):
        await pull(f"{client.address}/{NAME}:2", own)


async def test_the_image_for_this_architecture_is_chosen_from_an_index(client: Client) -> None:
    here = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    entries = [
        {**await client.image(NAME, "", data), "platform": {"architecture": name, "os": "linux"}}
        for name, data in (("s390x", b"other"), (here, b"this"))
    ]
    (await client.put(NAME, "many", index(*entries), INDEX)).of(201)
    assert (await pull(f"{client.address}/{NAME}:many", f"http://{client.address}"))[1] == b"this"
    (await client.put(NAME, "one", index(entries[0], {**entries[0], "platform": {"architecture": "m68k"}}), INDEX)).of(
        201
    )
    with pytest.raises(Trouble, match=f"not there for {here}"):
        await pull(f"{client.address}/{NAME}:one", f"http://{client.address}")


async def test_an_image_with_several_layers_is_refused(client: Client) -> None:
    await client.image(NAME, "1", b"one", b"two")
    with pytest.raises(Trouble, match="has 2 layers"):
        await pull(f"{client.address}/{NAME}:1", f"http://{client.address}")


# downloading ----------------------------------------------------------------------------------------------------------


async def test_a_download_resumes_after_a_dropped_connection(client: Client) -> None:
    await client.image(NAME, "1", NOISE)
    async with cutting(client.address, [0, 100, 1_500_000, 10, 600_000, 700_000]) as address:
        blob = Blob(digest(NOISE), len(NOISE), LAYER, f"http://{address}/v2/{NAME}/blobs/{digest(NOISE)}", TOKEN)
        content = await asyncio.to_thread(lambda: b"".join(stream(blob)))
    assert content == NOISE


async def test_a_download_without_progress_fails_and_its_error_holds_no_secret(client: Client) -> None:
    waits: list[float] = []
    async with cutting(client.address, [0] * 100) as address:
        url = f"http://{address}/v2/{NAME}/blobs/{digest(NOISE)}?signature=secret"
        with pytest.raises(Trouble, match=f"{PATIENCE} times in a row") as caught:
            await asyncio.to_thread(lambda: list(fetch(url, token=TOKEN, sleep=waits.append)))
    assert len(waits) == PATIENCE - 1
    assert waits == sorted(waits)
    assert "secret" not in str(caught.value)


async def test_without_a_known_size_content_length_is_used(client: Client) -> None:
    await client.push(NAME, NOISE)
    async with cutting(client.address, [1_000_000]) as address:
        url = f"http://{address}/v2/{NAME}/blobs/{digest(NOISE)}"
        pieces = await asyncio.to_thread(lambda: list(fetch(url, token=TOKEN, sleep=lambda _: None)))
    assert b"".join(pieces) == NOISE


async def test_content_with_another_digest_than_in_the_manifest_is_refused(client: Client) -> None:
    await client.push(NAME, NOISE)
    for wrong in (
        Blob(digest(b"x"), len(NOISE), LAYER, "", TOKEN),
        Blob(digest(NOISE), len(NOISE) - 1, LAYER, "", TOKEN),
    ):
        blob = Blob(wrong.digest, wrong.size, LAYER, f"http://{client.address}/v2/{NAME}/blobs/{digest(NOISE)}", TOKEN)
        with pytest.raises(DigestMismatch) as caught:
            await asyncio.to_thread(lambda blob=blob: list(stream(blob)))  # type: ignore[misc]
        assert caught.value.code == Exit.DIGEST


# unpacking ------------------------------------------------------------------------------------------------------------


def packed(how: str, data: bytes) -> bytes:
    match how:
        case "gzip":
            return gzip.compress(data[:50_000]) + gzip.compress(data[50_000:])
        case "xz":
            return lzma.compress(data)
        case "zstd":
            return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout
    return data


def in_pieces(data: bytes) -> Any:
    cuts = [0, 1, 3, *range(7, len(data), 7777), len(data)]
    return (data[start:end] for start, end in pairwise(cuts))


PACKINGS = ["", "gzip", *(pytest.param(how, marks=pytest.mark.tools(how)) for how in ("xz", "zstd"))]


@pytest.mark.parametrize("how", PACKINGS)
@pytest.mark.parametrize("named", [False, True])
def test_a_tree_is_unpacked_with_every_compression(tmp_path: Path, how: str, named: bool) -> None:
    target, content = tmp_path / "target", packed(how, tree(tmp_path))
    target.mkdir()
    seen: list[int] = []
    pour(in_pieces(content), f"{LAYER}+{how}" if named and how else LAYER, untar(str(target)), seen.append)
    assert (target / "bin/su").stat().st_mode & 0o7777 == 0o4755
    assert (target / "etc/hostname").read_text() == "image\n"
    assert seen[-1] == len(content)
    assert seen == sorted(seen)


def test_the_compression_is_found_by_the_media_type_or_else_by_the_first_bytes() -> None:
    assert packing("application/vnd.oci.image.layer.v1.tar+gzip", b"") == "gzip"
    assert packing("application/vnd.docker.image.rootfs.diff.tar.gzip", b"") == "gzip"
    assert packing("application/octet-stream", b"\x28\xb5\x2f\xfd") == "zstd"
    assert packing("application/octet-stream", b"\xfd7zXZ\0") == "xz"
    assert packing("application/octet-stream", b"\xeb\x63\x90") == ""


def test_a_stream_that_is_not_a_tar_and_one_that_is_cut_off_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="tar"):
        pour(in_pieces(NOISE), LAYER, untar(str(tmp_path)))
    with pytest.raises(CommandFailed, match=r"gzip|tar"):
        pour(in_pieces(packed("gzip", tree(tmp_path))[:-30]), LAYER, untar(str(tmp_path)))

    def breaks() -> Any:
        yield tree(tmp_path)[:20_000]
        raise DigestMismatch("it", "a", "b")

    with pytest.raises(DigestMismatch):
        pour(breaks(), LAYER, untar(str(tmp_path)))
    with pytest.raises(Trouble, match="cannot be started"):
        pour(in_pieces(b"x"), LAYER, ["no-such-program"])


# onto a disk (a file, here) -------------------------------------------------------------------------------------------


def whole_disk(tmp_path: Path) -> bytes:
    """Return an image of 4 MiB with a partition table."""
    path = tmp_path / "image.raw"
    path.write_bytes(hashlib.shake_128(b"disk").digest(4 * MIB))
    table = b'label: gpt\nstart=2048, size=2048, name="data"\n'
    subprocess.run(["sfdisk", "--quiet", str(path)], input=table, capture_output=True, check=True)
    return path.read_bytes()


def table_of(disk: Path) -> Any:
    done = subprocess.run(["sfdisk", "--json", str(disk)], capture_output=True, check=True)
    return json.loads(done.stdout)["partitiontable"]


def on_disk(tmp_path: Path, client: Client, size: int) -> tuple[Places, Path]:
    places, disk = Places(tmp_path / "root"), tmp_path / "disk"
    disk.write_bytes(b"\xaa" * size)
    places.write("disk.json", {"path": str(disk)})
    places.write("report.json", {"registry_url": f"http://{client.address}", "token": TOKEN})
    return places, disk


@pytest.mark.tools("sfdisk")
async def test_a_whole_disk_is_written_once_and_a_second_run_changes_nothing(client: Client, tmp_path: Path) -> None:
    content = whole_disk(tmp_path)
    await client.image(NAME, "raw", gzip.compress(content))
    places, disk = on_disk(tmp_path, client, 8 * MIB)
    recipe = {"oci_url": f"{client.address}/{NAME}:raw", "image_format": "raw-disk"}
    moved: list[tuple[int, int]] = []
    await asyncio.to_thread(write_raw, places, recipe, lambda *each: moved.append(each))
    written = disk.read_bytes()
    assert written[MIB : 3 * MIB] == content[MIB : 3 * MIB]
    assert written[4 * MIB : 7 * MIB] == b"\xaa" * 3 * MIB
    assert written[-512:-504] == b"EFI PART", "the copy of the table is where this disk ends"
    assert [each["name"] for each in table_of(disk)["partitions"]] == ["data"]
    assert moved[-1][0] == moved[-1][1] == len(gzip.compress(content))
    assert not (places.run / "image-head").exists()
    disk.write_bytes(b"booted, and changed since")
    await asyncio.to_thread(image_linux, places, recipe, lambda *each: moved.append(each))
    assert disk.read_bytes() == b"booted, and changed since"


@pytest.mark.tools("sfdisk")
async def test_an_image_without_a_partition_table_is_an_error_and_is_erased(client: Client, tmp_path: Path) -> None:
    await client.image(NAME, "raw", NOISE)
    places, disk = on_disk(tmp_path, client, 4 * MIB)
    recipe = {"oci_url": f"{client.address}/{NAME}:raw", "image_format": "raw-disk"}
    with pytest.raises(Trouble, match="no partition table") as caught:
        await asyncio.to_thread(write_raw, places, recipe, lambda *_each: None)
    assert (caught.value.code, places.has("image.json")) == (Exit.IMAGE, False)
    assert disk.read_bytes()[:MIB] == bytes(MIB)


@pytest.mark.tools("sfdisk")
async def test_a_disk_has_no_partition_table_while_it_is_written(client: Client, tmp_path: Path) -> None:
    """So a power cut in the middle leaves neither the new nor the old table."""
    content = whole_disk(tmp_path) + NOISE
    await client.image(NAME, "raw", content)
    places, disk = on_disk(tmp_path, client, 8 * MIB)
    disk.write_bytes(whole_disk(tmp_path) + b"\xaa" * 4 * MIB)
    seen: list[bytes] = []

    def look(count: int, size: int) -> None:
        seen.append(disk.read_bytes()[:MIB])

    recipe = {"oci_url": f"{client.address}/{NAME}:raw", "image_format": "raw-disk"}
    await asyncio.to_thread(write_raw, places, recipe, look)
    assert len(seen) > 2
    assert set(seen) == {bytes(MIB)}
    assert table_of(disk)["label"] == "gpt"


async def test_a_missing_disk_is_not_created_as_a_file(client: Client, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(CommandFailed, match="No such file"):
        pour(in_pieces(NOISE), LAYER, to_disk(str(gone), str(tmp_path / "head")))
    assert not gone.exists()


def _is_disk(name: str) -> bool:
    """Is this a disk that lsblk shows? It does not show loop devices without a file."""
    return Path("/dev", name).is_block_device() and Path("/sys/block", name, "size").read_text().strip() != "0"


@pytest.mark.tools("lsblk")
def test_another_disk_with_the_same_name_is_refused(tmp_path: Path) -> None:
    name = next(filter(_is_disk, sorted(os.listdir("/sys/block"))), None)
    if name is None:
        pytest.fail("this machine shows no disk")
    seen = look_at(f"/dev/{name}")
    places = Places(tmp_path)
    kept = {"path": seen.path, "size": seen.size, "serial": seen.serial, "wwn": seen.wwn}
    places.write("disk.json", kept)
    assert chosen(places) == seen.path
    for other in ({"size": seen.size + 512}, {"serial": "another"}, {"wwn": "0x5000c500a1b2c3d4"}):
        places.write("disk.json", {**kept, **other})
        with pytest.raises(Trouble, match="is not the disk that was chosen") as caught:
            chosen(places)
        assert caught.value.code == Exit.DISK


async def test_a_disk_with_a_wrong_digest_is_made_unbootable(client: Client, tmp_path: Path) -> None:
    layer = await client.push(NAME, NOISE)
    config = {**await client.push(NAME, b"{}"), "mediaType": CONFIG}
    (await client.put(NAME, "raw", image(config, layer))).of(201)
    wrong = bytearray(NOISE)
    wrong[2_500_000] ^= 1
    for stored in (tmp_path / "registry").rglob(digest(NOISE)[7:]):
        if stored.stat().st_size == len(NOISE):
            stored.chmod(0o600)
            stored.write_bytes(wrong)  # as if the disk returned wrong data
    places, disk = on_disk(tmp_path, client, 4 * MIB)
    recipe = {"oci_url": f"{client.address}/{NAME}:raw", "image_format": "raw-disk"}
    with pytest.raises(DigestMismatch):
        await asyncio.to_thread(write_raw, places, recipe, lambda *_each: None)
    left = disk.read_bytes()
    assert left[:MIB] == left[-MIB:] == bytes(MIB)
    assert not places.has("image.json")


def test_the_disk_is_one_argument_of_the_writer() -> None:
    assert to_disk("/dev/x;reboot", "/run/head")[-2:] == ("/dev/x;reboot", "/run/head")
