"""The agent as a process, on a machine that is a directory, with a real controller over real sockets."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.media.combined import combined
from chargehand.doors.provisioning.media.contents import recipe_files
from chargehand.doors.provisioning.media.iso import build_task_iso
from chargehand.doors.provisioning.recipe.recipe import Recipe
from provision.errors import Exit
from tests.api.serving import on_sqlite
from tests.maintenance.cutting import cutting
from tests.maintenance.machine import Machine
from tests.maintenance.scene import DISPATCHER, SECRET, scene
from tests.provisioning.guest import task_files
from tests.provisioning.lab import RECIPE

pytestmark = on_sqlite

STARTED = ["systemctl --no-block start install-linux.target"]


# the dispatcher -------------------------------------------------------------------------------------------------------


async def test_the_dispatcher_finds_its_task_asks_for_permission_and_starts_the_target(
    store_url: str, tmp_path: Path
) -> None:
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


async def test_a_second_boot_for_the_same_job_does_nothing_and_reports_nothing(store_url: str, tmp_path: Path) -> None:
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


async def test_the_wrong_machine_is_refused_before_any_request_and_before_the_target_starts(
    store_url: str, tmp_path: Path
) -> None:
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


async def test_without_an_answer_of_the_controller_nothing_begins(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        await at.room.stop()
        ran = await at.machine.agent("dispatch")
        assert (ran.code, at.machine.calls) == (Exit.UNREACHABLE, []), ran.said
        await at.room.start()


async def test_a_controller_that_is_late_is_waited_for(store_url: str, tmp_path: Path) -> None:
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
    """Return the drive with the task, with other files."""
    for drive in sorted((machine.root / "dev").iterdir()):
        if files := task_files(drive.read_bytes()):
            changed = {name: data for name, data in {**files, **changes}.items() if data is not None}
            return {
                drive.name: build_task_iso(tmp_path / "changed.iso", changed, epoch=1_800_000_000).path.read_bytes()
            }
    raise AssertionError("there is no task")


def plain_task(tmp_path: Path, **changes: bytes | None) -> dict[str, bytes]:
    """Return a task without a controller."""
    report = {
        "job_id": "j",
        "server_serial": "SN-1",
        "token": "t" * 20,
        "status_url": "http://127.0.0.1:1/s",
        "progress_url": "http://127.0.0.1:1/p",
    }
    files: dict[str, bytes | None] = {
        **recipe_files(Recipe.of(RECIPE), "j"),
        "report.json": json.dumps(report).encode(),
    }
    files |= {name.replace("__", "."): data for name, data in changes.items()}
    given = {name: data for name, data in files.items() if data is not None}
    return {"sr1": build_task_iso(tmp_path / "plain.iso", given, epoch=1_800_000_000).path.read_bytes()}


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (Exit.MEDIUM_UNREADABLE, {"report__json": b"{}"}),
        (Exit.NO_SCHEMA, {"recipe__schema__json": None}),
        (Exit.NO_SCHEMA, {"recipe__schema__json": b'{"$id": "x", "type": "decimal"}'}),
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
async def test_every_error_has_its_exit_code(tmp_path: Path, store_url: str, code: Exit, changes: Any) -> None:
    machine = Machine(tmp_path)
    machine.insert(**plain_task(tmp_path, **changes))
    ran = await machine.agent("dispatch")
    assert (ran.code, machine.calls) == (code, []), ran.said
    assert ran.said.splitlines()[-1].startswith("error: ")
    assert SECRET not in ran.said


async def test_without_a_medium_nothing_is_reported_and_nothing_retried(tmp_path: Path, store_url: str) -> None:
    machine = Machine(tmp_path)
    ran = await machine.agent("dispatch")
    assert (ran.code, machine.calls) == (Exit.NO_MEDIUM, [])
    machine.unit(DISPATCHER, "exit-code", 10)
    assert (await machine.agent("report", "failed", DISPATCHER)).code == 0


async def test_an_unwritable_run_directory_has_its_exit_code(tmp_path: Path, store_url: str) -> None:
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
            source if isinstance(source, bytes) else source.read_bytes() for source, _, _ in combined(boot, task).parts
        )
        machine = Machine(tmp_path / "other")
        machine.insert(sr0=whole)
        assert (await machine.agent("dispatch")).code == 0
        assert machine.calls == STARTED


@pytest.mark.parametrize(
    "argv", [[], ["step"], ["step", "format-everything"], ["report"], ["report", "failed"], ["report", "failed", ""]]
)
async def test_unknown_commands_and_steps_are_refused(tmp_path: Path, store_url: str, argv: list[str]) -> None:
    ran = await Machine(tmp_path).agent(*argv)
    assert ran.code == Exit.USAGE
    assert "usage: " in ran.said
