"""Retrying a job: what remains of the earlier start, and who may do it."""

import json
from pathlib import Path
from typing import cast

import pytest

from chargehand.config import load_config
from chargehand.doors.provisioning.media.files import MediaFiles, Medium
from chargehand.http.response import FileSpan
from tests.api.serving import on_sqlite
from tests.inference.calling import a_token, token_of
from tests.provisioning.bmc_habits import PASSWORD, USER, Habits
from tests.provisioning.guest import Script, task_files
from tests.provisioning.lab import FAILED, SERIAL, as_machine, failed, lab, with_its_token

SERVER = f"/api/v1/servers/{SERIAL}"
SILENT = Script(silent=True)


async def token_on(files: MediaFiles, job_id: str) -> str:
    source = await files.find(job_id, Medium.TASK)
    assert source is not None
    content = b"".join([piece async for piece in source.read(0, source.size) if not isinstance(piece, FileSpan)])
    return cast(str, json.loads(task_files(content)["report.json"])["token"])


@on_sqlite
@pytest.mark.parametrize("again", ["/api/v1/jobs/{}/retry", "/engine/jobs/{}/requeue"])
async def test_a_retry_of_an_old_job_does_not_take_the_machine_from_its_present_tenant(
    store_url: str, tmp_path: Path, again: str
) -> None:
    tokens = [a_token("acme", "acme"), a_token("umbrella", "umbrella")]
    async with lab(
        store_url, tmp_path, script=SILENT, settings={"auth.tokens": tokens}, token=token_of("acme")
    ) as room:
        umbrella = room.api.of(token_of("umbrella"))
        old = await failed(room)
        assert (await room.api.call("DELETE", SERVER)).status == 204
        record = {"bmc_address": room.bmc.url, "bmc_username": USER, "bmc_password": PASSWORD}
        (await umbrella.call("PUT", SERVER, record)).good()
        acme, room.api = room.api, umbrella
        new = await room.submit()
        await room.waits(new)
        room.api = acme
        answer = await room.api.post(again.format(old))
        if "retry" in again:
            assert (answer.status, answer.json["error"]) == (404, "validation.server")
        else:
            assert (await room.reaches(old, "complete"))["failed_step"] == "redfish.discover"
        assert (await with_its_token(room, {"status": "success"})).good()["job_id"] == new


@on_sqlite
async def test_a_requeue_of_an_old_job_does_not_restore_a_deleted_server(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        old = await failed(room)
        assert (await room.api.call("DELETE", SERVER)).status == 204
        (await room.api.post(f"/engine/jobs/{old}/requeue")).good()
        assert (await room.reaches(old, "complete"))["failed_step"] == "redfish.discover"
        await room.register(SERIAL.lower())


@on_sqlite
async def test_a_successful_step_is_not_shown_as_failed_when_the_next_one_cannot_begin(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        old = await failed(room)
        assert (await room.api.call("DELETE", SERVER)).status == 204
        (await room.api.post(f"/engine/jobs/{old}/requeue")).good()
        steps = (await room.reaches(old, "complete"))["progress"]["steps"]
        assert [(step["step"], step["ok"]) for step in steps] == [("build-media", True)]


@on_sqlite
async def test_a_report_from_before_the_reset_neither_ends_the_job_nor_claims_it_for_its_boot(
    store_url: str, tmp_path: Path
) -> None:
    """The machine still works for an earlier start, with the shared secret and the same job id: it was not reset yet."""
    async with lab(store_url, tmp_path, Habits(insert_failures=1000), SILENT) as room:
        await room.register()
        job_id = await room.submit()
        await room.reaches(job_id, "provisioning")
        late = {"status": "success", "job_id": job_id}
        assert (await as_machine(room, late)).status == 404
        progress = {"step": "partition.service", "boot_id": "of the boot before", "job_id": job_id}
        assert (await as_machine(room, progress, "/progress")).status == 404
        assert (await room.job(job_id))["progress"]["heard_at"] is None
        assert (await room.reaches(job_id, "complete"))["failed_step"] == "redfish.mount.maintenance"
        assert (await as_machine(room, late)).good()["duplicate"] is True


@on_sqlite
async def test_a_node_that_served_an_earlier_start_of_a_job_serves_the_medium_of_the_current_one(
    store_url: str, tmp_path: Path
) -> None:
    """Else the machine would get the token of the earlier start, and be told to stop."""
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        assert room.server.provisioning is not None
        here = room.server.provisioning._files
        config = load_config(environ={}, overrides={"server.data_dir": str(tmp_path / "there")})
        there = MediaFiles(config, here._jobs, here._orders, here._runs, here._tokens, here._metrics)
        assert await token_on(there, job_id) == await token_on(here, job_id)
        (await as_machine(room, FAILED)).good()
        await room.reaches(job_id, "complete")
        (await room.api.post(f"/api/v1/jobs/{job_id}/retry")).good()
        await room.reaches(job_id, "provisioning")
        await room.waits(job_id)
        assert here._tokens.read(await token_on(here, job_id)) == (job_id, 2)
        assert here._tokens.read(await token_on(there, job_id)) == (job_id, 2)


@on_sqlite
async def test_engine_scopes_alone_do_not_allow_to_requeue_a_provisioning_job(store_url: str, tmp_path: Path) -> None:
    tokens = [
        a_token("acme", "acme"),
        a_token("mover", "acme", "jobs:*"),
        a_token("both", "acme", "jobs:*", "provision:*"),
    ]
    async with lab(
        store_url, tmp_path, script=SILENT, settings={"auth.tokens": tokens}, token=token_of("acme")
    ) as room:
        mover = room.api.of(token_of("mover"))
        job_id = await failed(room)
        assert (await mover.post(f"/engine/jobs/{job_id}/requeue")).status == 403
        assert (await room.api.of(token_of("both")).post(f"/engine/jobs/{job_id}/requeue")).status == 200
        await room.reaches(job_id, "provisioning")
        assert (await mover.post(f"/engine/jobs/{job_id}/cancel")).status == 403
        assert (await mover.get(f"/engine/jobs/{job_id}")).status == 403
        assert (await room.api.of(token_of("both")).get(f"/engine/jobs/{job_id}")).status == 200
