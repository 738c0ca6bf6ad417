import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from chargehand.app import Server
from tests.api.serving import Api, exchange, on_sqlite, until
from tests.webhooks.receiver import Receiver


async def follow(api: Api, job_id: str, headers: Mapping[str, str] = {}) -> Any:
    """Collect the events of a job as the server pushes them."""
    headers = {"Accept": "text/event-stream", **headers}
    async with api.session.get(f"{api.url}/engine/jobs/{job_id}/events", headers=headers) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        fields: dict[str, str] = {}
        async for line in response.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                event = msgspec.json.decode(fields["data"])
                assert (fields["id"], fields["event"]) == (str(event["sequence"]), event["move"])
                yield event
                fields = {}


# ── submitting ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_that_was_accepted_can_be_read(api: Api) -> None:
    accepted = await api.post(
        "/engine/jobs", {"queue": "q", "payload": {"a": [1]}, "priority": 9, "metadata": {"b": 2}}
    )
    job_id = accepted.good(202)["job_id"]
    assert accepted.headers["location"] == f"/engine/jobs/{job_id}"
    job = await api.job(job_id)
    expected = {
        "id": job_id, "kind": "job", "queue": "q", "state": "queued", "stage": "", "previous": "", "priority": 9,
        "attempt": 0, "max_attempts": 5, "waiting_for": "worker", "error": None, "lease_owner": None, "sequence": 1,
        "finished_at": None, "position": 0, "metadata": {"b": 2}, "payload": {"a": [1]}, "result": None,
    }  # fmt: skip
    assert {name: job[name] for name in expected} == expected
    assert job["created_at"] == job["run_at"]


async def test_a_payload_keeps_every_digit_and_every_letter(api: Api) -> None:
    payload = '{"n": 12345678901234567890123.10, "t": "\\u0000 ü \\ud83d\\ude00", "n": [ ]}'
    answer = await api.call("POST", "/engine/jobs", data=f'{{"queue": "q", "payload": {payload}}}'.encode())
    body = (await api.get(f"/engine/jobs/{answer.good(202)['job_id']}")).body
    assert f'"payload":{payload}'.encode() in body


async def test_every_change_of_a_job_is_sent_to_its_webhook(api: Api, receiver: Receiver) -> None:
    job_id = await api.submit(webhook={"url": receiver.url()}, metadata={"mine": 1})
    await api.move(await api.claim(), "succeed", result={"answer": 42})
    await until(lambda: len(receiver.hooks) == 3)
    bodies = [msgspec.json.decode(hook.body) for hook in receiver.hooks]
    assert [body["type"] for body in bodies] == ["job.queued", "job.running", "job.succeeded"]
    assert [body["data"]["previous"] for body in bodies] == ["", "queued", "running:claimed"]
    assert {(body["data"]["job_id"], body["data"]["metadata"]["mine"]) for body in bodies} == {(job_id, 1)}
    assert [body["data"]["result"] for body in bodies] == [None, None, {"answer": 42}]


async def test_a_webhook_may_ask_for_some_states_only(api: Api, receiver: Receiver) -> None:
    await api.submit(webhook={"url": receiver.url(), "on": ["failed", "succeeded"]})
    await api.move(await api.claim(), "fail", error="no use", failed_step="start")
    [hook] = await until(lambda: receiver.hooks)
    body = msgspec.json.decode(hook.body)
    assert (body["type"], body["data"]["error"]) == ("job.failed", "no use")


@on_sqlite
async def test_a_wrong_value_is_refused_and_its_field_is_named(api: Api, subtests: pytest.Subtests) -> None:
    wrong: list[tuple[str, Any]] = [
        ("queue", ""),
        ("queue", "x" * 201),
        ("queue", "tab\there"),
        ("queue", 1),
        ("priority", -1),
        ("priority", 10),
        ("priority", "high"),
        ("priority", 1.5),
        ("max_attempts", 0),
        ("max_attempts", 1001),
        ("run_at", "tomorrow"),
        ("run_at", "2026-01-01T00:00:00"),
        ("delay_seconds", -1),
        ("delay_seconds", 1e10),
        ("deadline_seconds", 0),
        ("deadline_seconds", 1e10),
        ("deadline_seconds", "soon"),
        ("metadata", []),
        ("metadata", {"long": "x" * 20_000}),
        ("webhook", "http://127.0.0.1/"),
        ("webhook.url", None),
        ("webhook.on", ["done"]),
    ]
    for field, value in wrong:
        outer, _, inner = field.partition(".")
        job = {"queue": "q", "payload": 1, outer: {"url": "http://127.0.0.1/", inner: value} if inner else value}
        with subtests.test(field=field, value=value):
            (await api.post("/engine/jobs", job)).problem(400, "request.invalid_field", field)


