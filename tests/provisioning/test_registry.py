"""The registry as its clients see it: every path of the spec, and each refusal with its code."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.serving import until
from tests.provisioning.registering import (
    CONFIG,
    IMAGE,
    INDEX,
    LAYER,
    Client,
    a_registry,
    calling,
    described,
    digest,
    files_in,
    image,
    index,
    only,
)

NAME = "os-images/linux/demo"
DATA = bytes(range(256)) * 40
ABSENT = digest(b"never pushed")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with calling(a_registry(tmp_path / "registry")) as client:
        yield client


async def begun(client: Client, name: str = NAME) -> str:
    return (await client.call("POST", f"/v2/{name}/blobs/uploads/")).of(202).location


async def test_the_root_says_that_this_is_a_registry(client: Client) -> None:
    for path in ("/v2/", "/v2"):
        answer = (await client.call("GET", path)).of(200)
        assert (answer.json, answer.headers["docker-distribution-api-version"]) == ({}, "registry/2.0")
    (await client.call("HEAD", "/v2/")).of(200)


async def test_a_path_or_a_method_that_is_none_is_refused_as_registries_do(client: Client) -> None:
    (await client.call("GET", "/v2/nothing/here")).refused(404, "NAME_UNKNOWN")
    answer = await client.call("PATCH", f"/v2/{NAME}/manifests/1")
    answer.refused(405, "UNSUPPORTED")
    assert answer.headers["allow"] == "GET, HEAD, PUT, DELETE"


# blobs ------------------------------------------------------------------------------------------------------------------


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
    upload = await begun(client)
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}", DATA)).of(201)
    assert (await client.blob(NAME, DATA)).of(200).body == DATA


async def test_a_blob_is_pushed_in_chunks_the_last_one_with_the_end(client: Client) -> None:
    upload = await begun(client)
    first = await client.call("PATCH", upload, DATA[:5000], {"Content-Range": "0-4999"})
    assert first.of(202).headers["range"] == "0-4999"
    assert (await client.call("PATCH", first.location, DATA[5000:9000])).of(202).headers["range"] == "0-8999"
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}", DATA[9000:])).of(201)
    assert (await client.blob(NAME, DATA)).of(200).body == DATA


async def test_a_body_without_a_length_is_taken_as_it_comes(client: Client) -> None:
    async def streamed() -> AsyncIterator[bytes]:
        for start in range(0, len(DATA), 1000):
            yield DATA[start : start + 1000]

    upload = await begun(client)
    assert (await client.call("PATCH", upload, streamed())).of(202).headers["range"] == f"0-{len(DATA) - 1}"
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}")).of(201)
    assert (await client.blob(NAME, DATA)).of(200).body == DATA


async def test_an_empty_blob_is_a_blob(client: Client) -> None:
    upload = await begun(client)
    (await client.call("PUT", f"{upload}?digest={digest(b'')}")).of(201)
    answer = (await client.blob(NAME, b"")).of(200)
    assert (answer.body, answer.headers["content-length"]) == (b"", "0")


async def test_a_chunk_out_of_order_is_told_where_to_go_on(client: Client) -> None:
    upload = await begun(client)
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
async def test_a_content_range_that_is_not_what_is_sent_is_refused(client: Client, said: str, code: str) -> None:
    upload = await begun(client)
    (await client.call("PATCH", upload, b"hello", {"Content-Range": said})).refused(400, code)
    assert (await client.call("GET", upload)).of(204).headers["range"] == "0-0"


async def test_two_who_send_the_same_upload_cannot_mix_their_bytes(client: Client) -> None:
    upload = await begun(client)
    answers = await asyncio.gather(
        *(client.call("PATCH", upload, DATA, {"Content-Range": f"0-{len(DATA) - 1}"}) for _ in range(8))
    )
    assert sorted(answer.status for answer in answers) == [202, *[416] * 7]
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}")).of(201)


async def test_an_upload_that_stalls_keeps_nobody_waiting(client: Client) -> None:
    go_on = asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        yield b"x" * (2 << 20)
        await go_on.wait()
        yield b"the end"

    upload = await begun(client)
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
    upload = await begun(client)
    (await client.call("PATCH", upload, DATA)).of(202)
    before = {path.stat().st_ino for path in files_in(tmp_path)}
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}")).of(201)
    [blob] = [path for path in files_in(tmp_path) if path.stat().st_size]
    assert {blob.stat().st_ino} == before


async def test_a_digest_mismatch_is_refused_and_leaves_nothing(client: Client, tmp_path: Path) -> None:
    upload = await begun(client)
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
async def test_only_sha256_digests_are_served(client: Client, said: str, code: str) -> None:
    upload = await begun(client)
    (await client.call("PUT", f"{upload}?digest={said}", DATA)).refused(400, code)
    (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?digest={said}", DATA)).refused(400, code)
    assert (await client.call("PUT", upload, DATA)).refused(400, "DIGEST_INVALID")
    (await client.call("PUT", f"{upload}?digest={digest(DATA)}", DATA)).of(201)  # still there for whoever corrects it


async def test_an_upload_can_be_given_up(client: Client) -> None:
    upload = await begun(client)
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


async def test_what_a_client_has_already_is_not_sent_again(client: Client) -> None:
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
    for source in ("not/there", "../../etc", ""):  # where it is not, it is to be sent
        upload = (
            (await client.call("POST", f"/v2/third/blobs/uploads/?mount={digest(DATA)}&from={source}")).of(202).location
        )
        (await client.call("DELETE", upload)).of(204)
    (await client.blob("third", DATA)).refused(404, "BLOB_UNKNOWN")


async def test_a_deleted_blob_is_gone_from_its_repository_alone(client: Client) -> None:
    await client.push(NAME, DATA)
    await client.push("other", DATA)
    (await client.call("DELETE", f"/v2/{NAME}/blobs/{digest(DATA)}")).of(202)
    (await client.call("DELETE", f"/v2/{NAME}/blobs/{digest(DATA)}")).refused(404, "BLOB_UNKNOWN")
    (await client.blob(NAME, DATA)).refused(404, "BLOB_UNKNOWN")
    assert (await client.blob("other", DATA)).of(200).body == DATA


# manifests --------------------------------------------------------------------------------------------------------------


async def test_a_manifest_is_found_by_tag_and_by_digest_as_it_was_pushed(client: Client) -> None:
    docker = "application/vnd.docker.distribution.manifest.v2+json"
    config, layer = await client.push(NAME, b"{}"), await client.push(NAME, DATA)
    body = image(config, layer).replace(IMAGE.encode(), docker.encode()) + b"\n"
    answer = (await client.put(NAME, "1.0", body, docker)).of(201)
    assert answer.location == f"/v2/{NAME}/manifests/{digest(body)}"
    for reference in ("1.0", digest(body)):
        for method in ("GET", "HEAD"):
            found = (await client.call(method, f"/v2/{NAME}/manifests/{reference}")).of(200)
            assert found.body == (body if method == "GET" else b"")
            assert (found.headers["content-type"], found.headers["content-length"]) == (docker, str(len(body)))
            assert found.headers["docker-content-digest"] == digest(body)
    (await client.manifest(NAME, "2.0")).refused(404, "MANIFEST_UNKNOWN")
    (await client.manifest("other", digest(body))).refused(404, "MANIFEST_UNKNOWN")


async def test_a_manifest_must_refer_to_what_is_there(client: Client) -> None:
    config = await client.push(NAME, b"{}")
    await client.push("other", DATA)
    body = image(config, described(LAYER, DATA), described(LAYER, b"nowhere"))
    errors = (await client.put(NAME, "1", body)).refused(400, "MANIFEST_BLOB_UNKNOWN")
    assert [error["detail"]["digest"] for error in errors] == [digest(DATA), digest(b"nowhere")]
    (await client.put(NAME, "1", index(described(IMAGE, b"nowhere")), INDEX)).refused(400, "MANIFEST_BLOB_UNKNOWN")
    (await client.manifest(NAME, "1")).refused(404, "MANIFEST_UNKNOWN")
    (await client.put(NAME, "1", image({**config, "size": 3}))).refused(400, "MANIFEST_INVALID")


async def test_an_index_is_checked_down_to_the_last_blob(client: Client) -> None:
    inner = index(await client.image(NAME, "", DATA))
    (await client.put(NAME, digest(inner), inner, INDEX)).of(201)
    (await client.put(NAME, "1", index(described(INDEX, inner)), INDEX)).of(201)
    (await client.call("DELETE", f"/v2/{NAME}/blobs/{digest(DATA)}")).of(202)
    errors = (await client.put(NAME, "2", index(described(INDEX, inner)), INDEX)).refused(400, "MANIFEST_BLOB_UNKNOWN")
    assert [error["detail"]["digest"] for error in errors] == [digest(DATA)]


async def test_a_layer_that_may_not_be_passed_on_need_not_be_there(client: Client) -> None:
    config = await client.push(NAME, b"{}")
    foreign = described("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", b"at its maker's")
    undistributed = described("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", b"too")
    (await client.put(NAME, "1", image(config, foreign, undistributed))).of(201)


async def test_a_manifest_under_a_digest_must_have_it(client: Client) -> None:
    body = image(await client.push(NAME, b"{}"))
    (await client.put(NAME, ABSENT, body)).refused(400, "DIGEST_INVALID")
    (await client.put(NAME, digest(body), body)).of(201)


CONFIG_OF_NOTHING = described(CONFIG, b"{}")


NO_MANIFESTS = {
    "nothing": b"",
    "a list": b"[]",
    "no JSON": b"not JSON",
    "an old schema": b'{"schemaVersion":1,"fsLayers":[]}',
    "nested too deeply": b"[" * 100_000,
    "a digest that is a number": image({**CONFIG_OF_NOTHING, "digest": 5}),
    "a reference without a digest": image({"mediaType": CONFIG}),
    "an image and an index": image(CONFIG_OF_NOTHING, manifests=[]),
    "annotations that are no text": image(CONFIG_OF_NOTHING, annotations={"a": 1}),
    "another media type inside": image(CONFIG_OF_NOTHING).replace(b"image.manifest.v1", b"image.other.v1"),
    "too many references": image(CONFIG_OF_NOTHING, *[CONFIG_OF_NOTHING] * 10_000),
}


@pytest.mark.parametrize("what", NO_MANIFESTS)
async def test_what_is_no_manifest_is_refused(client: Client, what: str) -> None:
    await client.push(NAME, b"{}")
    (await client.put(NAME, "1", NO_MANIFESTS[what])).refused(400, "MANIFEST_INVALID")
    assert (await client.put(NAME, "-1", image(CONFIG_OF_NOTHING))).refused(400, "MANIFEST_INVALID")


async def test_a_manifest_has_a_bound(client: Client) -> None:
    config = await client.push(NAME, b"{}")
    room = (4 << 20) - len(image(config, annotations={"a": ""}))
    (await client.put(NAME, "1", image(config, annotations={"a": "x" * (room + 1)}))).refused(413, "SIZE_INVALID")
    (await client.put(NAME, "1", image(config, annotations={"a": "x" * room}))).of(201)


async def test_a_tag_is_deleted_alone_and_a_manifest_with_its_tags(client: Client) -> None:
    first, second = await client.image(NAME, "1", DATA), await client.image(NAME, "2", b"other")
    (await client.put(NAME, "latest", (await client.manifest(NAME, "2")).body)).of(201)
    (await client.call("DELETE", f"/v2/{NAME}/manifests/1")).of(202)
    (await client.manifest(NAME, "1")).refused(404, "MANIFEST_UNKNOWN")
    (await client.manifest(NAME, first["digest"])).of(200)
    (await client.call("DELETE", f"/v2/{NAME}/manifests/{second['digest']}")).of(202)
    assert (await client.call("GET", f"/v2/{NAME}/tags/list")).of(200).json == {"name": NAME, "tags": []}
    for gone in ("1", "2", second["digest"]):
        (await client.call("DELETE", f"/v2/{NAME}/manifests/{gone}")).refused(404, "MANIFEST_UNKNOWN")


# lists ------------------------------------------------------------------------------------------------------------------


async def pages(client: Client, path: str, key: str) -> list[list[str]]:
    found = []
    while path:
        answer = (await client.call("GET", path)).of(200)
        found.append(answer.json[key])
        path = answer.headers.get("link", "").partition(">")[0].removeprefix("<")
    return found


async def test_tags_come_in_order_and_in_pages(client: Client) -> None:
    for tag in ("b", "a", "1.0", "B"):
        await client.image(NAME, tag)
    assert await pages(client, f"/v2/{NAME}/tags/list", "tags") == [["1.0", "B", "a", "b"]]
    assert await pages(client, f"/v2/{NAME}/tags/list?n=3", "tags") == [["1.0", "B", "a"], ["b"]]
    assert await pages(client, f"/v2/{NAME}/tags/list?last=B", "tags") == [["a", "b"]]
    assert await pages(client, f"/v2/{NAME}/tags/list?n=0", "tags") == [[]]
    (await client.call("GET", f"/v2/{NAME}/tags/list?n=-1")).refused(400, "UNSUPPORTED")
    (await client.call("GET", "/v2/not/there/tags/list")).refused(404, "NAME_UNKNOWN")


async def test_the_catalog_has_every_repository_however_nested(client: Client) -> None:
    names = ["a", "a-b", "a/b", "a/b/c/d/e", "a/manifests/b", "z/blobs/uploads"]
    for name in names:
        await client.image(name, "1", name.encode())
    await client.push("only/a/blob", DATA)
    assert await pages(client, "/v2/_catalog", "repositories") == [sorted(names)]
    assert await pages(client, "/v2/_catalog?n=4", "repositories") == [sorted(names)[:4], sorted(names)[4:]]
    for name in names:
        (await client.blob(name, name.encode())).of(200)


async def test_referrers_are_listed_by_their_subject_and_filtered_by_kind(client: Client) -> None:
    subject = await client.image(NAME, "1", DATA)
    path = f"/v2/{NAME}/referrers/{subject['digest']}"
    assert (await client.call("GET", path)).of(200).json == {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
    config = {**await client.push(NAME, b"{}"), "mediaType": "application/vnd.example.sbom"}
    sbom = image(config, subject=subject, annotations={"by": "us"})
    signature = image(config, subject=subject, artifactType="application/vnd.example.signature")
    for body in (sbom, signature):
        answer = (await client.put(NAME, digest(body), body)).of(201)
        assert answer.headers["oci-subject"] == subject["digest"]
    expected: dict[str, Any] = {
        digest(sbom): {
            **described(IMAGE, sbom),
            "artifactType": "application/vnd.example.sbom",
            "annotations": {"by": "us"},
        },
        digest(signature): {**described(IMAGE, signature), "artifactType": "application/vnd.example.signature"},
    }
    answer = (await client.call("GET", path)).of(200)
    assert answer.headers["content-type"] == INDEX
    assert {each["digest"]: each for each in answer.json["manifests"]} == expected
    filtered = (await client.call("GET", path + "?artifactType=application/vnd.example.sbom")).of(200)
    assert filtered.headers["oci-filters-applied"] == "artifactType"
    assert filtered.json["manifests"] == [expected[digest(sbom)]]
    (await client.call("DELETE", f"/v2/{NAME}/manifests/{digest(sbom)}")).of(202)
    assert (await client.call("GET", path)).of(200).json["manifests"] == [expected[digest(signature)]]


async def test_many_referrers_come_in_pages_that_clients_can_read(client: Client) -> None:
    config = await client.push(NAME, b"{}")
    subject = described(IMAGE, b"comes later")
    bodies = [image(config, subject=subject, annotations={"n": str(n) * (1 << 20)}) for n in range(5)]
    for body in bodies:
        (await client.put(NAME, digest(body), body)).of(201)
    found = await pages(client, f"/v2/{NAME}/referrers/{subject['digest']}", "manifests")
    assert [len(page) for page in found] == [2, 2, 1]
    assert sorted(each["digest"] for page in found for each in page) == sorted(map(digest, bodies))  # type: ignore[index]


# names, bounds, who may -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["..", "../x", "a/../b", "A", "a//b", "/a", "a/", "_tags", "a/_tags", "a..b", "a" * 256, "a b", "ä"]
)
async def test_a_name_never_leaves_the_directory(client: Client, tmp_path: Path, name: str) -> None:
    escaped = quote(name, safe="").replace(".", "%2e")
    for method, rest in [
        ("POST", "blobs/uploads/"),
        ("GET", "manifests/1"),
        ("PUT", "manifests/1"),
        ("GET", "tags/list"),
    ]:
        (await client.call(method, f"/v2/{escaped}/{rest}")).refused(400, "NAME_INVALID")
    assert not (tmp_path / "registry").exists()


async def test_the_longest_name_is_served(client: Client) -> None:
    for name in ("a" * 255, "/".join(["ab"] * 85)):
        assert len(name) <= 255
        await client.image(name, "t" * 128, DATA)
        (await client.manifest(name, "t" * 128)).of(200)


async def test_a_blob_over_the_bound_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async def streamed() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    root = tmp_path / "registry"
    async with calling(a_registry(root, {"registry_max_blob_bytes": 2500})) as client:
        for body in (b"x" * 2501, streamed()):
            upload = await begun(client)
            (await client.call("PATCH", upload, body)).refused(413, "SIZE_INVALID")
            (await client.call("GET", upload)).refused(404, "BLOB_UPLOAD_UNKNOWN")
        (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?digest={ABSENT}", streamed())).refused(
            413, "SIZE_INVALID"
        )
        assert files_in(root) == []
        await client.push(NAME, b"x" * 2500)


async def test_who_may_not_is_told_how_to_say_who_they_are(tmp_path: Path) -> None:
    admit = only(puller="p", puller_may="registry:pull", pusher="q", pusher_may="registry:push", both="b")
    async with calling(a_registry(tmp_path, admit=admit)) as client:
        for method, path in [
            ("GET", "/v2/"),
            ("GET", f"/v2/{NAME}/manifests/1"),
            ("POST", f"/v2/{NAME}/blobs/uploads/"),
        ]:
            answer = await client.call(method, path)
            answer.refused(401, "UNAUTHORIZED")
            assert answer.headers["www-authenticate"] == 'Basic realm="chargehand"'
            assert answer.headers["docker-distribution-api-version"] == "registry/2.0"
            (await client.of("puller:wrong").call(method, path)).refused(401, "UNAUTHORIZED")
        puller, pusher = client.of("puller:p"), client.of("pusher:q")
        await client.of("both:b").image(NAME, "1", DATA)
        for one in (puller, pusher):
            (await one.call("GET", "/v2/")).of(200)
        (await puller.manifest(NAME, "1")).of(200)
        (await puller.call("POST", f"/v2/{NAME}/blobs/uploads/")).refused(403, "DENIED")
        (await puller.call("DELETE", f"/v2/{NAME}/manifests/1")).refused(403, "DENIED")
        upload = await begun(pusher)
        (await puller.call("GET", upload)).refused(403, "DENIED")
        (await pusher.manifest(NAME, "1")).refused(403, "DENIED")


async def test_everybody_may_pull_where_that_is_set_and_nobody_push(tmp_path: Path) -> None:
    async with calling(a_registry(tmp_path, {"registry_anonymous_pull": True}, only(both="b"))) as client:
        await client.of("both:b").image(NAME, "1", DATA)
        (await client.manifest(NAME, "1")).of(200)
        (await client.blob(NAME, DATA)).of(200)
        (await client.call("POST", f"/v2/{NAME}/blobs/uploads/")).refused(401, "UNAUTHORIZED")
        assert (await client.call("GET", "/v2/")).of(200).headers["www-authenticate"] == 'Basic realm="chargehand"'
        (await client.of("both:wrong").call("GET", "/v2/")).refused(401, "UNAUTHORIZED")
