"""The registry with real clients: oras, skopeo and podman."""

import asyncio
import gzip
import hashlib
import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import oras.client  # type: ignore[import-untyped]
import pytest

from tests.provisioning.registering import (
    CONFIG,
    IMAGE,
    INDEX,
    Client,
    a_registry,
    calling,
    described,
    digest,
    image,
    index,
    only,
)

NAME = "os-images/linux/demo"
LOGIN = "robot:a password"
TARRED = "application/vnd.oci.image.layer.v1.tar+gzip"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a registry that requires credentials."""
    async with calling(a_registry(tmp_path / "registry", admit=only(robot="a password"))) as client:
        yield client.of(LOGIN)


# oras -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def robot() -> Iterator[oras.client.OrasClient]:
    client = oras.client.OrasClient(insecure=True, auth_backend="basic")
    client.auth.set_basic_auth(*LOGIN.split(":"))
    yield client
    client.session.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_oras_pushes_and_pulls_an_artifact(
    client: Client, robot: oras.client.OrasClient, tmp_path: Path, chunked: bool
) -> None:
    names = ("disk.raw", "notes.txt")
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(hashlib.shake_128(name.encode()).digest(3_000_000 - 2_999_000 * number))
    target = f"{client.address}/{NAME}:1.0"

    def there_and_back() -> dict[str, bytes]:
        files = [str(tmp_path / name) for name in names]
        robot.push(target, files=files, disable_path_validation=True, do_chunked=chunked, chunk_size=1_000_000)
        # A second tag, whose blob is there already.
        robot.push(f"{client.address}/{NAME}:latest", files=files[:1], disable_path_validation=True)
        tags: list[str] = robot.get_tags(target)
        assert tags == ["1.0", "latest"]
        pulled: list[str] = robot.pull(target=target, outdir=str(tmp_path / "back"))
        robot.delete_tags(target, ["1.0"])
        return {Path(path).name: Path(path).read_bytes() for path in pulled}

    pulled = await asyncio.to_thread(there_and_back)
    assert pulled == {name: (tmp_path / name).read_bytes() for name in names}
    assert (await client.call("GET", f"/v2/{NAME}/tags/list")).of(200).json["tags"] == ["latest"]


# skopeo, podman ---------------------------------------------------------------------------------------------------------


def an_image_for(architecture: str, blobs: Path) -> dict[str, Any]:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("etc/architecture")
        entry.size = len(architecture)
        tar.addfile(entry, io.BytesIO(architecture.encode()))
    layer = gzip.compress(archive.getvalue(), mtime=0)
    config = msgspec.json.encode(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest(archive.getvalue())]},
        }
    )
    body = image(described(CONFIG, config), described(TARRED, layer))
    for data in (layer, config, body):
        (blobs / digest(data).removeprefix("sha256:")).write_bytes(data)
    return {**described(IMAGE, body), "platform": {"architecture": architecture, "os": "linux"}}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a directory in the OCI layout: `one` is an image, `all` an index of two."""
    folder = tmp_path / "images"
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    one, other = (an_image_for(architecture, blobs) for architecture in ("amd64", "arm64"))
    both = index(one, other)
    (blobs / digest(both).removeprefix("sha256:")).write_bytes(both)
    named = "org.opencontainers.image.ref.name"
    entries = [{**one, "annotations": {named: "one"}}, {**described(INDEX, both), "annotations": {named: "all"}}]
    (folder / "index.json").write_bytes(msgspec.json.encode({"schemaVersion": 2, "manifests": entries}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a short path: podman allows at most 50 characters."""
    with tempfile.TemporaryDirectory(prefix="pod-") as path:
        yield Path(path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "blobs" / "sha256").iterdir()}


async def run(*command: str | Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def good(*command: str | Path) -> str:
    code, said = await run(*command)
    assert code == 0, said
    return said


PUSH = ("skopeo", "--insecure-policy", "copy", "--all", "--dest-tls-verify=false")
PULL = ("skopeo", "--insecure-policy", "copy", "--all", "--src-tls-verify=false")


@pytest.mark.tools("skopeo")
async def test_skopeo_pushes_and_pulls_an_index_of_images_unchanged(
    client: Client, images: Path, tmp_path: Path
) -> None:
    target = f"docker://{client.address}/{NAME}:1"
    await good(*PUSH, f"--dest-creds={LOGIN}", f"oci:{images}:all", target)
    await good(*PULL, f"--src-creds={LOGIN}", target, f"oci:{tmp_path}/back:all")
    assert contents(tmp_path / "back") == contents(images)
    tags = await good("skopeo", "list-tags", "--tls-verify=false", f"--creds={LOGIN}", target.removesuffix(":1"))
    assert msgspec.json.decode(tags)["Tags"] == ["1"]
    # Between repositories it mounts the blobs instead of sending them.
    copy = f"docker://{client.address}/elsewhere/copy:1"
    await good(*PUSH, "--src-tls-verify=false", f"--src-creds={LOGIN}", f"--dest-creds={LOGIN}", target, copy)
    await good("skopeo", "delete", "--tls-verify=false", f"--creds={LOGIN}", target)
    (await client.manifest(NAME, "1")).refused(404, "MANIFEST_UNKNOWN")
    (await client.manifest("elsewhere/copy", "1")).of(200)


@pytest.mark.tools("skopeo")
async def test_skopeo_with_a_wrong_password_is_refused(client: Client, images: Path) -> None:
    code, said = await run(
        *PUSH, "--dest-creds=robot:wrong", f"oci:{images}:one", f"docker://{client.address}/{NAME}:1"
    )
    assert code != 0
    assert "authentication required" in said or "unauthorized" in said, said


@pytest.mark.tools("skopeo")
async def test_skopeo_pulls_without_credentials_if_anonymous_pull_is_allowed(images: Path, tmp_path: Path) -> None:
    registry = a_registry(tmp_path / "registry", {"registry_anonymous_pull": True}, only(robot="a password"))
    async with calling(registry) as client:
        target = f"docker://{client.address}/{NAME}:1"
        await good(*PUSH, f"--dest-creds={LOGIN}", f"oci:{images}:one", target)
        await good(*PULL, "--src-no-creds", target, f"oci:{tmp_path}/back:one")
        code, _ = await run(*PUSH, "--dest-no-creds", f"oci:{images}:one", target)
        assert code != 0


@pytest.mark.tools("podman", "skopeo")
async def test_podman_pulls_an_image_and_pushes_it_elsewhere(client: Client, images: Path, short_path: Path) -> None:
    podman = ("podman", "--root", short_path / "p", "--runroot", short_path / "r", "--storage-driver", "vfs")
    code, said = await run(*podman, "images")
    if code:
        pytest.fail(f"podman does not work here: {said[:200]}")
    source, copy = f"{client.address}/{NAME}:1", f"{client.address}/a/b/c/copy:2"
    await good(*PUSH, f"--dest-creds={LOGIN}", f"oci:{images}:one", f"docker://{source}")
    await good(*podman, "pull", "--tls-verify=false", f"--creds={LOGIN}", source)
    await good(*podman, "push", "--tls-verify=false", f"--creds={LOGIN}", source, copy)
    first, second = (await client.manifest(NAME, "1")).of(200), (await client.manifest("a/b/c/copy", "2")).of(200)
    assert second.json["config"] == first.json["config"]
    for layer in second.json["layers"]:
        (await client.blob("a/b/c/copy", layer["digest"])).of(200)
