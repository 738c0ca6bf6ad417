"""The registry in its own process: it uses little memory, survives a kill at any moment, and survives a full disk."""

import asyncio
import hashlib
import os
import re
import resource
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.api.serving import until
from tests.provisioning.registering import Client, a_registry, calling, digest, elsewhere, files_in, listening

NAME = "os-images/big/disk"
MIB = 1 << 20
BIG_MIB = 1024 if os.environ.get("CHARGEHAND_TEST_BIG") else 200  # 1 GiB takes 15 s, and 30 s beside other tests
MOST_MORE = 100 * MIB
BLOCK = hashlib.shake_128(b"a block").digest(MIB)


@asynccontextmanager
async def talking(address: str, root: Path) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=110)) as session:
        yield Client(address, session, a_registry(root))


def most_memory(process: asyncio.subprocess.Process) -> int:
    """Return the peak of the resident memory, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match
    return int(match[1]) * 1024


def blocks(start: int, end: int) -> list[bytes]:
    """Return blocks of a MiB that begin with their number, so that no two are equal."""
    return [number.to_bytes(8, "big") + BLOCK[8:] for number in range(start, end)]


async def sent(start: int, end: int) -> AsyncIterator[bytes]:
    for number in range(start, end):
        yield blocks(number, number + 1)[0]


async def is_beyond(client: Client, upload: str, size: int) -> bool:
    """Return whether the upload has more bytes than `size`."""
    return int((await client.call("GET", upload)).of(204).headers["range"].removeprefix("0-")) >= size


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="how much memory was used is read from /proc")
async def test_a_large_blob_is_pushed_and_pulled_in_little_memory(tmp_path: Path) -> None:
    expected = hashlib.sha256()
    for number in range(BIG_MIB):
        expected.update(blocks(number, number + 1)[0])
    said = f"sha256:{expected.hexdigest()}"
    async with elsewhere(tmp_path) as (process, address), talking(address, tmp_path) as client:
        await client.push(NAME, b"warm")
        before = most_memory(process)
        took = {}

        began = time.monotonic()
        (await client.call("POST", f"/v2/{NAME}/one/blobs/uploads/?digest={said}", sent(0, BIG_MIB))).of(201)
        took["monolithic push"] = time.monotonic() - began

        began = time.monotonic()
        upload = (await client.call("POST", f"/v2/{NAME}/blobs/uploads/")).of(202).location
        for start in range(0, BIG_MIB, 50):
            (await client.call("PATCH", upload, sent(start, min(BIG_MIB, start + 50)))).of(202)
        (await client.call("PUT", f"{upload}?digest={said}")).of(201)
        took["chunked push"] = time.monotonic() - began

        began = time.monotonic()
        pulled = hashlib.sha256()
        async with client.session.get(f"http://{address}/v2/{NAME}/blobs/{said}") as response:
            assert response.content_length == BIG_MIB * MIB
            async for piece in response.content.iter_any():
                pulled.update(piece)
        took["pull"] = time.monotonic() - began
        more = most_memory(process) - before

    shutil.rmtree(tmp_path)  # pytest would keep it

    rates = ", ".join(f"{what} {BIG_MIB / seconds:.0f} MiB/s" for what, seconds in took.items())
    print(f"{BIG_MIB} MiB: {rates}, memory {before / MIB:.0f} MiB + {more / MIB:.0f} MiB")
    assert pulled.hexdigest() == expected.hexdigest()
    assert more < MOST_MORE


async def test_an_upload_is_resumed_after_the_server_was_killed_in_the_middle_of_it(tmp_path: Path) -> None:
    data = b"".join(blocks(0, 8))
    half_way = asyncio.Event()

    async def broken() -> AsyncIterator[bytes]:
        for block in blocks(2, 5):
            yield block
        half_way.set()
        await asyncio.Event().wait()

    async with elsewhere(tmp_path) as (process, address), talking(address, tmp_path) as client:
        upload = (await client.call("POST", f"/v2/{NAME}/blobs/uploads/")).of(202).location
        (await client.call("PATCH", upload, data[: 2 * MIB])).of(202)
        sending = asyncio.ensure_future(client.call("PATCH", upload, broken()))
        await half_way.wait()
        await until(lambda: is_beyond(client, upload, 2 * MIB))
        process.kill()
        with pytest.raises(aiohttp.ClientError):
            await sending
        await process.wait()

    async with elsewhere(tmp_path) as (_, address), talking(address, tmp_path) as client:
        offset = int((await client.call("GET", upload)).of(204).headers["range"].partition("-")[2]) + 1
        assert 2 * MIB < offset <= 5 * MIB
        rest = {"Content-Range": f"{offset}-{len(data) - 1}"}
        (await client.call("PATCH", upload, data[offset:], rest)).of(202)
        (await client.call("PUT", f"{upload}?digest={digest(data)}")).of(201)
        assert (await client.blob(NAME, data)).of(200).body == data


async def test_an_upload_may_continue_at_another_node(tmp_path: Path) -> None:
    data = b"".join(blocks(0, 4))
    async with calling(a_registry(tmp_path)) as one, calling(a_registry(tmp_path)) as other:
        upload = (await one.call("POST", f"/v2/{NAME}/blobs/uploads/")).of(202).location
        for number, block in enumerate(blocks(0, 4)):
            (await (one, other)[number % 2].call("PATCH", upload, block)).of(202)
        (await one.call("PUT", f"{upload}?digest={digest(data)}")).of(201)
        assert (await other.blob(NAME, data)).of(200).body == data


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("header", ["Content-Length: 3000000", "Transfer-Encoding: chunked"])
async def test_what_arrived_before_the_connection_broke_is_kept(tmp_path: Path, method: str, header: str) -> None:
    data = blocks(0, 3)[0] + blocks(0, 3)[1]
    async with listening(a_registry(tmp_path)) as address, talking(address, tmp_path) as client:
        upload = (await client.call("POST", f"/v2/{NAME}/blobs/uploads/")).of(202).location
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        sent_first = data[: MIB + 5]
        body = sent_first if header.startswith("Content") else b"%x\r\n%b\r\n" % (len(sent_first), sent_first)
        head = f"{method} {upload}?digest={digest(data)} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await until(lambda: is_beyond(client, upload, len(sent_first) - 1))
        (await client.call("PUT", f"{upload}?digest={digest(data)}", data[MIB + 5 :])).of(201)
        assert (await client.blob(NAME, data)).of(200).body == data
        assert reader.at_eof() or not await reader.read()


async def test_a_full_disk_is_reported_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the process sees no difference."""
    async with elsewhere(tmp_path) as (process, address), talking(address, tmp_path) as client:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (3 * MIB, 3 * MIB))
        upload = (await client.call("POST", f"/v2/{NAME}/blobs/uploads/")).of(202).location
        data = b"".join(blocks(0, 5))
        answer = await client.call("PATCH", upload, data)
        answer.refused(507, "UNAVAILABLE")
        assert int(answer.headers["retry-after"]) > 0
        (await client.call("GET", upload)).refused(404, "BLOB_UPLOAD_UNKNOWN")
        (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?digest={digest(data)}", data)).refused(
            507, "UNAVAILABLE"
        )
        assert files_in(tmp_path) == []
        await client.push(NAME, b"what fits")
