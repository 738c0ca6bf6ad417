"""Unusual reports, and too many of them."""

from pathlib import Path
from typing import Any

from chargehand.doors.provisioning.job.ledger import JobLedger
from chargehand.doors.provisioning.job.reports import MAX_EVENTS
from tests.api.serving import on_sqlite
from tests.provisioning.guest import Script
from tests.provisioning.lab import FAILED, as_machine, failed, lab

SILENT = Script(silent=True)


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
async def test_an_invalid_debugging_field_does_not_lose_the_outcome(store_url: str, tmp_path: Path) -> None:
    """Only status is required, and failed_step if it is failed. A machine whose report is refused gives up in the end."""
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await as_machine(room, {"status": "success", **ODD})).good()
        assert (await room.reaches(job_id, "complete"))["outcome"] == "succeeded"
        [event] = await room.told(job_id, "webhook")
        assert event["data"].keys() == {"kind", "auth", "status", "schema_id"}
        assert len(event["data"]["schema_id"]) == 1024


@on_sqlite
async def test_a_machine_that_reports_for_ever_does_not_fill_the_log_of_its_job(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await failed(room)
        assert room.server.provisioning is not None

        def nearly_full(ledger: JobLedger) -> JobLedger:
            return JobLedger(ledger.generation, ledger.verdict, ledger.deliveries, told=MAX_EVENTS - 2)

        before = len(await room.told(job_id, "webhook"))
        await room.server.provisioning._writer.amend("default", job_id, nearly_full)
        for _ in range(5):
            assert (await room.report(FAILED)).good()["duplicate"] is True
        assert len(await room.told(job_id, "webhook")) == before + 2