@on_sqlite
async def test_a_webhook_with_a_forbidden_url_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for url in (
        "ftp://example.org/",
        "http://169.254.169.254/",
        "http://u:p@example.org/",
        "http://[::]/",
        "http://a/#b",
    ):
        with subtests.test(url=url):
            refused = await api.post("/engine/jobs", {"queue": "q", "payload": 1, "webhook": {"url": url}})
            refused.problem(422, "egress.refused", "webhook.url")


@on_sqlite
@pytest.mark.parametrize("field", ["payload", "metadata"])
async def test_json_that_is_not_utf_8_is_refused(api: Api, field: str) -> None:
    parts = {"queue": b'"q"', "payload": b"1", field: b'{"a": "\xff"}'}
    body = b"{" + b", ".join(b'"%s": %s' % (name.encode(), value) for name, value in parts.items()) + b"}"
    refused = await api.call("POST", "/engine/jobs", data=body)
    assert refused.status == 400
    assert refused.json["code"] in ("request.invalid", "request.invalid_field")


# ── later ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delayed_job_waits_for_its_time(api: Api) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for fields in ({"run_at": later.isoformat()}, {"delay_seconds": 3600}):
        job = await api.job(await api.submit(**fields))
        assert job["waiting_for"] == "run_at"
        assert abs(datetime.fromisoformat(job["run_at"]) - later) < timedelta(seconds=10)
    assert (await api.post("/engine/claims", {"queues": ["q"]})).status == 204


async def test_a_job_with_a_time_in_the_past_is_due_now(api: Api) -> None:
    job_id = await api.submit(run_at="0001-01-01T00:00:00Z")
    assert (await api.claim())["id"] == job_id


async def test_the_last_possible_run_time_is_refused_or_can_be_read_back(api: Api, subtests: pytest.Subtests) -> None:
    ends: list[dict[str, Any]] = [
        {"run_at": "9999-12-31T23:59:59.999999Z"},
        {"run_at": "9999-12-31T23:59:59Z", "delay_seconds": 315_360_000},
        {"run_at": "9999-12-31T23:59:59-23:59"},
    ]
    for end in ends:
        with subtests.test(**end):
            submitted = await api.post("/engine/jobs", {"queue": "q", "payload": 1, **end})
            if submitted.status == 202:
                await api.job(submitted.json["job_id"])
            else:
                submitted.problem(400, "request.invalid_field", "run_at")
    (await api.get("/engine/jobs")).good()


# ── in time ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_that_is_not_done_by_its_deadline_fails(api: Api, receiver: Receiver) -> None:
    job_id = await api.submit(deadline_seconds=0.001, webhook={"url": receiver.url(), "on": ["failed"]})
    [hook] = await until(lambda: receiver.hooks)
    body = msgspec.json.decode(hook.body)
    assert (body["type"], body["data"]["error"]) == ("job.failed", "the deadline of 0.001 s passed")
    job = await api.job(job_id)
    assert (job["state"], job["attempt"]) == ("failed", 0)
    requeued = (await api.post(f"/engine/jobs/{job_id}/requeue")).good()
    assert requeued["state"] == "queued"
    assert (await api.claim())["deadline_at"] is None


async def test_a_job_shows_its_deadline(api: Api) -> None:
    job = await api.job(await api.submit(deadline_seconds=3600))
    passed = datetime.fromisoformat(job["deadline_at"]) - datetime.fromisoformat(job["created_at"])
    assert passed == timedelta(hours=1)
    assert (await api.claim())["deadline_at"] == job["deadline_at"]
    assert (await api.job(await api.submit()))["deadline_at"] is None


# ── once and only once ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_request_with_the_same_key_is_the_same_job(api: Api) -> None:
    job = {"queue": "q", "payload": 1}
    first = await api.post("/engine/jobs", job, {"Idempotency-Key": "k"})
    again = await api.post("/engine/jobs", job, {"Idempotency-Key": '"k"'})  # as the draft standard writes it
    assert again.good(202) == first.good(202)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    other = await api.post("/engine/jobs", job, {"Idempotency-Key": "k2"})
    assert other.good(202) != first.json
    assert len((await api.get("/engine/jobs")).good()["jobs"]) == 2


