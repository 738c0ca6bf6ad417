"""The API of jobs: submit, list, cancel, retry, follow; scopes, tenants and webhooks."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from chargehand.client import verify_webhook
from tests.api.serving import Api, on_sqlite, until
from tests.inference.calling import a_token, token_of
from tests.provisioning.bmc_habits import PASSWORD, USER, Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SERIAL, Lab, lab
from tests.provisioning.stubborn import KeepsItsMedia
from tests.webhooks.receiver import Receiver, receiving

SILENT = Script(silent=True)
FAILED = {"status": "failed", "failed_step": "partition.service"}
HOOK_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def pause(room: Lab, serial: str = SERIAL, paused: bool = True) -> None:
    (await room.api.call("PUT", f"/engine/queues/provision/{serial}", {"paused": paused})).good()


async def act(room: Lab, job_id: str, verb: str) -> Any:
    return await room.api.post(f"/api/v1/jobs/{job_id}/{verb}")


async def listed(room: Lab, query: str = "") -> tuple[list[str], str | None]:
    page = (await room.api.get(f"/api/v1/jobs?{query}")).good()
    return [job["job_id"] for job in page["jobs"]], page["next"]


# submitting -------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_job_is_accepted_with_its_id_and_its_status(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        body = {"server_serial": SERIAL, "recipe": RECIPE, "metadata": {"ticket": 7}}
        answer = (await room.api.post("/api/v1/jobs", body)).good(202)
        assert answer.keys() == {"job_id", "status", "server_serial", "created_at"}
        assert (answer["status"], answer["server_serial"]) == ("queued", SERIAL)
        job = await room.reaches(answer["job_id"], "complete")
        assert (job["metadata"], job["attempt"], job["task_target"]) == ({"ticket": 7}, 1, "install-linux.target")
        assert job["recipe"]["user_data"] == {"redacted": True, "bytes": len(RECIPE["user_data"])}


@on_sqlite
async def test_the_same_idempotency_key_gives_the_same_job_and_another_body_is_refused(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        body: dict[str, Any] = {"server_serial": SERIAL, "recipe": RECIPE}
        key = {"Idempotency-Key": "once"}
        answers = await asyncio.gather(*(room.api.post("/api/v1/jobs", body, key) for _ in range(10)))
        [job_id] = {answer.good(202)["job_id"] for answer in answers}
        await room.reaches(job_id, "complete")
        assert (await room.api.post("/api/v1/jobs", body, key)).good(202)["job_id"] == job_id
        other = await room.api.post("/api/v1/jobs", {**body, "priority": 3}, key)
        assert other.status == 422
        assert "idempotency" in other.json["error"]
        assert room.guest.imaged == [job_id]


@on_sqlite
async def test_a_server_has_one_active_job_however_many_are_posted_at_once(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        await room.register()
        body = {"server_serial": SERIAL, "recipe": RECIPE}
        answers = await asyncio.gather(*(room.api.post("/api/v1/jobs", body) for _ in range(10)))
        assert sorted(answer.status for answer in answers) == [202] + [409] * 9
        [job_id] = [answer.json["job_id"] for answer in answers if answer.status == 202]
        conflicts = [answer.json for answer in answers if answer.status == 409]
        assert {conflict["error"] for conflict in conflicts} == {"conflict.active_job"}
        assert all(job_id in conflict["message"] for conflict in conflicts)
        await room.waits(job_id)
        (await room.report({"status": "success"})).good()
        await room.reaches(job_id, "complete")
        assert (await room.api.post("/api/v1/jobs", body)).status == 202


# reading ----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_jobs_are_listed_newest_first_by_status_by_server_and_page_by_page(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        jobs = []
        for number in range(5):
            serial = f"SN-{number}"
            await room.register(serial)
            await pause(room, serial)
            jobs.append(await room.submit(serial))
        for job_id in jobs[:2]:
            (await act(room, job_id, "cancel")).good()
        newest = jobs[::-1]
        assert await listed(room) == (newest, None)
        assert await listed(room, "status=complete") == (newest[3:], None)
        assert await listed(room, "status=queued") == (newest[:3], None)
        assert (await listed(room, "status=provisioning"))[0] == []
        assert (await listed(room, "server_serial=SN-3"))[0] == [jobs[3]]
        assert (await listed(room, "server_serial=SN-3&status=complete"))[0] == []
        assert (await listed(room, "server_serial=SN"))[0] == []  # a prefix of a serial does not match
        for query in ("limit=2", "limit=2&status=queued", "limit=1&status=complete"):
            seen: list[str] = []
            page, following = await listed(room, query)
            while page or following:
                seen += page
                if following is None:
                    break
                page, following = await listed(room, f"{query}&cursor={following}")
            assert seen == (await listed(room, query.partition("&")[2]))[0]
        for query in ("status=done", "limit=0", "limit=x", "cursor=nonsense", "nonsense=1", "server_serial=..%2fx"):
            assert (await room.api.get(f"/api/v1/jobs?{query}")).status == 400, query
        for job_id in ("nonsense", "01J00000000000000000000000", "..%2f"):
            assert (await room.api.get(f"/api/v1/jobs/{job_id}")).status in (400, 404)


@on_sqlite
async def test_a_job_of_another_door_is_not_found(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        other = await room.api.submit()
        for path in (f"/api/v1/jobs/{other}", f"/api/v1/jobs/{other}/events"):
            assert (await room.api.get(path)).status == 404
        for verb in ("cancel", "retry"):
            assert (await act(room, other, verb)).status == 404


@on_sqlite
async def test_events_are_streamed_as_they_happen_and_from_any_event_on(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        job_id = await room.submit()
        path = f"/api/v1/jobs/{job_id}/events"
        streamed = await stream(room.api, path)  # ends by itself when the job is complete
        events = await room.events(job_id)
        assert [event["sequence"] for event in streamed] == [event["sequence"] for event in events]
        assert streamed == events
        middle = events[len(events) // 2]["sequence"]
        rest = [event for event in events if event["sequence"] > middle]
        assert await stream(room.api, path, {"Last-Event-ID": str(middle)}) == rest
        assert (await room.api.get(f"{path}?after={middle}")).good()["events"] == rest
        for event in events:
            assert event["time"].endswith("Z")
            assert event["level"] in ("info", "warn", "error")
            assert event["message"]
            assert "\n" not in event["message"]


async def stream(api: Api, path: str, headers: Mapping[str, str] = {}) -> list[dict[str, Any]]:
    accept = {"Accept": "text/event-stream", **headers}
    async with asyncio.timeout(10), api.session.get(api.url + path, headers=accept) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        lines = [line async for line in response.content]
    return [msgspec.json.decode(line.removeprefix(b"data:")) for line in lines if line.startswith(b"data:")]


# cancelling -------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_job_that_has_not_begun_is_cancelled_at_once(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        await pause(room)
        job_id = await room.submit()
        cancelled = (await act(room, job_id, "cancel")).good()
        assert (cancelled["status"], cancelled["outcome"]) == ("complete", "cancelled")
        assert room.bmc.log == []
        assert (await act(room, job_id, "cancel")).good()["outcome"] == "cancelled", "a repeated cancel is accepted"


@on_sqlite
async def test_a_job_cancelled_while_it_inserts_media_ejects_them(store_url: str, tmp_path: Path) -> None:
    habits = Habits(away_after=("insert",), away_seconds=0.3)  # so that there is time to cancel
    async with lab(store_url, tmp_path, habits) as room:
        await room.register()
        job_id = await room.submit()
        await until(lambda: room.bmc.count("insert") == 1)
        (await act(room, job_id, "cancel")).good()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"], job["warnings"]) == ("cancelled", None, [])
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["", ""]
        assert (room.bmc.count("reset"), room.guest.imaged) == (0, [])


@on_sqlite
async def test_after_the_cancel_of_a_waiting_job_its_machine_is_told_to_stop(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        bearer = {"Authorization": f"Bearer {(await room.on_medium())['token']}"}
        cancelled = (await act(room, job_id, "cancel")).good()
        assert cancelled["outcome"] == "cancelled"
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"]) == ("cancelled", None)
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["", ""]
        path = f"/api/v1/status-webhook/{SERIAL}"
        asked = await room.api.post(f"{path}/progress", {"step": "partition.service"}, bearer)
        assert (asked.status, asked.json["go_on"]) == (409, False)
        assert (await room.api.post(path, {"status": "success"}, bearer)).good()["duplicate"] is True
        assert (await room.job(job_id))["outcome"] == "cancelled"


@on_sqlite
async def test_a_job_that_is_being_cleaned_up_cannot_be_cancelled(store_url: str, tmp_path: Path) -> None:
    settings = {"provisioning.cleanup_seconds": 1.5}
    async with lab(store_url, tmp_path, script=SILENT, settings=settings, bmc_class=KeepsItsMedia) as room:
        job_id = await room.waiting()
        (await room.report(FAILED)).good()
        await room.reaches(job_id, "failed")
        refused = await act(room, job_id, "cancel")
        assert refused.status == 409
        assert "failed" in refused.json["message"]
        assert (await room.reaches(job_id, "complete"))["outcome"] == "failed"


# retrying ---------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_failed_job_is_retried_only_on_request(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(fails_at="image-linux.service")) as room:
        await room.register()
        job_id = await room.submit()
        before = await room.reaches(job_id, "complete")
        room.guest.script.fails_at = ""
        tokens = [msgspec.json.decode(room.guest.task["report.json"])["token"]]
        again = (await act(room, job_id, "retry")).good()
        assert (again["outcome"], again["failed_step"], again["error"]) == (None, None, None)
        job = await room.reaches(job_id, "complete")
        assert (before["outcome"], before["attempt"]) == ("failed", 1)
        assert (job["outcome"], job["failed_step"], job["failure"], job["attempt"]) == ("succeeded", None, None, 2)
        assert room.guest.imaged == [job_id, job_id]
        tokens.append(msgspec.json.decode(room.guest.task["report.json"])["token"])
        assert tokens[0] != tokens[1]
        refused = await act(room, job_id, "retry")
        assert (refused.status, refused.json["error"]) == (409, "conflict.state")
        assert (await act(room, job_id, "cancel")).status == 409


@on_sqlite
async def test_a_retry_is_refused_while_the_job_or_another_of_its_server_is_active(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        first = await room.waiting()
        assert (await act(room, first, "retry")).status == 409
        (await act(room, first, "cancel")).good()
        await room.reaches(first, "complete")
        second = await room.submit()
        refused = await act(room, first, "retry")
        assert (refused.status, refused.json["error"]) == (409, "conflict.active_job")
        await room.waits(second)
        (await room.report({"status": "success"})).good()
        await room.reaches(second, "complete")
        assert (await act(room, first, "retry")).good()["status"] in ("queued", "provisioning")


# tenants and scopes -----------------------------------------------------------------------------------------------------

TOKENS = [
    a_token("acme", "acme"),
    a_token("umbrella", "umbrella"),
    a_token("reader", "acme", "provision:read"),
    a_token("writer", "acme", "provision:write"),
    a_token("keeper", "acme", "provision:servers"),
]


@on_sqlite
async def test_tenants_can_neither_see_nor_change_jobs_and_servers_of_each_other(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, settings={"auth.tokens": TOKENS}, token=token_of("acme")) as room:
        umbrella = room.api.of(token_of("umbrella"))
        await room.register()
        job_id = await room.submit()
        assert (await room.reaches(job_id, "complete"))["outcome"] == "succeeded"  # machines need no tenant's token
        for path in ("", "/events"):
            assert (await umbrella.get(f"/api/v1/jobs/{job_id}{path}")).status == 404
        for verb in ("cancel", "retry"):
            assert (await umbrella.post(f"/api/v1/jobs/{job_id}/{verb}")).status == 404
        assert (await umbrella.get("/api/v1/jobs")).good()["jobs"] == []
        assert (await umbrella.get("/api/v1/servers")).good()["servers"] == []
        assert (await umbrella.get(f"/api/v1/servers/{SERIAL}")).status == 404
        assert (await umbrella.call("DELETE", f"/api/v1/servers/{SERIAL}")).status == 404
        assert (await umbrella.post(f"/api/v1/servers/{SERIAL}/probe")).status == 404
        body = {"server_serial": SERIAL, "recipe": RECIPE}
        assert (await umbrella.post("/api/v1/jobs", body)).json["error"] == "validation.server"
        record = {"bmc_address": room.bmc.url, "bmc_username": USER, "bmc_password": PASSWORD}
        own = (await umbrella.call("PUT", f"/api/v1/servers/{SERIAL}", record)).good()
        assert (own["active_job"], own["probe"]) == (None, None)


@on_sqlite
async def test_each_scope_allows_only_its_own_routes(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, settings={"auth.tokens": TOKENS}, token=token_of("acme")) as room:
        await room.register()
        job_id = await room.submit()
        await room.reaches(job_id, "complete")
        one = f"/api/v1/jobs/{job_id}"
        server = f"/api/v1/servers/{SERIAL}"
        record = {"bmc_address": room.bmc.url}
        routes: dict[str, list[tuple[str, str, Any]]] = {
            "reader": [
                ("GET", "/api/v1/jobs", None),
                ("GET", one, None),
                ("GET", f"{one}/events", None),
                ("GET", "/api/v1/servers", None),
                ("GET", server, None),
                ("GET", "/api/v1/recipe-schema", None),
                ("POST", "/api/v1/recipes/validate", RECIPE),
            ],
            "writer": [
                ("POST", "/api/v1/jobs", {}),
                ("POST", f"{one}/cancel", None),
                ("POST", f"{one}/retry", None),
            ],
            "keeper": [("PUT", server, record), ("POST", f"{server}/probe", None), ("DELETE", server, None)],
        }
        for owner, rows in routes.items():
            for method, path, body in rows:
                assert (await Api(room.api.url, room.api.session).call(method, path, body)).status == 401
                for name in routes:
                    answer = await room.api.of(token_of(name)).call(method, path, body)
                    assert (answer.status == 403) is (name != owner), (name, method, path, answer.body)


# webhooks ---------------------------------------------------------------------------------------------------------------


def statuses(receiver: Receiver, job_id: str) -> list[str]:
    bodies = [msgspec.json.decode(hook.body) for hook in receiver.hooks]
    found = sorted((body for body in bodies if body["job_id"] == job_id), key=lambda body: body["sequence"])
    return [body["status"] for body in found]


@on_sqlite
async def test_the_caller_gets_one_signed_webhook_for_each_status(store_url: str, tmp_path: Path) -> None:
    settings = {"webhooks.secret": HOOK_SECRET}
    async with receiving() as receiver, lab(store_url, tmp_path, settings=settings) as room:
        await room.register()
        job_id = await room.submit(webhook={"url": receiver.url()}, metadata={"ticket": 7})
        await room.reaches(job_id, "complete")
        await until(lambda: len(statuses(receiver, job_id)) >= 4)
        assert statuses(receiver, job_id) == ["queued", "provisioning", "succeeded", "complete"]
        for hook in receiver.hooks:
            verify_webhook(HOOK_SECRET, hook.headers, hook.body)
        last = msgspec.json.decode(max(receiver.hooks, key=lambda hook: hook.body.count(b'"complete"')).body)
        assert (last["outcome"], last["failed_step"], last["metadata"]) == ("succeeded", None, {"ticket": 7})


@on_sqlite
async def test_the_caller_may_select_the_statuses_of_its_webhooks(store_url: str, tmp_path: Path) -> None:
    script = Script(fails_at="partition.service")
    async with receiving() as receiver, lab(store_url, tmp_path, script=script) as room:
        await room.register()
        job_id = await room.submit(webhook={"url": receiver.url(), "on": ["failed", "complete"]})
        await room.reaches(job_id, "complete")
        await until(lambda: len(receiver.hooks) >= 2)
        assert statuses(receiver, job_id) == ["failed", "complete"]
        told = [msgspec.json.decode(hook.body) for hook in receiver.hooks]
        assert {(body["outcome"], body["failed_step"]) for body in told} == {("failed", "workflow.partition")}


async def test_each_status_is_sent_once_also_over_a_restart(store_url: str, tmp_path: Path) -> None:
    async with receiving() as receiver, lab(store_url, tmp_path, script=SILENT) as room:
        await room.register()
        job_id = await room.submit(webhook={"url": receiver.url()})
        await room.waits(job_id)
        await room.stop()
        await room.start()
        (await room.report(FAILED)).good()
        await room.reaches(job_id, "complete")
        await until(lambda: len(statuses(receiver, job_id)) >= 4)
        assert statuses(receiver, job_id) == ["queued", "provisioning", "failed", "complete"]
