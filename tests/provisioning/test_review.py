"""What looking for ways to lose a job, to lock it up, or to give away what was entrusted has found; each was so once."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from chargehand.config import load_config
from chargehand.doors.provisioning.job.ledger import JobLedger, JobLedgers
from chargehand.doors.provisioning.job.reports import MAX_EVENTS
from chargehand.doors.provisioning.job.retention import Retention
from chargehand.doors.provisioning.media.files import MediaFiles, Medium
from chargehand.engine.record import PutRecord
from chargehand.http.response import FileSpan
from tests.api.serving import Answer, Api, on_sqlite
from tests.inference.calling import a_token, token_of
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER, Habits
from tests.provisioning.guest import Script, task_files
from tests.provisioning.lab import RECIPE, SECRET, SERIAL, Lab, lab

SERVER = f"/api/v1/servers/{SERIAL}"
QUEUE = f"/engine/queues/provision/{SERIAL}"
SILENT = Script(silent=True)
FAILED = {"status": "failed", "failed_step": "partition.service"}


async def failed(room: Lab) -> str:
    job_id = await room.waiting()
    (await with_its_token(room, FAILED)).good()
    await room.reaches(job_id, "complete")
    return job_id


async def as_machine(room: Lab, said: dict[str, Any], where: str = "") -> Answer:
    """Without the token of a tenant."""
    machine = Api(room.api.url, room.api.session)
    return await machine.post(f"/api/v1/status-webhook/{SERIAL}{where}", said, {"X-Webhook-Secret": SECRET})


async def with_its_token(room: Lab, said: dict[str, Any]) -> Answer:
    machine = room.api.of((await room.on_medium())["token"])
    return await machine.post(f"/api/v1/status-webhook/{SERIAL}", said)


# whose machine it is ----------------------------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize("again", ["/api/v1/jobs/{}/retry", "/engine/jobs/{}/requeue"])
async def test_starting_an_old_job_again_takes_no_machine_away_from_the_tenant_who_has_it_now(
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
async def test_starting_an_old_job_again_does_not_bring_back_a_serial_that_was_forgotten(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        old = await failed(room)
        assert (await room.api.call("DELETE", SERVER)).status == 204
        (await room.api.post(f"/engine/jobs/{old}/requeue")).good()
        assert (await room.reaches(old, "complete"))["failed_step"] == "redfish.discover"
        await room.register(SERIAL.lower())


@on_sqlite
async def test_a_step_that_went_well_is_not_shown_as_failed_when_the_next_cannot_begin(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        old = await failed(room)
        assert (await room.api.call("DELETE", SERVER)).status == 204
        (await room.api.post(f"/engine/jobs/{old}/requeue")).good()
        steps = (await room.reaches(old, "complete"))["progress"]["steps"]
        assert [(step["step"], step["ok"]) for step in steps] == [("build-media", True)]


@on_sqlite
async def test_a_password_does_not_follow_its_server_to_another_address(store_url: str, tmp_path: Path) -> None:
    """Who may change records may not read passwords, not even by having them sent somewhere."""
    async with lab(store_url, tmp_path) as room:
        await room.register()
        elsewhere = {"bmc_address": "http://127.0.0.1:1", "bmc_username": USER}
        refused = await room.api.call("PUT", SERVER, elsewhere)
        assert (refused.status, refused.json["details"][0]["path"]) == (400, "/bmc_password")
        assert (await room.api.get(SERVER)).good()["bmc_address"] == room.bmc.url
        assert (await room.api.call("PUT", SERVER, {**elsewhere, "bmc_password": PASSWORD})).status == 200


PIN = "sha256:" + "1a" * 32


@on_sqlite
@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({}, {"tls": "insecure"}, "tls"),
        ({}, {"tls": PIN}, "tls"),
        ({"tls": PIN}, {"tls": "insecure"}, "tls"),
        ({"tls": PIN}, {"tls": "sha256:" + "2b" * 32}, "tls"),
        ({"tls": PIN}, {"tls": "verify"}, "tls"),  # whoever has a certificate for that name
        ({}, {"bmc_username": "another"}, "bmc_username"),
        ({}, {"bmc_username": ""}, "bmc_username"),
        ({}, {"bmc_address": "http://bmc.example"}, "bmc_address"),
        ({}, {"bmc_address": "https://bmc.example:8443"}, "bmc_address"),
        ({}, {"bmc_address": "https://bmc.example/elsewhere"}, "bmc_address"),
        ({"tls": "insecure"}, {"tls": PIN}, ""),
        ({"tls": "insecure"}, {"tls": "verify"}, ""),
        ({"tls": PIN}, {"tls": PIN.upper().replace("SHA", "sha")}, ""),
        ({}, {"labels": {"rack": "3"}, "vendor": "dell"}, ""),
    ],
)
async def test_a_password_is_asked_for_again_when_somebody_else_could_get_to_hear_it(
    store_url: str, tmp_path: Path, before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    async with lab(store_url, tmp_path) as room:
        known = {"bmc_address": "https://bmc.example", "bmc_username": USER, **before}
        shown = await room.register(**known)
        answer = await room.api.call("PUT", SERVER, {**known, **after})
        if not field:
            assert answer.good()["has_password"] is True
            return
        assert (answer.status, answer.json["details"][0]["path"]) == (400, "/bmc_password")
        assert f"when {field} changes" in answer.json["details"][0]["message"]
        assert (await room.api.get(SERVER)).good() == shown
        (await room.api.call("PUT", SERVER, {**known, **after, "bmc_password": PASSWORD})).good()
        (await room.api.call("PUT", SERVER, {**known, "bmc_password": ""})).good()  # none is an answer too


@on_sqlite
async def test_a_record_does_not_lead_to_another_machine_in_the_midst_of_a_job(store_url: str, tmp_path: Path) -> None:
    """Whose BMC says as little about who it is as the first one's, and which the cleaning up would reset."""
    nameless = Habits(serial=None, uuid=None)
    async with lab(store_url, tmp_path, nameless, SILENT) as room, FakeBmc(nameless) as other:
        await room.register(unidentified=True)
        job_id = await room.submit(recipe={**RECIPE, "on_failure": "reboot"})
        await room.waits(job_id)
        record = {"bmc_address": other.url, "bmc_username": USER, "bmc_password": PASSWORD, "unidentified": True}
        refused = await room.api.call("PUT", SERVER, record)
        (await as_machine(room, FAILED)).good()
        await room.reaches(job_id, "complete")
        assert (room.bmc.count("reset"), other.count("reset")) == (2, 0)
        assert (refused.status, refused.json["error"]) == (409, "conflict.active_job")
        (await room.api.call("PUT", SERVER, record)).good()


