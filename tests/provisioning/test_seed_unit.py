"""The unit tests of the controller that section 10 of the contract lists, each by its name there.

Webhook handler
    "Accepts minimal success/failure payloads"                      test_webhook_handler_accepts_minimal_…
    "Requires failed_step on failure"                               test_webhook_handler_requires_failed_step_on_failure
    "Auth: rejects without secret; accepts with correct secret"     test_auth_rejects_without_secret_…
    "Idempotent duplicates return 200 OK without state change"      test_idempotent_duplicates_return_200_…
State machine
    "Transition paths with events recorded and failed_step propagation"     test_transition_paths_…
ISO and Redfish error mapping
    "Terminal Redfish errors map to failed with correct step"       test_terminal_redfish_errors_map_…
    "Timeouts produce webhook.wait or redfish.poll failures"        test_timeouts_produce_…

Every key and every code in depth: test_taxonomy.py, test_bmc_habits.py, test_status_webhook.py.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import on_sqlite
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import SECRET, lab
from tests.provisioning.stubborn import SecondDriveJams

SILENT = Script(silent=True)
FAILURE = {"status": "failed", "failed_step": "bootloader-linux.service"}


@pytest.mark.parametrize(
    ("payload", "outcome", "failed_step"),
    [({"status": "success"}, "succeeded", None), (FAILURE, "failed", "workflow.bootloader-linux")],
    ids=["success", "failure"],
)
async def test_webhook_handler_accepts_minimal_success_and_failure_payloads(
    store_url: str, tmp_path: Path, payload: dict[str, str], outcome: str, failed_step: str | None
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        assert (await room.report(payload)).status == 200
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"]) == (outcome, failed_step)


@on_sqlite
async def test_webhook_handler_requires_failed_step_on_failure(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        refused = await room.report({"status": "failed"})
        assert (refused.status, refused.json["details"][0]["path"]) == (400, "/failed_step")
        assert (await room.job(job_id))["status"] == "provisioning"


@on_sqlite
async def test_auth_rejects_without_secret_and_accepts_with_correct_secret(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        assert (await room.report({"status": "success"}, secret=None)).status == 401
        assert (await room.report({"status": "success"}, secret=SECRET + "!")).status == 403
        assert (await room.job(job_id))["status"] == "provisioning"
        assert (await room.report({"status": "success"}, secret=SECRET)).status == 200
        assert (await room.reaches(job_id, "complete"))["outcome"] == "succeeded"


async def test_idempotent_duplicates_return_200_ok_without_state_change(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        for payload in (FAILURE, FAILURE, {"status": "success"}, {**FAILURE, "failed_step": "partition.service"}):
            assert (await room.report(payload)).status == 200
        job = await room.reaches(job_id, "complete")
        assert (await room.report({"status": "success"})).status == 200
        assert await room.shown(job_id) == ["queued", "provisioning", "failed", "complete"]
        assert (job["outcome"], job["failed_step"]) == ("failed", "workflow.bootloader-linux")


@pytest.mark.parametrize(
    ("script", "statuses", "step"),
    [
        (Script(), ["queued", "provisioning", "succeeded", "complete"], None),
        (
            Script(fails_at="partition.service"),
            ["queued", "provisioning", "failed", "complete"],
            "workflow.partition",
        ),
    ],
    ids=["succeeds", "fails"],
)
async def test_transition_paths_with_events_recorded_and_failed_step_propagation(
    store_url: str, tmp_path: Path, script: Script, statuses: list[str], step: str | None
) -> None:
    async with lab(store_url, tmp_path, script=script) as room:
        await room.register()
        job_id = await room.submit()
        job = await room.reaches(job_id, "complete")
        assert await room.shown(job_id) == statuses
        assert job["failed_step"] == step
        [ended] = [event for event in await room.told(job_id, "outcome") if event["status"] == statuses[2]]
        assert (ended["step"], ended["data"].get("failed_step")) == (step or "", step)
        steps = [event["step"] for event in await room.told(job_id, "step")]
        for key in (
            "iso.build",
            "redfish.discover",
            "redfish.mount.maintenance",
            "redfish.mount.task",
            "redfish.boot-override",
            "redfish.reset",
            "cleanup.unmount",
        ):
            assert key in steps
        [last] = [event for event in await room.events(job_id) if event["status"] == "complete"]
        assert last["message"].startswith("complete: ")


@on_sqlite
@pytest.mark.parametrize(
    ("habits", "bmc_class", "step"),
    [
        (Habits(serial="ANOTHER"), FakeBmc, "redfish.discover"),
        (Habits(wants=("Ticket",)), FakeBmc, "redfish.mount.maintenance"),
        (Habits(), SecondDriveJams, "redfish.mount.task"),
        (Habits(targets=("Pxe",)), FakeBmc, "redfish.boot-override"),
        (Habits(resets=("Nmi",)), FakeBmc, "redfish.reset"),
    ],
    ids=["discover", "mount.maintenance", "mount.task", "boot-override", "reset"],
)
async def test_terminal_redfish_errors_map_to_failed_with_correct_step(
    store_url: str, tmp_path: Path, habits: Habits, bmc_class: type[FakeBmc], step: str
) -> None:
    async with lab(store_url, tmp_path, habits, bmc_class=bmc_class) as room:
        await room.register()
        job_id = await room.submit()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", step)
        assert await room.shown(job_id) == ["queued", "provisioning", "failed", "complete"]


@on_sqlite
@pytest.mark.parametrize(
    ("habits", "settings", "step"),
    [
        (Habits(), {"provisioning.install_seconds": 0.3}, "webhook.wait"),
        (Habits(away_after=("reset",), away_seconds=0.6), {"provisioning.bmc_back_seconds": 0.3}, "redfish.poll"),
    ],
    ids=["webhook.wait", "redfish.poll"],
)
async def test_timeouts_produce_webhook_wait_or_redfish_poll_failures(
    store_url: str, tmp_path: Path, habits: Habits, settings: dict[str, Any], step: str
) -> None:
    async with lab(store_url, tmp_path, habits, SILENT, settings) as room:
        await room.register()
        job = await room.reaches(await room.submit(), "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", step)
