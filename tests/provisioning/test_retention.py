"""Media and records of finished jobs are removed in time."""

from pathlib import Path

import pytest

from chargehand.doors.provisioning.job.ledger import JobLedgers
from chargehand.doors.provisioning.job.occupancy import MACHINE, PLACE, Occupancy
from chargehand.doors.provisioning.job.retention import Retention
from chargehand.doors.provisioning.job.run import JobRuns
from chargehand.engine.record import PutRecord
from tests.api.serving import on_sqlite, until
from tests.provisioning.guest import Script
from tests.provisioning.lab import FAILED, Lab, as_machine, failed, lab

SILENT = Script(silent=True)


def _retention(room: Lab) -> Retention:
    assert room.server.provisioning is not None
    engine, files = room.server.engine, room.server.provisioning._files
    records = engine.records
    return Retention(engine, JobRuns(records), JobLedgers(records), Occupancy(engine), files, media_keep_seconds=0)


async def _prune_and_sweep(room: Lab, job_id: str) -> None:
    """Remove the finished job, and check that this leaves nothing of it."""
    records = room.server.engine.records
    assert [len(await records.list(kind)) for kind in (MACHINE, PLACE)] == [1, 1]
    await until(lambda: room.server.engine.prune(0.001, 10))
    runs = JobRuns(records)
    run, version = await runs.get("default", job_id) or pytest.fail("the job has no run")
    await runs.put("default", job_id, run, version, due_at=1)
    await _retention(room).sweep()
    assert [len(await records.list(kind)) for kind in (MACHINE, PLACE)] == [0, 0]
    assert await runs.get("default", job_id) is None


@on_sqlite
async def test_the_media_of_a_finished_job_are_not_served_and_are_removed_in_time(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT, settings={"provisioning.media_keep_seconds": 0}) as room:
        job_id = await room.waiting()
        url = room.bmc.image("Cd2")
        (await room.report({"status": "success"})).good()
        await room.reaches(job_id, "complete")
        async with room.api.session.get(url) as response:
            assert response.status == 404
        await room.stop()
        await room.start()  # retention runs at the start
        await until(lambda: not (tmp_path / "data" / "provisioning" / job_id).exists())
        assert (await room.job(job_id))["outcome"] == "succeeded"


@on_sqlite
async def test_a_node_removes_its_own_copy_of_a_task_medium_although_another_node_handled_the_job(
    store_url: str, tmp_path: Path
) -> None:
    """The medium holds passwords, and only this node can remove it."""
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        assert room.server.provisioning is not None
        files = room.server.provisioning._files
        gone, active = files._tasks / "01ARZ3NDEKTSV4RRFFQ69G5FAV", files._tasks / job_id
        gone.mkdir()  # the directory of a job that was deleted meanwhile
        retention = _retention(room)
        await retention.tidy()
        assert (gone.exists(), active.exists()) == (False, True)
        (await as_machine(room, FAILED)).good()
        await room.reaches(job_id, "complete")
        await retention.tidy()
        assert not active.exists()


async def test_a_job_that_is_pruned_leaves_no_record_of_the_machine_that_it_occupied(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        job_id = await room.submit()
        await room.reaches(job_id, "complete")
        await _prune_and_sweep(room, job_id)


@on_sqlite
async def test_a_retry_that_ends_before_it_finds_the_machine_leaves_no_record_of_it_either(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await failed(room)
        (tmp_path / "maintenance.iso").unlink()
        (await room.api.post(f"/api/v1/jobs/{job_id}/retry")).good()
        assert (await room.reaches(job_id, "complete"))["failed_step"] == "iso.serve"
        await _prune_and_sweep(room, job_id)


@on_sqlite
async def test_a_record_that_cannot_be_read_does_not_stop_the_server(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        store = room.server.store
        broken = PutRecord("provision-run", "default", "01ARZ3NDEKTSV4RRFFQ69G5FAV", b"what is this?", due_at=1)
        assert await store.write(broken) is not None
        await room.stop()
        await room.start()  # retention runs at the start
        await room.register()
        job = await room.reaches(await room.submit(), "complete")
        assert job["outcome"] == "succeeded"
        assert not any(task.done() for task in room.server._background)
