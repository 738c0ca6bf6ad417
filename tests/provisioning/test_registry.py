"""The registry's API: manifests, lists, names and scopes; each refusal with its code."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

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


async def test_the_root_says_that_this_is_a_registry(client: Client) -> None:
    for path in ("/v2/", "/v2"):
        answer = (await client.call("GET", path)).of(200)
        assert (answer.json, answer.headers["docker-distribution-api-version"]) == ({}, "registry/2.0")
    (await client.call("HEAD", "/v2/")).of(200)


async def test_an_unknown_path_or_method_is_refused_with_an_oci_error(client: Client) -> None:
    (await client.call("GET", "/v2/nothing/here")).refused(404, "NAME_UNKNOWN")
    answer = await client.call("PATCH", f"/v2/{NAME}/manifests/1")
    answer.refused(405, "UNSUPPORTED")
    assert answer.headers["allow"] == "GET, HEAD, PUT, DELETE"


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


async def test_a_manifest_that_refers_to_missing_content_is_refused(client: Client) -> None:
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


async def test_a_non_distributable_layer_may_be_missing(client: Client) -> None:
    config = await client.push(NAME, b"{}")
    foreign = described("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", b"at its maker's")
    undistributed = described("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", b"too")
    (await client.put(NAME, "1", image(config, foreign, undistributed))).of(201)


async def test_a_manifest_pushed_by_digest_must_have_that_digest(client: Client) -> None:
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
    "annotations that are not text": image(CONFIG_OF_NOTHING, annotations={"a": 1}),
    "another media type inside": image(CONFIG_OF_NOTHING).replace(b"image.manifest.v1", b"image.other.v1"),
    "too many references": image(CONFIG_OF_NOTHING, *[CONFIG_OF_NOTHING] * 10_000),
}


@pytest.mark.parametrize("what", NO_MANIFESTS)
async def test_an_invalid_manifest_is_refused(client: Client, what: str) -> None:
    await client.push(NAME, b"{}")
    (await client.put(NAME, "1", NO_MANIFESTS[what])).refused(400, "MANIFEST_INVALID")
    assert (await client.put(NAME, "-1", image(CONFIG_OF_NOTHING))).refused(400, "MANIFEST_INVALID")


async def test_a_manifest_over_the_limit_is_refused(client: Client) -> None:
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


async def test_tags_are_listed_in_order_and_in_pages(client: Client) -> None:
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


async def test_many_referrers_are_listed_in_pages_that_clients_can_read(client: Client) -> None:
    config = await client.push(NAME, b"{}")
    subject = described(IMAGE, b"comes later")
    bodies = [image(config, subject=subject, annotations={"n": str(n) * (1 << 20)}) for n in range(5)]
    for body in bodies:
        (await client.put(NAME, digest(body), body)).of(201)
    found = await pages(client, f"/v2/{NAME}/referrers/{subject['digest']}", "manifests")
    assert [len(page) for page in found] == [2, 2, 1]
    assert sorted(each["digest"] for page in found for each in page) == sorted(map(digest, bodies))  # type: ignore[index]


# names, limits, scopes --------------------------------------------------------------------------------------------------


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


async def test_a_blob_over_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async def streamed() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    root = tmp_path / "registry"
    async with calling(a_registry(root, {"registry_max_blob_bytes": 2500})) as client:
        for body in (b"x" * 2501, streamed()):
            upload = await client.begin(NAME)
            (await client.call("PATCH", upload, body)).refused(413, "SIZE_INVALID")
            (await client.call("GET", upload)).refused(404, "BLOB_UPLOAD_UNKNOWN")
        (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?digest={ABSENT}", streamed())).refused(
            413, "SIZE_INVALID"
        )
        assert files_in(root) == []
        await client.push(NAME, b"x" * 2500)


async def test_a_request_without_credentials_gets_a_challenge_and_one_without_the_scope_is_denied(
    tmp_path: Path,
) -> None:
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
        upload = await pusher.begin(NAME)
        (await puller.call("GET", upload)).refused(403, "DENIED")
        (await pusher.manifest(NAME, "1")).refused(403, "DENIED")


async def test_with_anonymous_pull_everybody_may_pull_and_nobody_may_push(tmp_path: Path) -> None:
    async with calling(a_registry(tmp_path, {"registry_anonymous_pull": True}, only(both="b"))) as client:
        await client.of("both:b").image(NAME, "1", DATA)
        (await client.manifest(NAME, "1")).of(200)
        (await client.blob(NAME, DATA)).of(200)
        (await client.call("POST", f"/v2/{NAME}/blobs/uploads/")).refused(401, "UNAUTHORIZED")
        assert (await client.call("GET", "/v2/")).of(200).headers["www-authenticate"] == 'Basic realm="chargehand"'
        (await client.of("both:wrong").call("GET", "/v2/")).refused(401, "UNAUTHORIZED")


# media types that a browser would show -----------------------------------------------------------------------------------

SCRIPT = {"title": "<script>alert(document.domain)</script>"}


@pytest.mark.parametrize("media_type", ["text/html", "image/svg+xml", "application/json", "application/xhtml+xml"])
@pytest.mark.parametrize("said_inside", [True, False])
async def test_a_manifest_under_a_type_that_a_browser_would_show_is_refused(
    client: Client, media_type: str, said_inside: bool
) -> None:
    config = await client.push(NAME, b"{}")
    body = image(config, annotations=SCRIPT, mediaType=media_type if said_inside else IMAGE)
    if not said_inside:
        body = body.replace(f'"mediaType":"{IMAGE}",'.encode(), b"", 1)
    for sent in (media_type, f"{media_type}; charset=utf-8"):
        (await client.put(NAME, "1", body, sent)).refused(400, "MANIFEST_INVALID")
    (await client.manifest(NAME, "1")).refused(404, "MANIFEST_UNKNOWN")


async def test_an_image_is_refused_as_an_index_and_an_index_as_an_image(client: Client) -> None:
    config = await client.push(NAME, b"{}")
    for body, media_type in ((image(config), INDEX), (index(), IMAGE)):
        untold = body.replace(f'"mediaType":"{IMAGE if media_type == INDEX else INDEX}",'.encode(), b"", 1)
        (await client.put(NAME, "1", untold, media_type)).refused(400, "MANIFEST_INVALID")


async def test_a_manifest_that_an_earlier_release_took_under_any_type_is_served_as_octet_stream(
    client: Client, tmp_path: Path
) -> None:
    pushed = await client.image(NAME, "1", DATA, annotations=SCRIPT)
    [stored] = (tmp_path / "registry" / "repositories" / NAME / "_manifests").iterdir()
    stored.write_text("text/html")
    for reference in ("1", pushed["digest"]):
        for method in ("GET", "HEAD"):
            answer = (await client.call(method, f"/v2/{NAME}/manifests/{reference}")).of(200)
            assert answer.headers["content-type"] == "application/octet-stream"


async def test_too_many_annotations_are_refused_and_a_thousand_are_listed_unchanged(client: Client) -> None:
    subject = await client.image(NAME, "1", DATA)
    config = await client.push(NAME, b"{}")
    many = {f"a{number}": "" for number in range(1000)}
    (await client.put(NAME, "2", image(config, annotations={**many, "b": ""}))).refused(400, "MANIFEST_INVALID")
    (await client.put(NAME, "2", image(config, annotations=many, subject=subject))).of(201)
    [listed] = (await client.call("GET", f"/v2/{NAME}/referrers/{subject['digest']}")).of(200).json["manifests"]
    assert listed["annotations"] == many


@pytest.mark.parametrize("sent", ["sha256:" + "0" * 64 + "%0d%0aset-cookie:a=b", "sha256:" + "0" * 64 + "%0a"])
async def test_a_client_cannot_inject_a_header_into_an_answer(client: Client, sent: str) -> None:
    (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?digest={sent}", b"")).refused(400, "DIGEST_INVALID")
    (await client.call("POST", f"/v2/{NAME}/blobs/uploads/?mount={sent}&from={NAME}")).refused(400, "DIGEST_INVALID")
    (await client.call("PUT", f"/v2/{NAME}/manifests/1%0d%0ax", b"{}")).refused(400, "MANIFEST_INVALID")
    answer = await client.call("GET", f"/v2/{NAME}/referrers/{ABSENT}?artifactType=a%0d%0ax:y")
    assert "x" not in answer.of(200).headers
