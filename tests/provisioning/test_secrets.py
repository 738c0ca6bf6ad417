"""No secret is in logs, answers, events, metrics or webhooks, or readable in the database."""

import base64
from pathlib import Path

import pytest

from tests.api.serving import on_sqlite
from tests.provisioning.bmc_habits import PASSWORD, Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SECRET, SERIAL, Lab, lab
from tests.webhooks.receiver import receiving

WRONG = "a-wrong-secret-that-somebody-tried"
IN_USER_DATA = "swordfish-in-user-data"
IN_ENV = "hush-in-env"
IN_QUERY = "hush-in-a-query"
KEY = "a key for tests of more than thirty-two bytes"


async def everything_shown(room: Lab, jobs: list[str]) -> bytes:
    paths = [
        "/metrics",
        "/api/v1/jobs",
        "/api/v1/servers",
        f"/api/v1/servers/{SERIAL}",
        "/engine/jobs?limit=100",
        "/engine/queues",
        "/openapi.json",
        *(f"/api/v1/jobs/{job}{tail}" for job in jobs for tail in ("", "/events")),
        *(f"/engine/jobs/{job}{tail}" for job in jobs for tail in ("", "/events")),
    ]
    shown = []
    for path in paths:
        answer = await room.api.get(path)
        assert answer.status == 200, path
        shown.append(answer.body)
    return b"".join(shown)


def traces(where: bytes, secrets: dict[str, str]) -> list[str]:
    """Return the names of the secrets that are found, in plain or in a common encoding."""
    return [
        name
        for name, secret in secrets.items()
        if secret.encode() in where
        or base64.b64encode(secret.encode()).rstrip(b"=")[:-1] in where
        or secret.encode().hex().encode() in where
    ]


def in_database(folder: Path) -> bytes:
    """Return the bytes of the database file and of SQLite's files beside it."""
    return b"".join(file.read_bytes() for file in folder.glob("chargehand.db*"))


@on_sqlite
async def test_no_secret_appears_in_answers_logs_webhooks_or_the_database(
    store_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = {**RECIPE, "env": {"USER_TOKEN": IN_ENV}}
    quick = {"provisioning.boot_seconds": 0.5}
    secrets = {"BMC": PASSWORD, "user_data": IN_USER_DATA, "env": IN_ENV, "webhook": SECRET, "wrong": WRONG, "key": KEY}
    jobs = []
    tokens = []
    shown = b""
    async with receiving() as receiver:
        async with lab(store_url, tmp_path, Habits(echoes=True), Script(silent=True), quick) as room:
            assert (await room.register())["has_password"] is True
            job_id = await room.submit(recipe=recipe, webhook={"url": receiver.url()})
            jobs.append(job_id)
            await room.waits(job_id)
            tokens.append((await room.on_medium())["token"])
            bearer = {"Authorization": f"Bearer {tokens[0]}"}
            assert (await room.report({"status": "success"}, secret=WRONG)).status == 403
            assert (
                await room.report({"status": "success"}, secret=None, Authorization=f"Bearer {WRONG}")
            ).status == 403
            assert (await room.report({"nonsense": WRONG}, secret=None, **bearer)).status == 400
            (await room.report({"status": "failed", "failed_step": "x.service"}, secret=None, **bearer)).good()
            await room.reaches(job_id, "complete")
            refused = await room.api.post("/api/v1/jobs", {"server_serial": SERIAL, "recipe": {**recipe, "wipe": 1}})
            assert (refused.status, traces(refused.body, secrets)) == (400, [])
            (await room.api.post(f"/api/v1/servers/{SERIAL}/probe")).good()
            shown += await everything_shown(room, jobs)
        async with lab(store_url, tmp_path, Habits(echoes=True, wants=("Ticket",)), settings=quick) as room:
            await room.register()  # this BMC refuses, and repeats the credentials
            jobs.append(await room.submit(recipe=recipe, webhook={"url": receiver.url()}))
            assert (await room.reaches(jobs[-1], "complete"))["failed_step"] == "redfish.mount.maintenance"
            shown += await everything_shown(room, jobs)
        hooks = b"".join(hook.body + str(dict(hook.headers)).encode() for hook in receiver.hooks)
    logged = capfd.readouterr()
    written = in_database(tmp_path)
    secrets |= {"token": tokens[0]}
    assert len(hooks) > 100
    assert len(written) > 10_000
    assert jobs[0] in logged.out + logged.err
    places = {
        "answers": shown,
        "webhooks": hooks,
        "standard output": logged.out.encode(),
        "standard error": logged.err.encode(),
        "database": written,
    }
    assert {place: found for place, content in places.items() if (found := traces(content, secrets))} == {}


@on_sqlite
async def test_a_signed_url_in_a_recipe_is_shown_without_its_query(store_url: str, tmp_path: Path) -> None:
    recipe = {
        "task_target": "supermicro-update.target",
        "firmware_url": f"http://10.1.2.3/bios.bin?signature={IN_QUERY}",
        "env": {"USER_FIRMWARE_SHA256": "0" * 64},
    }
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await room.waiting(recipe=recipe)
        assert traces(await everything_shown(room, [job_id]), {"query": IN_QUERY}) == []
    written = in_database(tmp_path)
    assert traces(written, {"query": IN_QUERY}) == []


@on_sqlite
async def test_only_the_user_of_the_server_can_read_its_media(store_url: str, tmp_path: Path) -> None:
    """The task medium holds user_data and the job's token, so only the server may read it."""
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await room.waiting()
        folder = tmp_path / "data" / "provisioning" / job_id
        assert [path.stat().st_mode & 0o077 for path in (folder, folder.parent, *folder.iterdir())] == [0, 0, 0]


@on_sqlite
async def test_the_task_medium_holds_no_credentials_of_the_bmc(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        await room.waiting()
        async with room.api.session.get(room.bmc.image("Cd2")) as response:
            medium = await response.read()
        assert traces(medium, {"BMC": PASSWORD, "webhook": SECRET, "key": KEY}) == []
        assert IN_USER_DATA.encode() in medium
