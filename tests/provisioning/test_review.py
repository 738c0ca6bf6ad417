"""What looking for ways to lose a job, to lock it up, or to give away what was entrusted has found; each was so once."""

from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.ledger import Ledger
from chargehand.doors.provisioning.reports import MAX_EVENTS
from tests.api.serving import on_sqlite
from tests.inference.calling import a_token, token_of
from tests.provisioning.bmc_habits import PASSWORD, USER
from tests.provisioning.guest import Script
from tests.provisioning.lab import SERIAL, Lab, lab

SERVER = f"/api/v1/servers/{SERIAL}"
SILENT = Script(silent=True)
FAILED = {"status": "failed", "failed_step": "partition.service"}


async def failed(room: Lab) -> str:
    job_id = await room.waiting()
    (await room.report(FAILED)).good()
    await room.reaches(job_id, "complete")
    return job_id


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
        answer = await room.api.post(again.format(old))
        if "retry" in again:
            assert (answer.status, answer.json["error"]) == (404, "validation.server")
        else:
            assert (await room.reaches(old, "complete"))["failed_step"] == "redfish.discover"
        room.api = umbrella
        new = await room.submit()
        await room.waits(new)
        assert (await room.report({"status": "success"})).good()["job_id"] == new


@on_sqlite
async def test_starting_an_old_job_again_keeps_a_serial_that_was_forgotten_free_for_others(
    store_url: str, tmp_path: Path
) -> None:
    tokens = [a_token("acme", "acme"), a_token("umbrella", "umbrella")]
    async with lab(
        store_url, tmp_path, script=SILENT, settings={"auth.tokens": tokens}, token=token_of("acme")
    ) as room:
        old = await failed(room)
        assert (await room.api.call("DELETE", SERVER)).status == 204
        (await room.api.post(f"/engine/jobs/{old}/requeue")).good()
        assert (await room.reaches(old, "complete"))["failed_step"] == "redfish.discover"
        umbrella = room.api.of(token_of("umbrella"))
        assert (await umbrella.call("PUT", SERVER, {"bmc_address": room.bmc.url})).status == 200


@on_sqlite
async def test_a_password_does_not_follow_its_server_to_another_address(store_url: str, tmp_path: Path) -> None:
    """Who may change records may not read passwords, not even by having them sent somewhere."""
    async with lab(store_url, tmp_path) as room:
        await room.register()
        elsewhere = {"bmc_address": "http://127.0.0.1:1", "bmc_username": USER}
        refused = await room.api.call("PUT", SERVER, elsewhere)
        assert (refused.status, refused.json["details"][0]["path"]) == (422, "/bmc_password")
        assert (await room.api.get(SERVER)).good()["bmc_address"] == room.bmc.url
        assert (await room.api.call("PUT", SERVER, {**elsewhere, "bmc_password": PASSWORD})).status == 200


# ends -------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_job_whose_key_is_lost_can_still_be_cancelled(store_url: str, tmp_path: Path) -> None:
    """Else its server could have no other job for ever."""
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
    other = {"provisioning.key": "another key of more than thirty-two bytes, alas"}
    async with lab(store_url, tmp_path, script=SILENT, settings=other) as room:
        assert (await room.job(job_id))["status"] == "provisioning"
        (await room.api.post(f"/api/v1/jobs/{job_id}/cancel")).good()
        job = await room.reaches(job_id, "complete")
        assert job["outcome"] == "cancelled"
        assert any("left as it is" in warning for warning in job["warnings"])


# bounds -----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_machine_that_reports_for_ever_does_not_fill_the_log_of_its_job(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await failed(room)
        assert room.server.provisioning is not None

        def nearly_full(ledger: Ledger) -> Ledger:
            return Ledger(ledger.generation, ledger.verdict, ledger.deliveries, told=MAX_EVENTS - 2)

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
