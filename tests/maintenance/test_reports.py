"""The agent's reports: one final report, steps, heartbeats; with a real controller over real sockets."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provision.heartbeat import beat_on
from tests.api.serving import on_sqlite, until
from tests.maintenance.cutting import cutting
from tests.maintenance.machine import Machine
from tests.maintenance.scene import DISPATCHER, SECRET, scene

pytestmark = on_sqlite

# reports --------------------------------------------------------------------------------------------------------------


async def test_success_is_reported_once_however_often_it_is_sent(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        assert [(await machine.agent("report", "success")).code for _ in range(2)] == [0, 0]
        job = await at.room.reaches(at.job_id, "complete")
        assert job["outcome"] == "succeeded"
        [webhook] = await at.webhooks()
        data = webhook["data"]
        assert data["delivery_id"] == machine.kept("delivery-success.json")["delivery_id"]
        assert (data["task_target"], data["dispatcher_version"]) == ("install-linux.target", "1.0")
        assert data["schema_id"].startswith("https://")
        assert data["started_at"] <= data["finished_at"]
        machine.unit("config-drive.service", "exit-code", 1)
        ran = await machine.agent("report", "failed", "config-drive.service")
        assert ran.code == 0
        assert "success was reported already" in ran.said


async def test_only_the_first_unit_that_failed_by_itself_is_reported(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        token = machine.kept("report.json")["token"]
        machine.unit("image-linux.service", "exit-code", 33)
        (machine.tools / "journal").write_text(f"pulling with {token}\npassword: {SECRET}\nno space left\n")
        units = (
            "bootloader-linux.service",
            "config-drive.service",
            "install-linux.target",
            "image-linux.service",
            "partition.service",
        )
        rans = await asyncio.gather(*(machine.agent("report", "failed", unit) for unit in units))
        assert [ran.code for ran in rans] == [0] * 5
        assert sum("did not run because image-linux.service failed" in ran.said for ran in rans) == 4
        job = await at.room.reaches(at.job_id, "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", "workflow.image-linux")
        [webhook] = await at.webhooks()
        assert webhook["data"]["exit_code"] == 33
        sent = machine.kept("delivery-failed.json")
        assert sent["log_tail"] == "pulling with [hidden]\n[hidden]\nno space left\n"
        assert (machine.run / "first-failure").read_text() == "image-linux.service"
        assert (await machine.agent("report", "success")).code == 0
        assert len(await at.webhooks()) == 1


async def test_a_signal_is_reported_as_a_signal_and_not_as_an_exit_code(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.unit("image-linux.service", "oom-kill", 9)
        (machine.tools / "journal").write_text("unpacking\n")
        ran = await machine.agent("report", "failed", "image-linux.service")
        assert (ran.code, "journalctl" in ran.said) == (0, False)
        sent = machine.kept("delivery-failed.json")
        assert sent["log_tail"] == "unpacking\nimage-linux.service was ended by signal 9 (oom-kill)\n"
        assert "exit_code" not in sent
        [webhook] = await at.webhooks()
        assert webhook["data"].get("exit_code") is None


async def test_of_two_units_that_fail_at_once_only_one_is_reported(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        units = ("partition.service", "image-linux.service")
        for unit in units:
            machine.unit(unit, "timeout", 15)
        rans = await asyncio.gather(*(machine.agent("report", "failed", unit) for unit in units))
        assert sum("reported: failed" in ran.said for ran in rans) == 1
        assert sum("stays silent" in ran.said for ran in rans) == 1
        assert len(await at.webhooks()) == 1


async def test_a_unit_that_could_not_start_without_a_failed_dependency_is_reported(
    store_url: str, tmp_path: Path
) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        assert (await machine.agent("report", "failed", "partition.service")).code == 0
        assert (await at.room.reaches(at.job_id, "complete"))["failed_step"] == "workflow.partition"


async def test_a_report_without_an_answer_is_sent_again_as_the_same_delivery(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.unit("partition.service", "exit-code", 31)
        report = machine.kept("report.json")
        address = report["status_url"].split("/")[2]
        # The second answer is lost after the report was received: the sender cannot know.
        async with cutting(address, [0, 5]) as proxy:
            machine.places.write("report.json", {**report, "status_url": report["status_url"].replace(address, proxy)})
            codes = [(await machine.agent("report", "failed", "partition.service")).code for _ in range(3)]
        assert codes == [1, 1, 0]
        webhooks = await at.webhooks()
        assert [each["data"]["delivery_id"] for each in webhooks] == [
            machine.kept("delivery-failed.json")["delivery_id"]
        ]
        assert (await at.room.reaches(at.job_id, "complete"))["failed_step"] == "workflow.partition"


async def test_a_refused_report_is_retried_by_systemd(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.places.write("report.json", {**machine.kept("report.json"), "token": "cht_nobody"})
        ran = await machine.agent("report", "success")
        assert ran.code == 1
        assert "the controller answered 403" in ran.said
        assert "cht_nobody" not in ran.said


# progress -------------------------------------------------------------------------------------------------------------


async def test_a_step_reports_its_beginning_and_exits_with_the_code_of_its_error(
    store_url: str, tmp_path: Path
) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        ran = await machine.agent("step", "image-linux")
        assert (ran.code, ran.said.splitlines()[-1]) == (1, "error: no disk was chosen: the partition step has not run")
        steps = [each["step"] for each in (await at.room.told(at.job_id, "progress"))]
        assert steps == [DISPATCHER, "image-linux.service"]


async def beating(machine: Machine, until_then: Callable[[], Any]) -> int:
    """Run the heartbeat in the background."""
    task = asyncio.create_task(machine.agent("heartbeat", PROVISION_HEARTBEAT_SECONDS="0.05"))
    await until(until_then)
    return (await task).code


async def test_the_heartbeat_reports_the_progress_and_ends_with_the_work(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        (machine.tools / "journal").write_text(f"unpacking\n  password: {SECRET}\n")
        machine.places.write(
            "progress.json", {"step": "image-linux.service", "percent": 42.5, "message": "425 MiB of 1000"}
        )

        async def heard() -> Any:
            steps = (await at.room.job(at.job_id))["progress"]["steps"]
            return [each for each in steps if each["percent"] == 42.5]

        async def heard_and_done() -> Any:
            found = await heard()
            if found:
                machine.places.write("reported", b"")
            return found

        assert await beating(machine, heard_and_done) == 0
        job = await at.room.job(at.job_id)
        assert SECRET not in json.dumps(job)
        assert "unpacking" in json.dumps(job)


async def test_the_heartbeat_stops_the_work_when_the_controller_refuses(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.boot()  # to the controller, another boot has the job now
        assert await beating(machine, lambda: machine.calls) == 0
        [call] = machine.calls
        assert call.startswith("systemctl --no-block stop partition.service image-linux.service ")
        assert call.endswith(" install-linux.target")
        machine.unit("image-linux.service", "signal", 15)
        assert (await machine.agent("report", "failed", "image-linux.service")).code == 0
        assert await at.webhooks() == []


async def test_the_heartbeat_does_not_stop_a_running_flash(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.places.write("flashing", b"")
        machine.boot()
        assert await beating(machine, lambda: machine.calls) == 0
        [call] = machine.calls
        assert "bootloader-windows.service" in call
        assert "firmware.service" not in call


async def test_the_heartbeat_sends_nothing_before_the_dispatcher_was_permitted(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        (at.machine.places.dmi / "product_serial").write_text("SN-2\n")
        await at.machine.agent("dispatch")
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                at.machine.places.write("reported", b"")

        assert await asyncio.to_thread(beat_on, at.machine.places, 15, wait) == 0
        assert waits == [15, 15, 15]
        assert await at.room.told(at.job_id, "progress") == []
