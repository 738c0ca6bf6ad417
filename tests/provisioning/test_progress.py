"""Progress reports of a machine, and what happens when it sends none: `…/progress`, and the three kinds of silence."""

from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.job.ledger import MAX_TAIL
from tests.api.serving import Answer, on_sqlite, until
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import SECRET, SERIAL, Lab, lab

SILENT = Script(silent=True)
PATH = f"/api/v1/status-webhook/{SERIAL}/progress"


async def say(room: Lab, **said: Any) -> Answer:
    return await room.api.post(PATH, {"step": "partition.service", **said}, {"X-Webhook-Secret": SECRET})


@on_sqlite
async def test_progress_shows_the_step_of_the_machine_and_its_duration(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        assert (await say(room, percent=12.5, message="zapping", boot_id="b-1")).good() == {
            "job_id": job_id,
            "go_on": True,
            "reason": "",
        }
        (await say(room, finished=True, boot_id="b-1")).good()
        (await say(room, step="image-linux.service", percent=3, log_tail="layer 1 of 9\n", boot_id="b-1")).good()
        progress = (await room.job(job_id))["progress"]
        machine = [step for step in progress["steps"] if step["where"] == "machine"]
        assert [(step["step"], step["percent"], step["message"]) for step in machine] == [
            ("partition.service", 12.5, "zapping"),
            ("image-linux.service", 3.0, ""),
        ]
        assert [step["ended_at"] is not None for step in machine] == [True, False]
        assert (progress["step"], progress["log_tail"]) == ("image-linux.service", "layer 1 of 9\n")
        assert progress["heard_at"]
        told = await room.told(job_id, "progress")
        assert [event["step"] for event in told] == ["partition.service"] * 2 + ["image-linux.service"]


@on_sqlite
async def test_a_second_boot_of_the_machine_is_told_to_stop(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        assert (await say(room, boot_id="the first")).status == 200
        second = await say(room, boot_id="the second", log_tail="of the second")
        assert (second.status, second.json["go_on"]) == (409, False)
        assert "not imaged twice" in second.json["reason"]
        assert (await say(room, boot_id="the first")).status == 200
        assert (await room.job(job_id))["progress"]["log_tail"] == ""


@on_sqlite
async def test_a_machine_that_boots_twice_is_imaged_once(store_url: str, tmp_path: Path) -> None:
    """The override is permanent and the guest restarts by itself, so the medium boots again."""
    async with lab(store_url, tmp_path, Habits(override="continuous"), Script(reports=False)) as room:
        job_id = await room.waiting()
        await until(lambda: room.guest.imaged)
        await room.bmc.guest_reboots()
        assert "not imaged twice" in (await until(lambda: room.guest.refused))[0]
        await room.report({"status": "success"})
        await room.reaches(job_id, "complete")
        assert room.guest.imaged == [job_id]


@on_sqlite
async def test_after_the_outcome_the_machine_is_told_to_stop(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await say(room, boot_id="b", log_tail="before")).good()
        (await room.report({"status": "failed", "failed_step": "partition.service"})).good()
        late = await say(room, boot_id="b", log_tail="after")
        assert (late.status, late.json["reason"]) == (409, "the job is over: failed")
        job = await room.reaches(job_id, "complete")
        assert (await say(room, boot_id="b")).status == 409
        assert job["progress"]["log_tail"] == "before"


@on_sqlite
async def test_only_the_end_of_a_machines_log_is_stored(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await say(room, log_tail="x" * 200_000 + "the end")).good()
        tail = (await room.job(job_id))["progress"]["log_tail"]
        assert len(tail) == MAX_TAIL
        assert tail.endswith("xthe end")
        assert (await say(room, log_tail="x" * 300_000)).status == 413
        (await room.report({"status": "failed", "failed_step": "a.service", "log_tail": "y" * 100_000 + "!"})).good()
        tail = (await room.reaches(job_id, "complete"))["progress"]["log_tail"]
        assert (len(tail), tail[-2:]) == (MAX_TAIL, "y!")


@on_sqlite
async def test_an_invalid_progress_report_is_400(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        wrong: list[dict[str, Any]] = [
            {"percent": 101},
            {"percent": -1},
            {"percent": "half"},
            {"step": ""},
            {"step": "x" * 300},
            {"step": None},
            {"message": "x" * 3000},
            {"boot_id": "x" * 100},
            {"finished": "yes"},
        ]
        for fields in wrong:
            answer = await say(room, **fields)
            [name] = fields
            assert (answer.status, answer.json["details"][0]["path"]) == (400, f"/{name}"), fields
        assert (await room.api.post(PATH, {"step": "a"})).status == 401
        assert (await room.api.post(PATH, {"step": "a"}, {"X-Webhook-Secret": "wrong"})).status == 403
        assert await room.told(job_id, "progress") == []


@on_sqlite
async def test_a_flood_of_progress_does_not_flood_the_jobs_log(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        for number in range(0, 100, 3):
            (await say(room, percent=number)).good()
        told = await room.told(job_id, "progress")
        assert [event["data"]["percent"] for event in told] == [0, 12, 21, 30, 42, 51, 60, 72, 81, 90]
        steps = [each for each in (await room.job(job_id))["progress"]["steps"] if each["where"] == "machine"]
        assert [each["percent"] for each in steps] == [99]


SILENCES: dict[str, tuple[Script, dict[str, Any], str]] = {
    "agent_silent": (
        Script(stops_at="partition.service"),
        {"provisioning.silence_seconds": 0.3},
        "the machine was last heard of at partition.service, and then not for 0.3 s",
    ),
    "never_fetched": (
        SILENT,
        {"provisioning.fetch_seconds": 0.3},
        "nobody fetched the medium within 0.3 s after the reset",
    ),
    "no_report": (
        Script(progress=False, reports=False),
        {"provisioning.install_seconds": 0.4},
        "no report of success or failure within 0.4 s",
    ),
}


@on_sqlite
@pytest.mark.parametrize("reason", SILENCES)
async def test_a_silent_machine_fails_with_webhook_wait_and_the_reason(
    store_url: str, tmp_path: Path, reason: str
) -> None:
    script, settings, says = SILENCES[reason]
    async with lab(store_url, tmp_path, script=script, settings=settings) as room:
        await room.register()
        job = await room.reaches(await room.submit(), "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", "webhook.wait")
        assert (job["failure"]["reason"], job["error"]) == (reason, says)
        assert not any(drive.image for drive in room.bmc.system.drives.values())


@on_sqlite
async def test_a_machine_that_keeps_reporting_is_not_silent(store_url: str, tmp_path: Path) -> None:
    script = Script(step_seconds=0.3)  # five steps, each reported, in all longer than the allowed silence
    async with lab(store_url, tmp_path, script=script, settings={"provisioning.silence_seconds": 1}) as room:
        await room.register()
        assert (await room.reaches(await room.submit(), "complete"))["outcome"] == "succeeded"


@on_sqlite
async def test_the_current_deadline_is_shown(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        assert (await room.job(job_id))["deadlines"].keys() == {"webhook.wait"}
        (await room.report({"status": "success"})).good()
        assert (await room.reaches(job_id, "complete"))["deadlines"] == {}
