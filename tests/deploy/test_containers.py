"""The image and Compose, in real containers: as docs/deployment.md starts them, with base images made of Debian's packages."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.asking import accepts_only_its_tokens, asking, carries_a_job, has_done, read_token, shows_the_console
from tests.deploy.containers import NEEDS, Podman
from tests.deploy.places import COMPOSE, make_secrets
from tests.e2e.server import eventually, free_port

pytestmark = [pytest.mark.deploy(*NEEDS), pytest.mark.timeout(3600)]
POSTGRES = Path(__file__).parent / "postgres"


@contextmanager
def _container(podman: Podman, image: str, secrets: Path, port: int) -> Iterator[str]:
    """Start the image with the options of docs/deployment.md."""
    shutil.chown(secrets, 10001)
    name = podman(
        *("run", "--detach", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "-v", "chargehand:/data", "-v", f"{secrets}:/etc/chargehand:ro"),
        *("-p", f"127.0.0.1:{port}:8484", "-e", "CHARGEHAND_WEBHOOKS_SECRET_FILE=/etc/chargehand/webhooks-secret"),
        *(image, "serve", "--config", "/etc/chargehand/chargehand.toml"),
    ).split()[-1]
    try:
        yield name
    finally:
        podman("rm", "--force", name)


async def test_the_image_starts_keeps_its_jobs_and_ends_in_good_order(
    podman: Podman, image: str, tmp_path: Path
) -> None:
    secrets, port = tmp_path / "secrets", free_port()
    make_secrets(secrets)
    token = read_token(secrets, "operator")
    with _container(podman, image, secrets, port) as name:

        def said() -> str:
            return podman("logs", name, ok=False)

        async with asking(f"http://127.0.0.1:{port}", said) as http:
            await accepts_only_its_tokens(http, secrets)
            await shows_the_console(http)
            job = await carries_a_job(http, token)
        podman("healthcheck", "run", name)
        podman("stop", "--time", "60", name)
        assert podman("inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0", said()
        podman("start", name)
        async with asking(f"http://127.0.0.1:{port}", said) as http:
            assert await has_done(http, job, token)
        assert token not in said()


def test_the_image_runs_as_nobody_and_has_no_pip_in_its_environment(podman: Podman, image: str) -> None:
    [found] = json.loads(podman("image", "inspect", image))
    assert found["Config"]["User"] == "10001:10001"
    modules = podman("run", "--rm", "--entrypoint", "ls", image, *_site_packages(podman, image)).split()
    assert "chargehand" in modules
    assert not {"pip", "hatchling", "setuptools"} & set(modules)


def _site_packages(podman: Podman, image: str) -> list[str]:
    path = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return podman("run", "--rm", "--entrypoint", "python3", image, "-c", path).split()


async def test_compose_starts_two_nodes_on_one_postgres_and_one_goes_on_alone(
    podman: Podman, image: str, tmp_path: Path
) -> None:
    base = podman.import_debian("localhost/postgres:debian", "postgresql")
    postgres = podman.build("localhost/postgres:test", POSTGRES / "Dockerfile", POSTGRES, f"BASE={base}")
    folder = tmp_path / "compose"
    shutil.copytree(COMPOSE.parent, folder, ignore=shutil.ignore_patterns("secrets"))
    make_secrets(folder / "secrets")
    token = read_token(folder / "secrets", "operator")
    compose = (sys.executable, "-m", "podman_compose", "--file", folder / "compose.yaml")

    def composed(*arguments: str, ok: bool = True) -> str:
        return podman.run(*compose, *arguments, ok=ok, POSTGRES_IMAGE=postgres)

    def said() -> str:
        return composed("logs", ok=False)

    try:
        composed("up", "--detach", "--no-build")
        async with (
            asking("http://127.0.0.1:8484", said, 120) as first,
            asking("http://127.0.0.1:8485", said, 120) as second,
        ):
            [database] = podman("ps", "--quiet", "--filter", "label=com.docker.compose.service=postgres").split()
            podman("healthcheck", "run", database)
            await accepts_only_its_tokens(first, folder / "secrets")
            await carries_a_job(first, token, through=second)
            composed("kill", "node-1")
            job = await carries_a_job(second, token)
            composed("start", "node-1")
            await eventually(lambda: has_done(first, job, token), 60, lambda: f"node-1 is back:\n{said()[-3000:]}")
    finally:
        composed("down", "--volumes", ok=False)