@on_sqlite
async def test_a_password_that_was_changed_at_the_bmc_can_be_told_in_the_midst_of_a_job(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        await room.waiting()
        await room.register(bmc_password="another")


@on_sqlite
async def test_a_machine_that_still_works_for_an_earlier_start_neither_ends_this_one_nor_takes_its_place(
    store_url: str, tmp_path: Path
) -> None:
    """It has the shared secret and knows the job's name, for that is the same; but nobody has reset it yet."""
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
async def test_one_machine_is_not_registered_twice_by_another_spelling_of_its_serial(
    store_url: str, tmp_path: Path
) -> None:
    """A BMC's serial fits in either case; two records would be two jobs at once on the same disk."""
    async with lab(store_url, tmp_path) as room:
        await room.register("SN-1")
        record = {"bmc_address": room.bmc.url, "bmc_username": USER, "bmc_password": PASSWORD}
        again = await room.api.call("PUT", "/api/v1/servers/sn-1", record)
        assert (again.status, again.json["error"]) == (409, "conflict.serial")
        assert (await room.api.call("DELETE", "/api/v1/servers/SN-1")).status == 204
        await room.register("sn-1")
        assert (await room.reaches(await room.submit("sn-1"), "complete"))["outcome"] == "succeeded"


ODD: dict[str, Any] = {
    "failed_step": "",
    "job_id": 7,
    "task_target": ["install-linux.target"],
    "dispatcher_version": 1.2,
    "schema_id": "x" * 5000,
    "started_at": 1_700_000_000,
    "finished_at": {"at": "noon"},
    "exit_code": "0",
    "log_tail": None,
}


@on_sqlite
async def test_an_outcome_is_not_lost_for_a_field_that_is_only_there_for_debugging(
    store_url: str, tmp_path: Path
) -> None:
    """Only status is required and, with failed, failed_step is required; a sender that is refused gives up in the end."""
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await as_machine(room, {"status": "success", **ODD})).good()
        assert (await room.reaches(job_id, "complete"))["outcome"] == "succeeded"
        [event] = await room.told(job_id, "webhook")
        assert event["data"].keys() == {"kind", "auth", "status", "schema_id"}
        assert len(event["data"]["schema_id"]) == 1024


