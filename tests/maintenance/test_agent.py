"""The agent as a process of its own, on a machine that is a directory, with a real controller over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.combined import Combined
from chargehand.doors.provisioning.iso import build_task_iso
from chargehand.doors.provisioning.recipe import Recipe
from provision.errors import Exit
from provision.heartbeat import beat_on
from tests.api.serving import on_sqlite, until
from tests.maintenance.cutting import cutting
from tests.maintenance.machine import Machine
from tests.provisioning.guest import Script, task_files
from tests.provisioning.lab import RECIPE, Lab, lab
from tests.provisioning.registering import a_registry, calling, digest

pytestmark = on_sqlite

DISPATCHER = "provision-dispatcher.service"
SECRET = "swordfish-in-user-data"
STARTED = ["systemctl --no-block start install-linux.target"]


@dataclass
class Scene:
    room: Lab
    machine: Machine
    job_id: str

    async def status(self) -> str:
        return str((await self.room.job(self.job_id))["status"])

    async def webhooks(self) -> list[dict[str, Any]]:
        return await self.room.told(self.job_id, "webhook")

    async def dispatched(self) -> Machine:
        ran = await self.machine.agent("dispatch")
        assert ran.code == 0, ran.said
        return self.machine


@asynccontextmanager
async def scene(
    store_url: str, tmp_path: Path, recipe: Mapping[str, Any] = RECIPE, **settings: Any
) -> AsyncIterator[Scene]:
    """A job that waits for its machine, and the machine with the job's media in its drives."""
    async with lab(
        store_url, tmp_path, script=Script(silent=True), settings={"provisioning.install_seconds": 60, **settings}
    ) as room:
        job_id = await room.waiting(recipe=recipe)
        machine = Machine(tmp_path)
        for number, drive in enumerate(room.bmc.system.drives.values()):
            async with room.api.session.get(drive.image) as response:
                machine.insert(**{f"sr{number}": await response.read()})
        yield Scene(room, machine, job_id)


# the dispatcher -------------------------------------------------------------------------------------------------------


async def test_the_dispatcher_finds_its_task_asks_and_starts_the_target(store_url: str, tmp_path: Path) -> None:
    recipe = {**RECIPE, "env": {"USER_NAME": 'a "quoted" $word \\', "USER_PASSWORD": "tiddlywinks"}}
    async with scene(store_url, tmp_path, recipe) as at:
        ran = await at.machine.agent("dispatch")
        assert (ran.code, at.machine.calls) == (0, STARTED), ran.said
        [told] = await at.room.told(at.job_id, "progress")
        assert (told["step"], told["message"]) == (
            DISPATCHER,
            f"{DISPATCHER} is done: found its task for install-linux.target",
        )
    machine = at.machine
    assert machine.kept("recipe.json")["user_data"] == {"file": "user-data"}
    assert (machine.run / "user-data").read_text() == RECIPE["user_data"]
    assert machine.kept("layout.json")["partitions"] == RECIPE["partition_layout"]
    assert machine.kept("report.json")["job_id"] == at.job_id
    lines = (machine.run / "recipe.env").read_text().splitlines()
    assert {'TASK_TARGET="install-linux.target"', 'TARGET_DISK="/dev/vda"', 'SERIAL_NUMBER="SN-1"'} <= set(lines)
    assert r'USER_NAME="a \"quoted\" \$word \\"' in lines
    assert machine.readable_by_others() == []
    for secret in (SECRET, "tiddlywinks", machine.kept("report.json")["token"]):
        assert secret not in ran.said


async def test_a_machine_is_not_imaged_twice_for_one_job_and_says_nothing_about_the_other_boots_work(
    store_url: str, tmp_path: Path
) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.boot()
        ran = await machine.agent("dispatch")
        assert (ran.code, machine.calls) == (Exit.TOLD_TO_STOP, []), ran.said
        assert "a machine is not imaged twice" in ran.said
        machine.unit(DISPATCHER, "exit-code", 19)
        assert (await machine.agent("report", "failed", DISPATCHER)).code == 0
        ran = await machine.agent("step", "partition")
        assert ran.code == Exit.TOLD_TO_STOP
        assert await at.webhooks() == []
        assert await at.status() == "provisioning"


