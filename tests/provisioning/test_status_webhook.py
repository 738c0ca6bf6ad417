"""The inbound webhook by its contract, sections 3.2 to 3.6 and 5."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Answer, on_sqlite, serving, talking, until
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import QUICK, RECIPE, SECRET, SERIAL, Lab, lab

SILENT = Script(silent=True)
SUCCESS = {"status": "success"}
FAILED = {"status": "failed", "failed_step": "partition.service"}


def refused(answer: Answer, status: int, code: str) -> None:
    """Check a refusal: its status, its code and its format."""
    assert (answer.status, answer.json["error"]) == (status, code), answer.body
    assert answer.json["message"]


async def outcome(room: Lab, job_id: str) -> tuple[str, str | None]:
    job = await room.reaches(job_id, "complete")
    return job["outcome"], job["failed_step"]


# 3.3, 5.2: credentials ------------------------------------------------------------------------------------------------


@on_sqlite
async def test_missing_credentials_are_401_and_wrong_ones_403_and_nothing_changes(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        nobody = await room.report(SUCCESS, secret=None)
        refused(nobody, 401, "auth.unauthenticated")
        assert nobody.headers["www-authenticate"]
        for secret in ("", "wrong", SECRET[:-1], SECRET + "x", SECRET.upper(), "ä" * 10):
            refused(await room.report(SUCCESS, secret=secret), 403, "auth.forbidden")
        token = (await room.on_medium())["token"]
        for bearer in ("nonsense", token[:-1], token.replace(".1.", ".2."), token + "=", "cht_"):
            refused(await room.report(SUCCESS, secret=None, Authorization=f"Bearer {bearer}"), 403, "auth.forbidden")
        # A wrong token is refused although the secret is right.
        refused(await room.report(SUCCESS, Authorization="Bearer cht_nonsense"), 403, "auth.forbidden")
        assert (await room.job(job_id))["status"] == "provisioning"
        assert await room.told(job_id, "webhook") == []


@on_sqlite
async def test_credentials_are_checked_before_anything_else(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        for serial in ("SN-UNKNOWN", "%00", "a%20b"):
            refused(await room.report({"nonsense": 1}, serial, secret=None), 401, "auth.unauthenticated")
            refused(await room.report({"nonsense": 1}, serial, secret="wrong"), 403, "auth.forbidden")


@on_sqlite
@pytest.mark.parametrize("secret", [SECRET, "the secret before it"])
async def test_the_current_and_the_previous_secret_are_accepted(store_url: str, tmp_path: Path, secret: str) -> None:
    settings = {"provisioning.previous_webhook_secret": "the secret before it"}
    async with lab(store_url, tmp_path, script=SILENT, settings=settings) as room:
        job_id = await room.waiting()
        assert (await room.report(SUCCESS, secret=secret)).good() == {
            "job_id": job_id,
            "status": "success",
            "duplicate": False,
        }
        assert await outcome(room, job_id) == ("succeeded", None)
        [heard] = await room.told(job_id, "webhook")
        assert heard["data"]["auth"] == "secret"


@on_sqlite
async def test_without_a_configured_secret_only_the_jobs_token_is_accepted(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT, settings={"provisioning.webhook_secret": ""}) as room:
        job_id = await room.waiting()
        for secret in ("", SECRET):
            refused(await room.report(SUCCESS, secret=secret), 403, "auth.forbidden")
        token = (await room.on_medium())["token"]
        (await room.report(SUCCESS, secret=None, Authorization=f"Bearer {token}")).good()
        assert await outcome(room, job_id) == ("succeeded", None)


@on_sqlite
async def test_a_jobs_token_is_valid_for_that_job_and_server_only(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        first = await room.waiting()
        token = (await room.on_medium())["token"]
        (await room.report(FAILED)).good()
        await room.reaches(first, "complete")
        await room.register("SN-2")
        other = await room.report(SUCCESS, "SN-2", None, Authorization=f"Bearer {token}")
        assert other.status == 404
        second = await room.submit()
        await room.waits(second)
        late = await room.report(SUCCESS, secret=None, Authorization=f"Bearer {token}")
        assert late.good() == {"job_id": first, "status": "success", "duplicate": True}
        assert (await room.job(second))["status"] == "provisioning"
        assert (await room.job(first))["outcome"] == "failed"


@on_sqlite
async def test_a_report_with_the_token_of_an_earlier_start_changes_nothing(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        old = (await room.on_medium())["token"]
        (await room.report(FAILED)).good()
        await room.reaches(job_id, "complete")
        (await room.api.post(f"/api/v1/jobs/{job_id}/retry")).good()
        await room.waits(job_id)
        new = (await room.on_medium())["token"]
        assert new != old
        stale = await room.report(SUCCESS, secret=None, Authorization=f"Bearer {old}")
        assert stale.good()["duplicate"] is True
        progress = {"step": "partition.service", "boot_id": "b"}
        path = f"/api/v1/status-webhook/{SERIAL}/progress"
        told = await room.api.post(path, progress, {"Authorization": f"Bearer {old}"})
        assert (told.status, told.json["go_on"]) == (409, False)
        assert (await room.job(job_id))["status"] == "provisioning"
        (await room.report(SUCCESS, secret=None, Authorization=f"Bearer {new}")).good()
        assert await outcome(room, job_id) == ("succeeded", None)


# 3.4, 5.3: the payload ------------------------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "no status": {},
    "another status": {"status": "done"},
    "status null": {"status": None},
    "status a number": {"status": 1},
    "failed without a step": {"status": "failed"},
    "failed with an empty step": {"status": "failed", "failed_step": ""},
    "failed with a blank step": {"status": "failed", "failed_step": " \t "},
    "failed with a number for a step": {"status": "failed", "failed_step": 7},
    "failed with a step of 300 characters": {"status": "failed", "failed_step": "x" * 300},
    "an empty delivery id": {**SUCCESS, "delivery_id": ""},
    "a delivery id of 200 characters": {**SUCCESS, "delivery_id": "x" * 200},
    "a list": [SUCCESS],
    "a text": "success",
    "null": None,
}


@on_sqlite
async def test_an_invalid_report_is_400_and_changes_nothing(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        path = f"/api/v1/status-webhook/{SERIAL}"
        for what, body in WRONG.items():
            answer = await room.api.call("POST", path, data=_json(body), headers={"X-Webhook-Secret": SECRET})
            assert (what, answer.status) == (what, 400)
            assert answer.json["message"]
        for raw in (b"", b"{", b"\xff\xfe", b'{"status": "success"', b"[" * 100_000, b"\0"):
            answer = await room.api.call("POST", path, data=raw, headers={"X-Webhook-Secret": SECRET})
            assert answer.status == 400
        large = _json({**SUCCESS, "log_tail": "x" * 300_000})
        assert (await room.api.call("POST", path, data=large, headers={"X-Webhook-Secret": SECRET})).status == 413
        assert (await room.job(job_id))["status"] == "provisioning"
        assert await room.told(job_id, "webhook") == []


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


@on_sqlite
@pytest.mark.parametrize(
    ("said", "step"),
    [
        (FAILED, "workflow.partition"),
        ({"status": "failed", "failed_step": "bootloader-linux"}, "workflow.bootloader-linux"),
        ({"status": "failed", "failed_step": " image-linux.service "}, "workflow.image-linux"),
        ({"status": "failed", "failed_step": "site-special.service"}, "workflow.site-special"),
        ({"status": "success", "failed_step": "partition.service"}, None),
    ],
    ids=[
        "a unit",
        "without .service",
        "with blanks",
        "a unit that is not in the table",
        "ignored with success",
    ],
)
async def test_the_unit_that_failed_becomes_a_key(
    store_url: str, tmp_path: Path, said: Mapping[str, str], step: str | None
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await room.report(said)).good()
        job = await room.reaches(job_id, "complete")
        assert job["failed_step"] == step
        if step:
            assert job["failure"]["unit"] == said["failed_step"].strip()


@on_sqlite
async def test_optional_fields_are_kept_and_unknown_ones_ignored(store_url: str, tmp_path: Path) -> None:
    optional = {
        "delivery_id": "0b7c6f5e-8d5a-4a8e-9a43-0e2b7b0b6a11",
        "task_target": "install-linux.target",
        "dispatcher_version": "1.2.3",
        "schema_id": "https://chargehand.dev/schemas/recipe/1.0/schema.json",
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:10:00Z",
    }
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await room.report({**SUCCESS, **optional, "attempt": 3, "nested": {"deep": [1, 2]}})).good()
        [heard] = await room.told(job_id, "webhook")
        assert heard["data"] == {"kind": "webhook", "auth": "secret", "status": "success", **optional}
        assert heard["level"] == "info"
        assert await outcome(room, job_id) == ("succeeded", None)


# 5.1: the job of a report ---------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_report_for_a_server_without_a_started_job_is_404(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        assert (await room.report(SUCCESS, "SN-UNKNOWN")).status == 404
        assert (await room.report(SUCCESS, "..%2f..%2fetc")).status == 404
        await room.register()
        assert (await room.report(SUCCESS)).status == 404
        (await room.api.call("PUT", f"/engine/queues/provision/{SERIAL}", {"paused": True})).good()
        job_id = await room.submit()
        assert (await room.report(SUCCESS)).status == 404
        assert (await room.job(job_id))["status"] == "queued"
        assert (await room.job(job_id))["outcome"] is None


@on_sqlite
async def test_a_report_for_a_job_that_waits_for_its_retry_is_refused(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await room.report({**FAILED, "delivery_id": "d-1"})).good()
        await room.reaches(job_id, "complete")
        (await room.api.call("PUT", f"/engine/queues/provision/{SERIAL}", {"paused": True})).good()
        (await room.api.post(f"/api/v1/jobs/{job_id}/retry")).good()
        for said in (SUCCESS, {**FAILED, "delivery_id": "d-1"}, {**SUCCESS, "delivery_id": "d-2"}):
            assert (await room.report(said)).status == 404
        job = await room.job(job_id)
        assert (job["status"], job["outcome"], job["failed_step"], job["failure"]) == ("queued", None, None, None)
        assert len(await room.told(job_id, "webhook")) == 1


@on_sqlite
async def test_a_report_without_a_job_is_refused_until_the_machine_was_reset(store_url: str, tmp_path: Path) -> None:
    habits = Habits(away_after=("insert",), away_seconds=0.5)  # so that there is time before the reset
    async with lab(store_url, tmp_path, habits, Script(silent=True)) as room:
        await room.register()
        job_id = await room.submit()
        await until(lambda: room.bmc.count("insert"))
        assert (await room.report(SUCCESS)).status == 404, "it may be a late retry of an earlier job's machine"
        assert (await room.job(job_id))["outcome"] is None
        await room.waits(job_id)
        (await room.report(SUCCESS)).good()
        assert room.bmc.count("reset") == 1


@on_sqlite
async def test_a_job_id_in_the_payload_must_be_that_of_a_job_of_this_server(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        stranger = "01J00000000000000000000000"
        assert (await room.report({**SUCCESS, "job_id": stranger})).status == 404
        assert (await room.job(job_id))["status"] == "provisioning"
        assert (await room.report({**SUCCESS, "job_id": job_id})).good()["job_id"] == job_id
        assert await outcome(room, job_id) == ("succeeded", None)


@on_sqlite
async def test_a_report_for_an_earlier_job_does_not_touch_the_one_that_runs(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        first = await room.waiting()
        (await room.report(FAILED)).good()
        await room.reaches(first, "complete")
        second = await room.submit()
        await room.waits(second)
        answer = (await room.report({**SUCCESS, "job_id": first})).good()
        assert (answer["job_id"], answer["duplicate"]) == (first, True)
        assert (await room.job(second))["outcome"] is None


# 3.5, 5.5, 9: sent at least once, counted exactly once -----------------------------------------------------------------


@on_sqlite
async def test_after_the_outcome_each_new_delivery_is_200_and_one_event_and_changes_nothing(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await room.report({**FAILED, "delivery_id": "d-1"})).good()
        before = await room.reaches(job_id, "complete")
        for said in ({**SUCCESS, "delivery_id": "d-2"}, {**FAILED, "delivery_id": "d-3"}):
            for _ in range(3):
                assert (await room.report(said)).good()["duplicate"] is True
        assert (await room.report({**FAILED, "delivery_id": "d-1"})).good()["duplicate"] is True
        heard = await room.told(job_id, "webhook")
        assert [event["data"]["delivery_id"] for event in heard] == ["d-1", "d-2", "d-3"]
        assert all("nothing changed" in event["message"] for event in heard[1:])
        after = await room.job(job_id)
        unchanged = ("status", "outcome", "failed_step", "error", "failure", "finished_at")
        assert [after[name] for name in unchanged] == [before[name] for name in unchanged]
        assert await room.shown(job_id) == ["queued", "provisioning", "failed", "complete"]


@on_sqlite
async def test_the_last_32_delivery_ids_are_remembered(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        for number in range(33):
            (await room.report({**SUCCESS, "delivery_id": f"d-{number}"})).good()
        assert len(await room.told(job_id, "webhook")) == 33
        (await room.report({**SUCCESS, "delivery_id": "d-1"})).good()  # the oldest of the 32
        assert len(await room.told(job_id, "webhook")) == 33
        (await room.report({**SUCCESS, "delivery_id": "d-0"})).good()  # the one before them
        assert len(await room.told(job_id, "webhook")) == 34
        assert await outcome(room, job_id) == ("succeeded", None)


STORMS: dict[str, list[dict[str, str]]] = {
    "one delivery 100 times": [{**FAILED, "delivery_id": "same"}] * 100,
    "100 deliveries": [{**SUCCESS, "delivery_id": f"d-{number}"} for number in range(100)],
    "100 times without an id": [FAILED] * 100,
    "50 of success and 50 of failure": [
        {**said, "delivery_id": f"d-{number}-{said['status']}"} for number in range(50) for said in (SUCCESS, FAILED)
    ],
}


@pytest.mark.parametrize("storm", STORMS)
async def test_a_hundred_webhooks_at_once_are_one_change_and_200_for_all(
    store_url: str, tmp_path: Path, storm: str
) -> None:
    said = STORMS[storm]
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        answers = await asyncio.gather(*(room.report(each) for each in said))
        assert Counter(answer.status for answer in answers) == {200: 100}
        [first] = [answer.json for answer in answers if not answer.json["duplicate"]]
        ended, step = await outcome(room, job_id)
        assert ended == {"success": "succeeded", "failed": "failed"}[first["status"]]
        assert step == (None if ended == "succeeded" else "workflow.partition")
        assert await room.shown(job_id) == ["queued", "provisioning", ended, "complete"]
        distinct = len({each.get("delivery_id", number) for number, each in enumerate(said)})
        assert len(await room.told(job_id, "webhook")) == distinct
        assert room.bmc.count("reset") == (2 if ended == "succeeded" else 1)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_the_same_report_at_two_nodes_makes_one_change(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        settings = {
            **QUICK,
            "server.data_dir": str(tmp_path / "other"),
            "provisioning.key": "a key for tests of more than thirty-two bytes",
        }
        async with serving(store_url, settings) as server, talking(server) as api:
            headers = {"X-Webhook-Secret": SECRET}
            path = f"/api/v1/status-webhook/{SERIAL}"
            calls = [doors.post(path, said, headers) for said in (SUCCESS, FAILED) * 10 for doors in (room.api, api)]
            answers = await asyncio.gather(*calls)
            assert {answer.status for answer in answers} == {200}
            assert len([answer for answer in answers if not answer.json["duplicate"]]) == 1
            ended, _ = await outcome(room, job_id)
            assert await room.shown(job_id) == ["queued", "provisioning", ended, "complete"]


@on_sqlite
async def test_a_report_that_arrives_before_the_bmc_is_back_is_accepted(store_url: str, tmp_path: Path) -> None:
    """A machine may report while its BMC is still away after the reset."""
    habits = Habits(away_after=("reset",), away_seconds=0.5)
    async with lab(store_url, tmp_path, habits) as room:
        await room.register()
        job_id = await room.submit(recipe={**RECIPE, "on_success": "leave"})
        await until(lambda: room.guest.answers)
        assert room.guest.answers[0][0] == 200
        assert await outcome(room, job_id) == ("succeeded", None)
        assert room.bmc.count("reset") == 1
