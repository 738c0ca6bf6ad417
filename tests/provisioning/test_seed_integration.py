"""The integration tests that section 10 of the contract lists, each by its name there.

"End-to-end Linux workflow with a mock Redfish server and a fake maintenance OS"
    "Success path transitions and cleanup"                          test_end_to_end_linux_workflow_success_path_…
    "Failure in each step (partition, image, bootloader) …"         test_failure_in_each_step_…
"Webhook duplication"                                               test_webhook_duplication_…
"Controller restart"                                                test_controller_restart_…
"Timeouts: suppress webhook"                                        test_timeouts_suppressed_webhook_…

Here the controller is stopped orderly; tests/e2e kills it at every step.
"""

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.serving import on_sqlite, until
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import SERIAL, lab
from tests.webhooks.receiver import receiving


def fixed_port() -> dict[str, Any]:
    """Return settings with a port: a machine keeps calling the same address, so the server must keep it over a restart."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return {"server.listen": f"127.0.0.1:{listener.getsockname()[1]}"}


async def test_end_to_end_linux_workflow_success_path_transitions_and_cleanup(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        job_id = await room.submit()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"], job["warnings"]) == ("succeeded", None, [])
        assert await room.shown(job_id) == ["queued", "provisioning", "succeeded", "complete"]
        assert room.guest.imaged == [job_id]
        assert room.guest.task.keys() >= {"recipe.json", "recipe.schema.json", "user-data", "meta-data", "report.json"}
        assert (room.bmc.count("insert"), room.bmc.count("eject"), room.bmc.count("reset")) == (2, 2, 2)
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["", ""]
        assert [boot.cd for boot in room.guest.boots] == [True, False]
        assert (await room.api.get(f"/api/v1/servers/{SERIAL}")).good()["active_job"] is None


@on_sqlite
@pytest.mark.parametrize(
    ("unit", "key"),
    [
        ("partition.service", "workflow.partition"),
        ("image-linux.service", "workflow.image-linux"),
        ("bootloader-linux.service", "workflow.bootloader-linux"),
        ("config-drive.service", "workflow.config-drive"),
        ("provision-dispatcher.service", "workflow.dispatcher"),
    ],
)
async def test_failure_in_each_step_triggers_the_failure_report_and_correct_mapping(
    store_url: str, tmp_path: Path, unit: str, key: str
) -> None:
    async with lab(store_url, tmp_path, script=Script(fails_at=unit)) as room:
        await room.register()
        job_id = await room.submit()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"], job["failure"]["unit"]) == ("failed", key, unit)
        assert job["progress"]["log_tail"] == f"{unit}: no such disk"
        assert await room.shown(job_id) == ["queued", "provisioning", "failed", "complete"]
        # The machine is left as it is, so that its console can be read; but its drives are empty.
        assert room.bmc.count("reset") == 1
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["", ""]


@pytest.mark.parametrize("status", ["success", "failed"])
async def test_webhook_duplication_job_remains_in_terminal_state_with_200_ok(
    store_url: str, tmp_path: Path, status: str
) -> None:
    payload = {"status": status, **({"failed_step": "partition.service"} if status == "failed" else {})}
    opposite = {"status": "failed", "failed_step": "x.service"} if status == "success" else {"status": "success"}
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await room.waiting()
        first = [await room.report(each) for each in (payload, payload, opposite)]
        before = await room.reaches(job_id, "complete")
        later = [await room.report(each) for each in (payload, opposite)]
        assert [answer.status for answer in (*first, *later)] == [200] * 5
        assert before["outcome"] == ("succeeded" if status == "success" else "failed")
        after = await room.job(job_id)
        assert [after[name] for name in ("status", "outcome", "finished_at")] == [
            before[name] for name in ("status", "outcome", "finished_at")
        ]


async def test_controller_restart_webhook_after_restart_is_processed_and_cleanup_continues(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True), settings=fixed_port()) as room:
        job_id = await room.waiting()
        bearer = f"Bearer {(await room.on_medium())['token']}"
        await room.stop()
        await room.start()
        assert (await room.job(job_id))["status"] == "provisioning"
        said = {"status": "success", "delivery_id": "d-1"}
        assert (await room.report(said, secret=None, Authorization=bearer)).status == 200
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["attempt"], job["warnings"]) == ("succeeded", 1, [])
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["", ""]
        assert [boot.cd for boot in room.guest.boots] == [True, False]
        assert (room.bmc.count("insert"), room.bmc.count("reset")) == (2, 2)
        assert (await room.report(said, secret=None, Authorization=bearer)).good()["duplicate"] is True


@on_sqlite
async def test_controller_restart_while_the_machine_works_loses_no_report_to_its_retries(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=Script(step_seconds=0.1), settings=fixed_port()) as room:
        await room.register()
        job_id = await room.submit()
        await until(lambda: room.guest.imaged)
        await room.stop()
        await asyncio.sleep(0.3)  # the machine goes on meanwhile, and its reports get no answer
        await room.start()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], room.guest.imaged) == ("succeeded", [job_id])
        assert await room.shown(job_id) == ["queued", "provisioning", "succeeded", "complete"]


@on_sqlite
async def test_controller_restart_while_cleaning_up_finishes_the_cleanup(store_url: str, tmp_path: Path) -> None:
    settings = {**fixed_port(), "provisioning.cleanup_seconds": 20}
    async with receiving() as receiver, lab(store_url, tmp_path, Habits(), Script(silent=True), settings) as room:
        job_id = await room.waiting(webhook={"url": receiver.url()})
        room.bmc.go_away(1.0)  # so that cleaning up takes longer than the restart
        (await room.report({"status": "failed", "failed_step": "partition.service"})).good()
        await room.reaches(job_id, "failed")
        await room.stop()
        assert [bool(drive.image) for drive in room.bmc.system.drives.values()] == [True, True]
        await room.start()
        going_on = await room.job(job_id)
        assert (going_on["status"], going_on["error"]) == ("failed", "partition.service failed")
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"], job["warnings"]) == ("failed", "workflow.partition", [])
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["", ""]
        statuses = ["queued", "provisioning", "failed", "complete"]
        assert await room.shown(job_id) == statuses
        await until(lambda: len(receiver.hooks) >= 4)
        told = [msgspec.json.decode(hook.body) for hook in receiver.hooks]
        assert [body["status"] for body in sorted(told, key=lambda body: body["sequence"])] == statuses


@on_sqlite
@pytest.mark.parametrize("moment", ["session", "insert", "override"])
async def test_controller_restart_before_the_reset_goes_on_from_there(
    store_url: str, tmp_path: Path, moment: str
) -> None:
    async with lab(store_url, tmp_path, Habits(slow_seconds=0.03), settings=fixed_port()) as room:
        await room.register()
        job_id = await room.submit()
        await until(lambda: room.bmc.count(moment))
        await room.stop()
        assert room.bmc.count("reset") == 0
        await room.start()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["warnings"], job["attempt"]) == ("succeeded", [], 1)
        assert room.guest.imaged == [job_id]
        assert [boot.cd for boot in room.guest.boots] == [True, False]


async def test_timeouts_suppressed_webhook_takes_the_webhook_wait_failure_path(store_url: str, tmp_path: Path) -> None:
    settings = {"provisioning.install_seconds": 0.4}
    async with lab(store_url, tmp_path, script=Script(reports=False), settings=settings) as room:
        await room.register()
        job_id = await room.submit()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", "webhook.wait")
        assert await room.shown(job_id) == ["queued", "provisioning", "failed", "complete"]
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["", ""]
        late = await room.report({"status": "success"})
        assert (late.status, late.json["duplicate"]) == (200, True)
        assert (await room.job(job_id))["outcome"] == "failed"