async def test_the_wrong_machine_is_refused_before_anything_is_asked_or_started(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        (at.machine.places.dmi / "product_serial").write_text("SN-2\n")
        ran = await at.machine.agent("dispatch")
        assert (ran.code, at.machine.calls) == (Exit.WRONG_MACHINE, [])
        assert "the task is for the machine with serial SN-1; this machine has serial SN-2" in ran.said
        assert await at.room.told(at.job_id, "progress") == []
        at.machine.unit(DISPATCHER, "exit-code", 18)
        (at.machine.tools / "journal").write_text(ran.said)
        assert (await at.machine.agent("report", "failed", DISPATCHER)).code == 0
        job = await at.room.reaches(at.job_id, "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", "workflow.dispatcher")
        [webhook] = await at.webhooks()
        assert webhook["data"]["exit_code"] == 18


async def test_a_controller_that_is_not_there_is_a_reason_not_to_begin(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        await at.room.stop()
        ran = await at.machine.agent("dispatch")
        assert (ran.code, at.machine.calls) == (Exit.UNREACHABLE, []), ran.said
        await at.room.start()


async def test_a_controller_that_comes_late_is_waited_for(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        report = await at.room.on_medium()
        async with cutting(report["progress_url"].split("/")[2], [0, 3]) as address:
            moved = {
                name: value.replace(report["progress_url"].split("/")[2], address)
                for name, value in report.items()
                if value
            }
            at.machine.insert(**task_with(at.machine, tmp_path, {"report.json": json.dumps(moved).encode()}))
            ran = await at.machine.agent("dispatch", PROVISION_CONTROLLER_SECONDS="30")
        assert (ran.code, at.machine.calls) == (0, STARTED), ran.said
        assert ran.said.count("asking the controller again") == 2


def task_with(machine: Machine, tmp_path: Path, changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """The drive with the task in it, with other files."""
    for drive in sorted((machine.root / "dev").iterdir()):
        if files := task_files(drive.read_bytes()):
            changed = {name: data for name, data in {**files, **changes}.items() if data is not None}
            return {
                drive.name: build_task_iso(tmp_path / "changed.iso", changed, epoch=1_800_000_000).path.read_bytes()
            }
    raise AssertionError("there is no task")


def plain_task(tmp_path: Path, **changes: bytes | None) -> dict[str, bytes]:
    """A task without a controller."""
    report = {
        "job_id": "j",
        "server_serial": "SN-1",
        "token": "t" * 20,
        "status_url": "http://127.0.0.1:1/s",
        "progress_url": "http://127.0.0.1:1/p",
    }
    files: dict[str, bytes | None] = {**Recipe.of(RECIPE).files("j"), "report.json": json.dumps(report).encode()}
    files |= {name.replace("__", "."): data for name, data in changes.items()}
    given = {name: data for name, data in files.items() if data is not None}
    return {"sr1": build_task_iso(tmp_path / "plain.iso", given, epoch=1_800_000_000).path.read_bytes()}


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (Exit.MEDIUM_UNREADABLE, {"report__json": b"{}"}),
        (Exit.NO_SCHEMA, {"recipe__schema__json": None}),
        (Exit.NO_SCHEMA, {"recipe__schema__json": b'{"$id": "x", "unknownKeyword": 1}'}),
        (Exit.RECIPE_UNREADABLE, {"recipe__json": None}),
        (Exit.RECIPE_UNREADABLE, {"recipe__json": b"[" * 50_000}),
        (Exit.RECIPE_UNREADABLE, {"recipe__json": b'{"timeout_minutes": NaN}'}),
        (Exit.RECIPE_INVALID, {"recipe__json": b"{}"}),
        (Exit.RECIPE_INVALID, {"recipe__json": json.dumps({**RECIPE, "user_data": {"file": "user-data"}, "wipe": False}).encode()}),
        (Exit.RECIPE_INVALID, {"recipe__json": json.dumps(RECIPE).encode()}),
        (Exit.RECIPE_INVALID, {"user-data": None}),
        (Exit.UNREACHABLE, {}),
    ],
)  # fmt: skip
async def test_every_trouble_has_its_exit_code(tmp_path: Path, store_url: str, code: Exit, changes: Any) -> None:
    machine = Machine(tmp_path)
    machine.insert(**plain_task(tmp_path, **changes))
    ran = await machine.agent("dispatch")
    assert (ran.code, machine.calls) == (code, []), ran.said
    assert ran.said.splitlines()[-1].startswith("error: ")
    assert SECRET not in ran.said


async def test_without_a_medium_there_is_nobody_to_report_to_and_no_retry(tmp_path: Path, store_url: str) -> None:
    machine = Machine(tmp_path)
    ran = await machine.agent("dispatch")
    assert (ran.code, machine.calls) == (Exit.NO_MEDIUM, [])
    machine.unit(DISPATCHER, "exit-code", 10)
    assert (await machine.agent("report", "failed", DISPATCHER)).code == 0


async def test_a_run_that_cannot_be_written_and_a_systemd_that_does_not_start_have_codes_too(
    tmp_path: Path, store_url: str
) -> None:
    machine = Machine(tmp_path)
    machine.insert(**plain_task(tmp_path))
    (machine.root / "run").write_text("a file in the way")
    assert (await machine.agent("dispatch")).code == Exit.RUN_NOT_WRITABLE


async def test_a_target_that_systemd_will_not_start_is_an_error_of_the_dispatcher(
    store_url: str, tmp_path: Path
) -> None:
    async with scene(store_url, tmp_path) as at:
        (at.machine.tools / "broken").touch()
        assert (await at.machine.agent("dispatch")).code == Exit.SYSTEMCTL


async def test_the_task_is_found_behind_the_maintenance_image(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        [(drive, _)] = task_with(at.machine, tmp_path, {}).items()
        task = build_task_iso(
            tmp_path / "t.iso", task_files((at.machine.root / "dev" / drive).read_bytes()), epoch=1_800_000_000
        )
        boot = tmp_path / "maintenance.iso"
        whole = b"".join(
            part.source if isinstance(part.source, bytes) else part.source.read_bytes()
            for part in Combined(boot, task).parts()
        )
        machine = Machine(tmp_path / "other")
        machine.insert(sr0=whole)
        assert (await machine.agent("dispatch")).code == 0
        assert machine.calls == STARTED


@pytest.mark.parametrize(
    "argv", [[], ["step"], ["step", "format-everything"], ["report"], ["report", "failed"], ["report", "failed", ""]]
)
async def test_what_is_not_known_is_not_done(tmp_path: Path, store_url: str, argv: list[str]) -> None:
    ran = await Machine(tmp_path).agent(*argv)
    assert ran.code == Exit.USAGE
    assert "usage: " in ran.said


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


async def test_only_the_first_unit_that_failed_by_itself_speaks(store_url: str, tmp_path: Path) -> None:
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


async def test_of_two_that_fail_at_once_one_speaks(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        units = ("partition.service", "image-linux.service")
        for unit in units:
            machine.unit(unit, "timeout", 15)
        rans = await asyncio.gather(*(machine.agent("report", "failed", unit) for unit in units))
        assert sum("reported: failed" in ran.said for ran in rans) == 1
        assert sum("stays silent" in ran.said for ran in rans) == 1
        assert len(await at.webhooks()) == 1


async def test_a_unit_that_could_not_start_for_nobodys_fault_reports_itself(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        assert (await machine.agent("report", "failed", "partition.service")).code == 0
        assert (await at.room.reaches(at.job_id, "complete"))["failed_step"] == "workflow.partition"


async def test_a_report_that_was_not_heard_is_sent_again_as_the_same_delivery(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.unit("partition.service", "exit-code", 31)
        report = machine.kept("report.json")
        address = report["status_url"].split("/")[2]
        # The second answer is lost when the report was heard already: the sender cannot know.
        async with cutting(address, [0, 5]) as proxy:
            machine.places.write("report.json", {**report, "status_url": report["status_url"].replace(address, proxy)})
            codes = [(await machine.agent("report", "failed", "partition.service")).code for _ in range(3)]
        assert codes == [1, 1, 0]
        webhooks = await at.webhooks()
        assert [each["data"]["delivery_id"] for each in webhooks] == [
            machine.kept("delivery-failed.json")["delivery_id"]
        ]
        assert (await at.room.reaches(at.job_id, "complete"))["failed_step"] == "workflow.partition"


async def test_a_report_that_is_refused_is_tried_again_by_systemd(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.places.write("report.json", {**machine.kept("report.json"), "token": "cht_nobody"})
        ran = await machine.agent("report", "success")
        assert ran.code == 1
        assert "the controller answered 403" in ran.said
        assert "cht_nobody" not in ran.said


# progress -------------------------------------------------------------------------------------------------------------


async def test_a_step_tells_that_it_begins_and_its_trouble_is_its_exit_code(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        ran = await machine.agent("step", "image-linux")
        assert (ran.code, ran.said.splitlines()[-1]) == (1, "error: no disk was chosen: the partition step has not run")
        steps = [each["step"] for each in (await at.room.told(at.job_id, "progress"))]
        assert steps == [DISPATCHER, "image-linux.service"]


async def beating(machine: Machine, until_then: Callable[[], Any]) -> int:
    """The heartbeat as long as it takes."""
    task = asyncio.create_task(machine.agent("heartbeat", PROVISION_HEARTBEAT_SECONDS="0.05"))
    await until(until_then)
    return (await task).code


async def test_the_heartbeat_says_where_the_work_is_and_ends_with_it(store_url: str, tmp_path: Path) -> None:
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


async def test_the_heartbeat_stops_the_work_when_the_controller_wants_no_more_of_it(
    store_url: str, tmp_path: Path
) -> None:
    async with scene(store_url, tmp_path) as at:
        machine = await at.dispatched()
        machine.boot()  # another boot has the job now, as far as the controller can tell
        assert await beating(machine, lambda: machine.calls) == 0
        [call] = machine.calls
        assert call.startswith("systemctl --no-block stop partition.service image-linux.service ")
        assert call.endswith(" install-linux.target")
        machine.unit("image-linux.service", "signal", 15)
        assert (await machine.agent("report", "failed", "image-linux.service")).code == 0
        assert await at.webhooks() == []


async def test_the_heartbeat_is_silent_before_the_dispatcher_was_allowed_to_begin(
    store_url: str, tmp_path: Path
) -> None:
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


# firmware -------------------------------------------------------------------------------------------------------------


async def test_firmware_is_fetched_checked_and_given_to_the_vendors_tool(store_url: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    tool = machine.root / "opt/sum/sum"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\necho "$@" > "$0.asked"; cp "$4" "$0.given"\n')
    async with calling(a_registry(tmp_path / "registry")) as client:
        await client.push("firmware", b"BIOS" * 1000)
        wanted = digest(b"BIOS" * 1000)
        url = f"http://{client.address}/v2/firmware/blobs/{wanted}?signature=tiddlywinks"
        machine.places.write("recipe.json", {"firmware_url": url, "env": {"USER_FIRMWARE_SHA256": wanted}})
        ran = await machine.agent("step", "firmware")
        assert "holds no tool that updates firmware" in ran.said
        tool.chmod(0o755)
        ran = await machine.agent("step", "firmware")
        assert (ran.code, tool.with_name("sum.given").read_bytes()) == (0, b"BIOS" * 1000), ran.said
        assert tool.with_name("sum.asked").read_text() == f"-c UpdateBios --file {machine.run}/firmware.bin\n"
        assert "tiddlywinks" not in ran.said
        tool.with_name("sum.given").unlink()
        machine.places.write("recipe.json", {"firmware_url": url, "env": {"USER_FIRMWARE_SHA256": "0" * 64}})
        assert (await machine.agent("step", "firmware")).code == Exit.DIGEST
        assert not tool.with_name("sum.given").exists()
