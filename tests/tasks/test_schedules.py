"""Schedules over HTTP: made, shown, changed, paused, run, refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from chargehand.doors.tasks.schedules import MAX_BODY
from chargehand.http.credentials import hash_token
from tests.api.serving import Answer, on_sqlite
from tests.conftest import Clock
from tests.tasks.scheduled import BODY, PATH, TENANT, Node, clock_at, node


@pytest.fixture
def clock() -> Clock:
    return clock_at("2026-05-01T10:20")


@pytest.fixture
async def one(store_url: str, clock: Clock) -> AsyncIterator[Node]:
    async with node(store_url, clock) as running:
        yield running


async def test_a_schedule_is_shown_with_all_its_fields_and_its_next_ticks(one: Node) -> None:
    made = (await one.make()).good(201)
    assert made == {
        "name": "nightly",
        "cron": "0 * * * *",
        "timezone": "UTC",
        "command": "Render",
        "payload": {"n": 12345678901234567890},
        "priority": 0,
        "webhook": "",
        "maxAttempts": 0,
        "limitKey": "",
        "metadata": None,
        "paused": False,
        "nextRunAt": "2026-05-01T11:00:00.000Z",
        "nextRuns": ["2026-05-01T11:00:00.000Z", "2026-05-01T12:00:00.000Z", "2026-05-01T13:00:00.000Z"],
        "lastRunAt": None,
        "lastTaskId": "",
        "lastError": "",
        "version": 1,
        "createdAt": "2026-05-01T10:20:00.000Z",
    }
    assert await one.show() == made
    (await one.make(name="another")).good(201)
    listed = (await one.api.get(PATH)).good()["schedules"]
    assert [each["name"] for each in listed] == ["another", "nightly"]
    del made["nextRuns"]
    assert listed[1] == made


async def test_two_schedules_cannot_have_one_name(one: Node) -> None:
    answers = await asyncio.gather(*[one.make(payload=n) for n in range(5)])
    assert sorted(answer.status for answer in answers) == [201, 409, 409, 409, 409]
    assert {answer.json["error"] for answer in answers if answer.status == 409} == {"schedule exists"}


async def test_a_schedule_can_be_put_and_only_a_change_makes_a_new_version(one: Node) -> None:
    async def put(**fields: Any) -> Answer:
        return await one.api.call("PUT", f"{PATH}/nightly", {k: v for k, v in (BODY | fields).items() if k != "name"})

    assert (await put()).good(201)["version"] == 1
    assert (await put()).good()["version"] == 1
    changed = (await put(payload=[1], priority=99)).good()
    assert (changed["version"], changed["payload"], changed["priority"]) == (2, [1], 9)
    assert changed["nextRunAt"] == "2026-05-01T11:00:00.000Z"
    assert (await put(cron="@daily")).good()["nextRunAt"] == "2026-05-02T00:00:00.000Z"
    # A schedule as it is shown can be sent back.
    assert (await one.api.call("PUT", f"{PATH}/nightly", await one.show())).good()["version"] == 3
    refused = await one.api.call("PUT", f"{PATH}/nightly", BODY | {"name": "other"})
    assert (refused.status, refused.json["field"]) == (400, "name")


async def test_a_change_of_the_payload_does_not_lose_a_tick_that_is_due(one: Node) -> None:
    await one.make()
    one.at("2026-05-01T11:00:01")
    (await one.api.call("PUT", f"{PATH}/nightly", BODY | {"payload": "new"})).good()
    await one.schedules.fire()
    [job] = await one.jobs()
    assert (await one.server.engine.get(job.id)).payload == b'"new"'


async def test_a_paused_schedule_ticks_no_more_and_goes_on_with_the_next_tick(one: Node) -> None:
    await one.make()
    for _ in range(2):
        paused = (await one.api.post(f"{PATH}/nightly/pause")).good()
        assert (paused["paused"], paused["nextRunAt"], paused["nextRuns"], paused["version"]) == (True, None, [], 2)
    await one.fire_at("2026-05-01T13:30")
    assert await one.jobs() == []
    (await one.api.call("PUT", f"{PATH}/nightly", BODY | {"cron": "30 * * * *"})).good()
    assert (await one.show())["nextRunAt"] is None
    for _ in range(2):
        resumed = (await one.api.post(f"{PATH}/nightly/resume")).good()
        assert (resumed["paused"], resumed["nextRunAt"], resumed["version"]) == (False, "2026-05-01T14:30:00.000Z", 4)
    await one.fire_at("2026-05-01T14:30")
    assert await one.ticks() == ["2026-05-01T14:30"]


async def test_run_makes_a_task_now_and_leaves_the_ticks_as_they_are(one: Node) -> None:
    await one.make()
    tasks = [(await one.api.post(f"{PATH}/nightly/run")).good(202) for _ in range(2)]
    assert tasks[0]["id"] != tasks[1]["id"]
    assert (tasks[0]["command"], tasks[0]["status"], tasks[0]["tenantId"]) == ("Render", "PENDING", TENANT)
    assert msgspec.json.decode(tasks[0]["payload"]) == BODY["payload"]
    shown = await one.show()
    assert (shown["lastTaskId"], shown["lastRunAt"]) == (tasks[1]["id"], "2026-05-01T10:20:00.000Z")
    assert (shown["nextRunAt"], shown["version"]) == ("2026-05-01T11:00:00.000Z", 1)
    await one.api.post(f"{PATH}/nightly/pause")
    (await one.api.post(f"{PATH}/nightly/run")).good(202)
    assert (await one.show())["paused"]


async def test_an_unknown_schedule_is_not_found(one: Node, subtests: pytest.Subtests) -> None:
    await one.make()
    assert (await one.api.call("DELETE", f"{PATH}/nightly")).status == 204
    for name in ("nightly", "a%00b", "x" * 201):
        for method, path in [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")]:
            with subtests.test(name=name, method=method, path=path):
                missing = await one.api.call(method, f"{PATH}/{name}{path}")
                assert (missing.status, missing.json["error"]) == (404, "schedule not found")


@on_sqlite
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", ["", " ", "a/b", "a\n", "\0", "..", " a", "x" * 201, 5]),
        ("cron", ["", "61 * * * *", "* * * *", "@often", "0 0 30 2 *", None, 5]),
        ("timezone", ["", "Mars", None]),
        ("command", ["", " ", "x" * 201, "a\0", "*", None]),
        ("payload", [None]),
        ("priority", ["high", 1.5]),
        ("webhook", ["ftp://127.0.0.1/", "http://", "no url", "http://169.254.169.254/", 5]),
        ("maxAttempts", ["many"]),
    ],
)
async def test_a_wrong_value_is_refused_with_its_field(
    one: Node, field: str, values: list[Any], subtests: pytest.Subtests
) -> None:
    for value in values:
        with subtests.test(value=value):
            refused = await one.make(**{field: value})
            assert (refused.status, refused.json["field"]) == (400, field), refused.body
            assert refused.json["error"]
    missing = {name: value for name, value in BODY.items() if name != field}
    if field in BODY:
        assert (await one.api.post(PATH, missing)).json["field"] == field
    assert (await one.api.get(PATH)).good() == {"schedules": []}


@on_sqlite
async def test_a_body_that_is_too_large_or_no_json_is_refused(one: Node) -> None:
    assert (await one.make(payload="x" * MAX_BODY)).status == 413
    assert (await one.api.call("POST", PATH, data=b"{")).status == 400
    assert (
        await one.api.call("POST", PATH, data=b'{"cron": "@daily", "command": "a", "name": "b", "payload": "\xff"}')
    ).json["field"] == "payload"


@on_sqlite
async def test_names_may_hold_all_printable_characters(one: Node) -> None:
    name = "Größe 💥 ?#%&"
    made = (await one.make(name=name)).good(201)
    assert made["name"] == name
    path = f"{PATH}/Gr%C3%B6%C3%9Fe%20%F0%9F%92%A5%20%3F%23%25%26"
    async with one.api.session.get(one.api.url + path) as response:
        assert (await response.json())["name"] == name


@on_sqlite
async def test_schedules_are_for_producers_and_belong_to_their_tenant(store_url: str, clock: Clock) -> None:
    def token(name: str, tenant: str, *scopes: str) -> dict[str, Any]:
        return {"name": name, "hash": hash_token(name), "tenant": tenant, "scopes": list(scopes), "event_types": ["*"]}

    tokens = [
        token("maker", "acme", "codeq:produce"),
        token("worker", "acme", "codeq:claim"),
        token("stranger", "umbrella", "codeq:produce"),
    ]
    async with node(store_url, clock, {"auth.tokens": tokens}) as one:
        maker, worker, stranger = (one.api.of(each["name"]) for each in tokens)
        (await one.make(maker)).good(201)
        for method, path in [("GET", PATH), ("GET", f"{PATH}/nightly"), ("POST", f"{PATH}/nightly/run")]:
            assert (await worker.call(method, path)).json["error"] == "invalid token"
        assert (await stranger.get(f"{PATH}/nightly")).status == 404
        assert (await stranger.call("DELETE", f"{PATH}/nightly")).status == 404
        assert (await stranger.post(f"{PATH}/nightly/run")).status == 404
        assert (await stranger.get(PATH)).good() == {"schedules": []}
        (await one.make(stranger)).good(201)
        await one.fire_at("2026-05-01T11:00")
        made = [job.tenant for tenant in ("acme", "umbrella") for job in await one.jobs(tenant)]
        assert made == ["acme", "umbrella"]
        task_id = (await maker.get(f"{PATH}/nightly")).good()["lastTaskId"]
        assert (await one.server.engine.get(task_id)).tenant == "acme"