# ends -------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_job_whose_key_is_lost_can_still_be_cancelled(store_url: str, tmp_path: Path) -> None:
    """Else its server could have no other job for ever."""
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await room.api.call("PUT", QUEUE, {"paused": True})).good()
    other = {"provisioning.key": "another key of more than thirty-two bytes, alas"}
    async with lab(store_url, tmp_path, script=SILENT, settings=other) as room:
        assert (await room.job(job_id))["status"] == "provisioning"
        (await room.api.post(f"/api/v1/jobs/{job_id}/cancel")).good()
        (await room.api.call("PUT", QUEUE, {"paused": False})).good()
        job = await room.reaches(job_id, "complete")
        assert job["outcome"] == "cancelled"
        assert any("left as it is" in warning for warning in job["warnings"])


# bounds -----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_machine_that_reports_for_ever_does_not_fill_the_log_of_its_job(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await failed(room)
        assert room.server.provisioning is not None

        def nearly_full(ledger: JobLedger) -> JobLedger:
            return JobLedger(ledger.generation, ledger.verdict, ledger.deliveries, told=MAX_EVENTS - 2)

        before = len(await room.told(job_id, "webhook"))
        await room.server.provisioning._ledgers.amend("default", job_id, nearly_full)
        for _ in range(5):
            assert (await room.report(FAILED)).good()["duplicate"] is True
        assert len(await room.told(job_id, "webhook")) == before + 2


@on_sqlite
async def test_names_that_machines_make_up_are_no_labels_of_metrics(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        said: dict[str, Any] = {"status": "failed", "failed_step": "step-4711@9.service"}
        (await room.report(said)).good()
        assert (await room.reaches(job_id, "complete"))["failed_step"] == "workflow.step-4711@9"
        metrics = (await room.api.get("/metrics")).body
        assert b"4711" not in metrics
        assert b'provisioning_failures_total{failed_step="workflow.other"} 1.0' in metrics


# two nodes --------------------------------------------------------------------------------------------------------------


async def token_on(files: MediaFiles, job_id: str) -> str:
    source = await files.find(job_id, Medium.TASK)
    assert source is not None
    content = b"".join([piece async for piece in source.read(0, source.size) if not isinstance(piece, FileSpan)])
    return cast(str, json.loads(task_files(content)["report.json"])["token"])


@on_sqlite
async def test_a_node_that_served_an_earlier_start_of_a_job_serves_the_task_of_this_one(
    store_url: str, tmp_path: Path
) -> None:
    """Else the machine would get the token of a start that is over, and be told to touch nothing."""
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
async def test_a_node_removes_its_own_copy_of_a_task_although_another_one_saw_to_the_job(
    store_url: str, tmp_path: Path
) -> None:
    """It holds passwords, and only this node can see it."""
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        assert room.server.provisioning is not None
        files = room.server.provisioning._files
        gone, active = files._tasks / "01ARZ3NDEKTSV4RRFFQ69G5FAV", files._tasks / job_id
        gone.mkdir()  # of a job that was deleted since
        retention = Retention(
            room.server.engine, files._runs, JobLedgers(room.server.engine.records), files, media_keep_seconds=0
        )
        await retention.tidy()
        assert (gone.exists(), active.exists()) == (False, True)
        (await as_machine(room, FAILED)).good()
        await room.reaches(job_id, "complete")
        await retention.tidy()
        assert not active.exists()


@on_sqlite
async def test_a_record_that_cannot_be_read_does_not_end_the_server(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        store = room.server.store
        broken = PutRecord("provision-run", "default", "01ARZ3NDEKTSV4RRFFQ69G5FAV", b"what is this?", due_at=1)
        assert await store.write(broken) is not None
        await room.stop()
        await room.start()  # looks for what is due at once
        await room.register()
        job = await room.reaches(await room.submit(), "complete")
        assert job["outcome"] == "succeeded"
        assert not any(task.done() for task in room.server._background)


# who may ----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_machine_is_not_wiped_again_by_somebody_who_may_only_move_jobs_of_the_engine(
    store_url: str, tmp_path: Path
) -> None:
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
