"""Blobs: pushed in one request, in chunks, or mounted from another repository; pulled whole or in ranges."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.serving import until
from tests.provisioning.registering import (
    Client,
    a_registry,
    calling,
    digest,
    files_in,
)

NAME = "os-images/linux/demo"
DATA = bytes(range(256)) * 40
ABSENT = digest(b"never pushed")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with calling(a_registry(tmp_path / "registry")) as client:
        yield client


async def test_a_blob_is_pushed_in_one_request_and_pulled(client: Client) -> None:
    answer = (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?digest={digest(DATA)}", DATA)).of(201)
    assert (answer.location, answer.headers["docker-content-digest"]) == (
        f"/v2/{NAME}/blobs/{digest(DATA)}",
        digest(DATA),
    )
    pulled = (await client.call("GET", answer.location)).of(200)
    assert (pulled.body, pulled.headers["etag"]) == (DATA, f'"{digest(DATA)}"')
    assert pulled.headers["content-type"] == "application/octet-stream"
    head = (await client.call("HEAD", answer.location)).of(200)
    assert (head.body, head.headers["content-length"]) == (b"", str(len(DATA)))
    assert head.headers["docker-content-digest"] == digest(DATA)


async def test_finishing_with_the_whole_body_works_as_oras_does_it(client: Client) -> None:
    upload = await client.begin(NAME)
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}", DATA)).of(201)
    assert (await client.blob(NAME, DATA)).of(200).body == DATA


async def test_a_blob_is_pushed_in_chunks_the_last_one_with_the_final_request(client: Client) -> None:
    upload = await client.begin(NAME)
    first = await client.call("PATCH", upload, DATA[:5000], {"Content-Range": "0-4999"})
    assert first.of(202).headers["range"] == "0-4999"
    assert (await client.call("PATCH", first.location, DATA[5000:9000])).of(202).headers["range"] == "0-8999"
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}", DATA[9000:])).of(201)
    assert (await client.blob(NAME, DATA)).of(200).body == DATA


async def test_a_body_without_a_content_length_is_accepted(client: Client) -> None:
    async def streamed() -> AsyncIterator[bytes]:
        for start in range(0, len(DATA), 1000):
            yield DATA[start : start + 1000]

    upload = await client.begin(NAME)
    assert (await client.call("PATCH", upload, streamed())).of(202).headers["range"] == f"0-{len(DATA) - 1}"
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}")).of(201)
    assert (await client.blob(NAME, DATA)).of(200).body == DATA


async def test_an_empty_blob_can_be_pushed_and_pulled(client: Client) -> None:
    upload = await client.begin(NAME)
    (await client.call("PUT", f"{upload}?digest={digest(b'')}")).of(201)
    answer = (await client.blob(NAME, b"")).of(200)
    assert (answer.body, answer.headers["content-length"]) == (b"", "0")


async def test_a_chunk_out_of_order_is_refused_with_the_position_to_continue_at(client: Client) -> None:
    upload = await client.begin(NAME)
    (await client.call("PATCH", upload, DATA[:100], {"Content-Range": "0-99"})).of(202)
    for said in ("0-99", "101-200"):
        start, end = map(int, said.split("-"))
        answer = await client.call("PATCH", upload, DATA[start : end + 1], {"Content-Range": said})
        answer.refused(416, "BLOB_UPLOAD_INVALID")
        assert (answer.headers["range"], answer.location) == ("0-99", upload)
    assert (await client.call("GET", upload)).of(204).headers["range"] == "0-99"
    (await client.call("PATCH", upload, DATA[100:], {"Content-Range": f"100-{len(DATA) - 1}"})).of(202)
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}")).of(201)


@pytest.mark.parametrize(
    ("said", "code"), [("nonsense", "BLOB_UPLOAD_INVALID"), ("9-3", "BLOB_UPLOAD_INVALID"), ("0-3", "SIZE_INVALID")]
)
async def test_a_content_range_that_differs_from_the_body_is_refused(client: Client, said: str, code: str) -> None:
    upload = await client.begin(NAME)
    (await client.call("PATCH", upload, b"hello", {"Content-Range": said})).refused(400, code)
    assert (await client.call("GET", upload)).of(204).headers["range"] == "0-0"


async def test_clients_that_send_the_same_upload_cannot_mix_their_bytes(client: Client) -> None:
    upload = await client.begin(NAME)
    answers = await asyncio.gather(
        *(client.call("PATCH", upload, DATA, {"Content-Range": f"0-{len(DATA) - 1}"}) for _ in range(8))
    )
    assert sorted(answer.status for answer in answers) == [202, *[416] * 7]
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}")).of(201)


async def test_a_stalled_upload_does_not_block_other_requests(client: Client) -> None:
    go_on = asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        yield b"x" * (2 << 20)
        await go_on.wait()
        yield b"the end"

    upload = await client.begin(NAME)
    sending = asyncio.ensure_future(client.call("PATCH", upload, stalling()))
    await until(lambda: is_under_way(client, upload))
    async with asyncio.timeout(10):
        await client.image(NAME, "1", DATA)
        (await client.manifest(NAME, "1")).of(200)
        await client.registry.collect()
    assert not sending.done()
    go_on.set()
    assert (await sending).of(202).headers["range"] == f"0-{(2 << 20) + 6}"


async def is_under_way(client: Client, upload: str) -> bool:
    return (await client.call("GET", upload)).of(204).headers["range"] != "0-0"


async def test_a_finished_upload_is_not_copied(client: Client, tmp_path: Path) -> None:
    upload = await client.begin(NAME)
    (await client.call("PATCH", upload, DATA)).of(202)
    before = {path.stat().st_ino for path in files_in(tmp_path)}
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}")).of(201)
    [blob] = [path for path in files_in(tmp_path) if path.stat().st_size]
    assert {blob.stat().st_ino} == before


async def test_a_digest_mismatch_is_refused_and_leaves_nothing(client: Client, tmp_path: Path) -> None:
    upload = await client.begin(NAME)
    (await client.call("PUT", f"{upload}?digest={ABSENT}", DATA)).refused(400, "DIGEST_INVALID")
    (await client.call("GET", upload)).refused(404, "BLOB_UPLOAD_UNKNOWN")
    (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?digest={ABSENT}", DATA)).refused(400, "DIGEST_INVALID")
    (await client.blob(NAME, ABSENT)).refused(404, "BLOB_UNKNOWN")
    assert files_in(tmp_path / "registry") == []


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("sha256:abc", "DIGEST_INVALID"),
        (f"sha256:{'A' * 64}", "DIGEST_INVALID"),
        ("../../../etc/passwd", "DIGEST_INVALID"),
        (f"sha512:{'a' * 128}", "UNSUPPORTED"),
    ],
)
async def test_only_sha256_digests_are_supported(client: Client, said: str, code: str) -> None:
    upload = await client.begin(NAME)
    (await client.call("PUT", f"{upload}?digest={said}", DATA)).refused(400, code)
    (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?digest={said}", DATA)).refused(400, code)
    assert (await client.call("PUT", upload, DATA)).refused(400, "DIGEST_INVALID")
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}", DATA)).of(
        201
    )  # the upload is kept, so that the client can correct the digest


async def test_an_upload_can_be_cancelled(client: Client) -> None:
    upload = await client.begin(NAME)
    (await client.call("PATCH", upload, DATA)).of(202)
    (await client.call("DELETE", upload)).of(204)
    for method in ("GET", "PATCH", "DELETE"):
        (await client.call(method, upload)).refused(404, "BLOB_UPLOAD_UNKNOWN")
    (await client.call("GET", f"/v2/{NAME}/blobs/uploads/..%2f..%2f_tags%2fx")).refused(404, "NAME_UNKNOWN")
    (await client.call("GET", f"/v2/{NAME}/blobs/uploads/{'g' * 32}")).refused(404, "BLOB_UPLOAD_UNKNOWN")


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [("0-99", 0, 100), ("100-", 100, 10240), ("-7", 10233, 10240), ("10239-99999", 10239, 10240)],
)
async def test_a_range_is_served_also_from_the_end(client: Client, asked: str, start: int, end: int) -> None:
    await client.push(NAME, DATA)
    answer = (await client.blob(NAME, DATA, Range=f"bytes={asked}")).of(206)
    assert answer.body == DATA[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(DATA)}"


async def test_a_range_outside_the_blob_is_refused_and_one_of_another_version_ignored(client: Client) -> None:
    await client.push(NAME, DATA)
    answer = await client.blob(NAME, DATA, Range=f"bytes={len(DATA)}-")
    answer.refused(416, "SIZE_INVALID")
    assert answer.headers["content-range"] == f"bytes */{len(DATA)}"
    assert (await client.blob(NAME, DATA, Range="bytes=0-1", **{"If-Range": '"other"'})).of(200).body == DATA


async def test_content_that_the_client_already_has_is_not_sent_again(client: Client) -> None:
    await client.image(NAME, "1", DATA)
    for path in (f"/v2/{NAME}/blobs/{digest(DATA)}", f"/v2/{NAME}/manifests/1"):
        etag = (await client.call("GET", path)).of(200).headers["etag"]
        for method in ("GET", "HEAD"):
            assert (await client.call(method, path, headers={"If-None-Match": f'"other", {etag}'})).of(304).body == b""
            (await client.call(method, path, headers={"If-None-Match": '"other"'})).of(200)


async def test_a_blob_is_readable_only_in_repositories_that_have_it(client: Client) -> None:
    await client.push(NAME, DATA)
    for other in ("os-images/linux", "os-images/linux/demo/more", "elsewhere"):
        (await client.blob(other, DATA)).refused(404, "BLOB_UNKNOWN")
        (await client.call("HEAD", f"/v2/{other}/blobs/{digest(DATA)}")).of(404)


async def test_a_blob_is_mounted_from_another_repository(client: Client) -> None:
    await client.push(NAME, DATA)
    mount = f"/v2/other/blobs/uploads/?mount={digest(DATA)}&from="
    assert (await client.call("POST", mount + NAME)).of(201).location == f"/v2/other/blobs/{digest(DATA)}"
    assert (await client.blob("other", DATA)).of(200).body == DATA
    for source in ("not/there", "../../etc", ""):  # if it has no such blob, the client must send it
        upload = (
            (await client.call("POST", f"/v2/third/blobs/uploads/?mount={digest(DATA)}&from={source}")).of(202).location
        )
        (await client.call("DELETE", upload)).of(204)
    (await client.blob("third", DATA)).refused(404, "BLOB_UNKNOWN")


async def test_a_deleted_blob_is_removed_from_its_own_repository_only(client: Client) -> None:
    await client.push(NAME, DATA)
    await client.push("other", DATA)
    (await client.call("DELETE", f"/v2/{NAME}/blobs/{digest(DATA)}")).of(202)
    (await client.call("DELETE", f"/v2/{NAME}/blobs/{digest(DATA)}")).refused(404, "BLOB_UNKNOWN")
    (await client.blob(NAME, DATA)).refused(404, "BLOB_UNKNOWN")
    assert (await client.blob("other", DATA)).of(200).body == DATA