async def test_the_same_key_with_another_request_is_refused(api: Api) -> None:
    first = await api.post("/engine/jobs", {"queue": "q", "payload": 1}, {"Idempotency-Key": "k"})
    refused = await api.post("/engine/jobs", {"queue": "q", "payload": 2}, {"Idempotency-Key": "k"})
    assert first.good(202)["job_id"] in refused.problem(422, "idempotency.mismatch")["detail"]


async def test_concurrent_requests_with_the_same_key_create_one_job(api: Api) -> None:
    job = {"queue": "q", "payload": 1}
    answers = await asyncio.gather(*[api.post("/engine/jobs", job, {"Idempotency-Key": "k"}) for _ in range(20)])
    assert len({answer.good(202)["job_id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1


@on_sqlite
async def test_a_key_that_is_empty_or_too_long_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for key in ("", '""', "x" * 256):
        with subtests.test(key=key):
            refused = await api.post("/engine/jobs", {"queue": "q", "payload": 1}, {"Idempotency-Key": key})
            refused.problem(400, "request.invalid_field", "Idempotency-Key")


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_list_is_complete_and_without_duplicates_while_jobs_are_added(api: Api) -> None:
    ids = await asyncio.gather(*[api.submit() for _ in range(250)])
    seen: list[str] = []
    path = "/engine/jobs?limit=100"
    pages = 0
    while path:
        page = (await api.get(path)).good()
        seen += [job["id"] for job in page["jobs"]]
        pages += 1
        await api.submit()
        path = f"/engine/jobs?limit=100&cursor={page['next']}" if page["next"] else ""
    assert pages == 3
    assert seen == sorted(ids, reverse=True)


async def test_a_list_can_be_narrowed_by_state_kind_and_queue(api: Api) -> None:
    queued, cancelled, elsewhere = await api.submit(), await api.submit(), await api.submit(queue="other")
    await api.post(f"/engine/jobs/{cancelled}/cancel")

    async def listed(query: str) -> list[str]:
        return [job["id"] for job in (await api.get(f"/engine/jobs?{query}")).good()["jobs"]]

    assert await listed("") == [elsewhere, cancelled, queued]
    assert await listed("state=queued") == [elsewhere, queued]
    assert await listed("state=cancelled") == [cancelled]
    assert await listed("queue=q") == [cancelled, queued]
    assert await listed("queue=other&state=queued&kind=job") == [elsewhere]
    assert await listed("kind=nothing") == await listed("state=failed") == await listed("queue=%C3%BC") == []


async def test_a_list_can_be_narrowed_by_how_the_name_of_the_queue_starts(api: Api) -> None:
    post, parcel, other = await api.submit(queue="post"), await api.submit(queue="Post/parcel"), await api.submit()

    async def listed(query: str) -> list[str]:
        return [job["id"] for job in (await api.get(f"/engine/jobs?{query}")).good()["jobs"]]

    assert await listed("name=po") == await listed("name=POST") == [parcel, post]
    assert await listed("name=post/&kind=job") == [parcel]
    assert await listed(f"name=po&cursor={parcel}") == [post]
    assert await listed("name=%25") == await listed("name=po&kind=task") == []
    assert other in await listed("topic=queued")
    assert await listed("topic=running:checking") == []


async def test_a_job_is_found_by_its_idempotency_key(api: Api) -> None:
    made = (await api.post("/engine/jobs", {"queue": "q", "payload": 1}, {"Idempotency-Key": "order-7"})).good(202)[
        "job_id"
    ]
    task = {"command": "c", "payload": {}, "idempotencyKey": "order-7"}
    of_the_other_door = (await api.post("/v1/codeq/tasks", task)).good(202)["id"]
    await api.submit()

    async def listed(query: str) -> list[str]:
        page = (await api.get(f"/engine/jobs?{query}")).good()
        assert page["next"] is None
        return [job["id"] for job in page["jobs"]]

    assert await listed("key=order-7") == [of_the_other_door, made]
    assert await listed("key=order-7&kind=job") == [made]
    assert await listed("key=order") == await listed("key=order-7&kind=provision") == []
    assert (await api.job(made))["idempotency_key"] == "order-7"
    (await api.get("/engine/jobs?key=order-7&state=queued")).problem(400, "request.invalid_field", "key")


async def test_jobs_are_found_by_any_id_by_time_and_by_the_text_of_their_error(api: Api) -> None:
    key = {"Idempotency-Key": "order-7"}
    made = (await api.post("/engine/jobs", {"queue": "q", "payload": 1}, key)).good(202)["job_id"]
    broken = await api.submit(queue="broken")
    (await api.move(await api.claim(queues=["broken"]), "fail", error="Disk is 100% full")).good()
    created = (await api.job(broken))["created_at"].replace("Z", "%2B00:00")

    async def listed(query: str) -> list[str]:
        return [job["id"] for job in (await api.get(f"/engine/jobs?{query}")).good()["jobs"]]

    assert (
        await listed("id=order-7") == await listed(f"id={made}") == await listed(f"id=batch_{made}&kind=job") == [made]
    )
    assert await listed(f"id={made}&kind=task") == await listed("id=order") == []
    assert await listed("text=disk") == await listed("text=100%25%20FULL&state=failed") == [broken]
    assert await listed("text=disk&state=queued") == await listed("text=disk&queue=q") == []
    assert await listed("since=2020-01-01T00:00:00Z") == [broken, made]
    assert await listed(f"since={created}&name=bro") == [broken]
    assert await listed("until=2020-01-01T00:00:00Z") == await listed("since=8999-01-01T00:00:00Z") == []
    for query in (f"id={made}&state=queued", "id=a&key=b"):
        (await api.get(f"/engine/jobs?{query}")).problem(400, "request.invalid_field", "id")


@on_sqlite
async def test_a_wrong_value_in_a_query_is_refused_and_named(api: Api, subtests: pytest.Subtests) -> None:
    wrong = [
        "state=done",
        "state=queued&state=failed",
        "limit=0",
        "limit=501",
        "limit=many",
        "limit=",
        "cursor=nonsense",
        "since=yesterday",
        "since=2026-01-01T00:00:00",
        "until=9999-01-01T00:00:00Z",
        "text=",
        "id=",
    ]
    for query in wrong:
        with subtests.test(query=query):
            refused = await api.get(f"/engine/jobs?{query}")
            refused.problem(400, "request.invalid_field", query.partition("=")[0])


async def test_a_filter_that_nothing_can_match_finds_nothing(api: Api, subtests: pytest.Subtests) -> None:
    await api.submit()
    for query in ("queue=%00", "kind=%00", "queue=%FF", "kind=%ED%A0%80"):
        with subtests.test(query=query):
            answer = await api.get(f"/engine/jobs?{query}")
            assert answer.status == 400 or answer.good()["jobs"] == []


async def test_the_position_of_a_job_counts_the_jobs_before_it(api: Api) -> None:
    low, high, low_too = await api.submit(), await api.submit(priority=5), await api.submit()
    assert [(await api.job(job_id))["position"] for job_id in (high, low, low_too)] == [0, 1, 2]


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_are_numbered_without_a_gap_and_can_be_read_from_any_number_on(api: Api) -> None:
    job_id = await api.submit()
    job = await api.claim()
    await api.move(job, "note", message="half way", level="warn", step="middle", data={"percent": 50})
    await api.move(job, "advance", stage="checking")
    await api.move(job, "succeed", result=True)
    events = (await api.get(f"/engine/jobs/{job_id}/events")).good()["events"]
    assert [(event["sequence"], event["move"], event["state"]) for event in events] == [
        (1, "submit", "queued"),
        (2, "claim", "running"),
        (3, "note", "running"),
        (4, "advance", "running"),
        (5, "succeed", "succeeded"),
    ]
    note = events[2]
    assert (note["message"], note["level"], note["step"], note["data"]) == (
        "half way",
        "warn",
        "middle",
        {"percent": 50},
    )
    assert (await api.get(f"/engine/jobs/{job_id}/events?after=3")).good()["events"] == events[3:]
    assert (await api.get(f"/engine/jobs/{job_id}/events?after=99")).good()["events"] == []


async def test_an_impossible_sequence_number_is_refused_or_finds_nothing(api: Api, subtests: pytest.Subtests) -> None:
    job_id = await api.submit()
    for after in (-1, "x", 2**63 - 1, 2**63, 10**30):
        with subtests.test(after=after):
            answer = await api.get(f"/engine/jobs/{job_id}/events?after={after}")
            if answer.status == 200:
                assert answer.json == {"events": []}
            else:
                answer.problem(400, "request.invalid_field", "after")


async def test_events_are_pushed_as_they_happen_until_the_job_has_ended(api: Api) -> None:
    job_id = await api.submit()
    async with asyncio.timeout(5), aclosing(follow(api, job_id)) as events:
        assert (await anext(events))["move"] == "submit"
        job = await api.claim()
        assert (await anext(events))["move"] == "claim"
        await api.move(job, "advance", stage="checking")
        assert (await anext(events))["stage"] == "checking"
        await api.move(job, "succeed")
        assert [event["move"] async for event in events] == ["succeed"]


async def test_a_client_that_reconnects_gets_the_events_after_the_last_one_it_saw(api: Api) -> None:
    job_id = await api.submit()
    job = await api.claim()
    async with asyncio.timeout(5), aclosing(follow(api, job_id)) as events:
        assert [(await anext(events))["sequence"] for _ in range(2)] == [1, 2]
    await api.move(job, "advance", stage="checking")
    async with asyncio.timeout(5), aclosing(follow(api, job_id, {"Last-Event-ID": "2"})) as events:
        assert (await anext(events))["sequence"] == 3
        await api.move(job, "succeed")
        assert [event["sequence"] async for event in events] == [4]
    async with asyncio.timeout(5), aclosing(follow(api, job_id, {"Last-Event-ID": "3"})) as events:
        assert [event["sequence"] async for event in events] == [4]


@on_sqlite
async def test_a_last_event_id_that_is_no_sequence_number_is_refused(
    api: Api, server: Server, subtests: pytest.Subtests
) -> None:
    path = f"/engine/jobs/{await api.submit()}/events".encode()
    for seen in (b"x", b"-1", b"1.5", b"9999999999", b"\xb2"):
        with subtests.test(seen=seen):
            headers = b"Accept: text/event-stream\r\nLast-Event-ID: %s" % seen
            status, _ = await exchange(server, b"GET %s HTTP/1.1\r\n%s\r\n\r\n" % (path, headers))
            assert status == 400


@on_sqlite
async def test_a_client_that_hangs_up_is_no_longer_subscribed_to_events(api: Api, server: Server) -> None:
    job_id = await api.submit()
    async with aclosing(follow(api, job_id)) as events:
        await anext(events)
        assert server.engine._watchers
    await api.claim()
    await until(lambda: not server.engine._watchers)


# ── cancel and requeue ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_queued_job_can_be_cancelled_once(api: Api) -> None:
    job_id = await api.submit()
    moved = (await api.post(f"/engine/jobs/{job_id}/cancel")).good()
    assert moved == {"job_id": job_id, "state": "cancelled", "sequence": 2}
    assert (await api.post("/engine/claims", {"queues": ["q"]})).status == 204
    (await api.post(f"/engine/jobs/{job_id}/cancel")).problem(409, "conflict")
    [_, event] = (await api.get(f"/engine/jobs/{job_id}/events")).good()["events"]
    assert event["message"] == "cancelled by anonymous"


async def test_the_worker_of_a_cancelled_job_learns_of_it_at_its_next_call(api: Api) -> None:
    job_id = await api.submit()
    job = await api.claim()
    (await api.post(f"/engine/jobs/{job_id}/cancel")).good()
    for move, fields in (("beat", {}), ("succeed", {"result": 1}), ("fail", {"error": "x"}), ("park", {})):
        refused = (await api.move(job, move, **fields)).problem(409, "conflict.stale_lease")
        assert "cancelled" in refused["detail"]
    assert (await api.job(job_id))["state"] == "cancelled"


@pytest.mark.parametrize("end", ["cancel", "fail"])
async def test_a_job_that_ended_badly_gets_all_its_attempts_again(api: Api, end: str) -> None:
    job_id = await api.submit(max_attempts=2)
    job = await api.claim()
    await (api.post(f"/engine/jobs/{job_id}/cancel") if end == "cancel" else api.move(job, "fail", error="no"))
    assert (await api.post(f"/engine/jobs/{job_id}/requeue")).good()["state"] == "queued"
    requeued = await api.job(job_id)
    assert (requeued["attempt"], requeued["error"], requeued["finished_at"]) == (0, None, None)
    again = await api.claim()
    assert (again["id"], again["attempt"]) == (job_id, 1)
    assert again["lease"] > job["lease"]
    (await api.move(job, "succeed")).problem(409, "conflict.stale_lease")
    (await api.move(again, "succeed")).good()


async def test_a_job_that_did_not_end_badly_cannot_be_requeued(api: Api) -> None:
    job_id = await api.submit()
    (await api.post(f"/engine/jobs/{job_id}/requeue")).problem(409, "conflict")
    job = await api.claim()
    (await api.post(f"/engine/jobs/{job_id}/requeue")).problem(409, "conflict")
    await api.move(job, "succeed")
    (await api.post(f"/engine/jobs/{job_id}/requeue")).problem(409, "conflict")
    (await api.post(f"/engine/jobs/{job_id}/cancel")).problem(409, "conflict")
