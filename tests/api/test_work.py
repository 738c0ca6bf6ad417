import asyncio
import time
from typing import Any

import aiohttp
import pytest

from chargehand.app import Server
from tests.api.serving import Api, on_sqlite, serving, talking, until

MOVES: dict[str, dict[str, Any]] = {
    "beat": {},
    "advance": {"stage": "checking"},
    "note": {"message": "hello"},
    "succeed": {"result": 1},
    "retry": {"error": "broke"},
    "park": {},
    "fail": {"error": "broke"},
}


# ── claiming ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_claimed_job_comes_with_its_payload_and_its_lease(api: Api) -> None:
    job_id = await api.submit(payload={"a": 1})
    job = await api.claim(owner="me", lease_seconds=30)
    assert (job["id"], job["payload"], job["lease_owner"]) == (job_id, {"a": 1}, "me")
    assert 2**32 <= job["lease"] < 2**53
    assert (job["state"], job["stage"], job["previous"], job["attempt"]) == ("running", "claimed", "queued", 1)
    assert await api.job(job_id) == {name: value for name, value in job.items() if name in await api.job(job_id)}


async def test_jobs_are_claimed_by_priority_and_then_by_age_over_all_queues_named(api: Api) -> None:
    wanted = [
        await api.submit(queue="b", priority=9),
        await api.submit(queue="a", priority=5),
        await api.submit(queue="b", priority=5),
        await api.submit(queue="a"),
        await api.submit(queue="b"),
    ]
    await api.submit(queue="c", priority=9)
    claimed = [await api.claim(queues=["a", "b"]) for _ in wanted]
    assert [job["id"] for job in claimed] == wanted
    assert (await api.post("/engine/claims", {"queues": ["a", "b"]})).status == 204


async def test_several_jobs_can_be_claimed_at_once_and_none_twice(api: Api) -> None:
    submitted = {await api.submit() for _ in range(30)}
    answers = await asyncio.gather(
        *[api.post("/engine/claims", {"queues": ["q"], "limit": 7}) for _ in range(6)],
    )
    claimed = [job["id"] for answer in answers if answer.status == 200 for job in answer.json["jobs"]]
    assert len(claimed) == 30
    assert set(claimed) == submitted


async def test_a_claim_without_an_owner_gets_the_callers_name(api: Api) -> None:
    await api.submit()
    assert (await api.claim())["lease_owner"] == "anonymous"


@on_sqlite
async def test_a_wrong_value_is_refused_and_its_field_is_named(api: Api, subtests: pytest.Subtests) -> None:
    wrong: list[tuple[str, Any]] = [
        ("queues", []),
        ("queues", ["q"] * 101),
        ("queues[1]", ["q", ""]),
        ("owner", ""),
        ("owner", "@runner"),
        ("lease_seconds", 0),
        ("lease_seconds", 1e6),
        ("wait_seconds", -1),
        ("limit", 0),
        ("limit", 101),
        ("limit", "all"),
    ]
    for field, value in wrong:
        with subtests.test(field=field, value=value):
            refused = await api.post("/engine/claims", {"queues": ["q"], field.partition("[")[0]: value})
            refused.problem(400, "request.invalid_field", field)


# ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def patient() -> dict[str, Any]:
    """Poll so rarely that a claim can only be quick if it is woken."""
    return {"engine.poll_seconds": 60}


async def test_a_long_poll_is_woken_at_once(store_url: str, patient: dict[str, Any]) -> None:
    async with serving(store_url, patient) as server, talking(server) as api:
        waiting = asyncio.create_task(api.claim(wait_seconds=10))
        await until(lambda: server.engine.wakeups.waiting)
        began = time.monotonic()
        job_id = await api.submit()
        assert (await waiting)["id"] == job_id
        assert time.monotonic() - began < 2


async def test_a_long_poll_is_woken_when_a_delayed_job_becomes_due(store_url: str, patient: dict[str, Any]) -> None:
    async with serving(store_url, patient) as server, talking(server) as api:
        waiting = asyncio.create_task(api.claim(wait_seconds=10))
        await until(lambda: server.engine.wakeups.waiting)
        job_id = await api.submit(delay_seconds=0.2)
        assert (await waiting)["id"] == job_id


async def test_a_long_poll_is_woken_when_the_queue_is_resumed(store_url: str, patient: dict[str, Any]) -> None:
    async with serving(store_url, patient) as server, talking(server) as api:
        await api.call("PUT", "/engine/queues/job/q", {"paused": True})
        job_id = await api.submit()
        waiting = asyncio.create_task(api.claim(wait_seconds=10))
        await until(lambda: server.engine.wakeups.waiting)
        await api.call("PUT", "/engine/queues/job/q", {"paused": False})
        assert (await waiting)["id"] == job_id


async def test_a_long_poll_is_woken_when_a_limited_queue_has_room_again(
    store_url: str, patient: dict[str, Any]
) -> None:
    async with serving(store_url, patient) as server, talking(server) as api:
        await api.call("PUT", "/engine/queues/job/q", {"max_running": 1})
        await api.submit()
        running = await api.claim()
        job_id = await api.submit()
        waiting = asyncio.create_task(api.claim(wait_seconds=10))
        await until(lambda: server.engine.wakeups.waiting)
        await api.move(running, "succeed")
        assert (await waiting)["id"] == job_id


@on_sqlite
async def test_a_job_wakes_one_waiter_and_the_other_goes_on_waiting(store_url: str, patient: dict[str, Any]) -> None:
    async with serving(store_url, patient) as server, talking(server) as api:
        waiting = {asyncio.create_task(api.claim(wait_seconds=10)) for _ in range(2)}
        await until(lambda: server.engine.wakeups.waiting == 2)
        first = await api.submit()
        [woken], [other] = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert woken.result()["id"] == first
        assert server.engine.wakeups.waiting == 1
        second = await api.submit()
        assert (await other)["id"] == second


async def test_a_long_poll_ends_with_nothing_when_its_time_is_over(api: Api) -> None:
    assert (await api.post("/engine/claims", {"queues": ["q"], "wait_seconds": 0.05})).status == 204


@on_sqlite
async def test_no_long_poll_waits_longer_than_the_server_allows(store_url: str) -> None:
    async with serving(store_url, {"engine.max_wait_seconds": 0.05}) as server, talking(server) as api:
        began = time.monotonic()
        assert (await api.post("/engine/claims", {"queues": ["q"], "wait_seconds": 1e300})).status == 204
        assert time.monotonic() - began < 5


async def test_a_client_that_hangs_up_while_waiting_leaves_no_claimed_job_behind(api: Api, server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        gone = asyncio.create_task(Api(api.url, session).claim(wait_seconds=30))
        await until(lambda: server.engine.wakeups.waiting)
        gone.cancel()
        await asyncio.wait([gone])
    await until(lambda: not server.engine.wakeups.waiting)
    job_id = await api.submit()
    assert (await api.job(job_id))["state"] == "queued"
    claimed = await api.claim()
    assert (claimed["id"], claimed["attempt"]) == (job_id, 1)


@on_sqlite
async def test_a_server_that_stops_answers_its_long_polls(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        waiting = asyncio.create_task(api.post("/engine/claims", {"queues": ["q"], "wait_seconds": 30}))
        await until(lambda: server.engine.wakeups.waiting)
        server.engine.drain()
        assert (await waiting).status == 204


# ── working ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_renews_its_lease_reports_its_stage_and_ends_with_a_result(api: Api) -> None:
    job_id = await api.submit()
    job = await api.claim(lease_seconds=5)
    beaten = (await api.move(job, "beat", lease_seconds=500)).good()
    assert beaten["lease_until"] > job["lease_until"]
    assert (await api.move(job, "note", message="hello")).good() == {"sequence": 3}
    advanced = (await api.move(job, "advance", stage="checking", message="nearly")).good()
    assert advanced == {"job_id": job_id, "state": "running", "sequence": 4}
    assert (await api.move(job, "succeed", result={"a": 1})).good()["state"] == "succeeded"
    ended = await api.job(job_id)
    assert (ended["state"], ended["result"], ended["previous"]) == ("succeeded", {"a": 1}, "running:checking")
    assert (ended["lease_owner"], ended["lease_until"]) == (None, None)
    assert ended["finished_at"]


async def test_a_result_may_be_left_out(api: Api) -> None:
    job_id = await api.submit()
    (await api.move(await api.claim(), "succeed")).good()
    assert (await api.job(job_id))["result"] is None


async def test_a_job_that_breaks_is_retried_until_its_attempts_are_used_up(api: Api) -> None:
    job_id = await api.submit(max_attempts=2)
    assert (await api.move(await api.claim(), "retry", error="first", failed_step="start")).good()["state"] == "queued"
    job = await api.job(job_id)
    assert (job["error"], job["failed_step"], job["attempt"]) == ("first", "start", 1)
    assert (await api.move(await api.claim(), "retry", error="second")).good()["state"] == "failed"
    job = await api.job(job_id)
    assert (job["error"], job["failed_step"], job["attempt"]) == ("second", None, 2)


async def test_a_worker_may_set_the_delay_of_a_retry(api: Api) -> None:
    job_id = await api.submit()
    (await api.move(await api.claim(), "retry", error="busy", delay_seconds=3600)).good()
    assert (await api.job(job_id))["waiting_for"] == "backoff"
    assert (await api.post("/engine/claims", {"queues": ["q"]})).status == 204


async def test_a_parked_job_has_lost_no_attempt_and_says_what_it_waits_for(api: Api) -> None:
    job_id = await api.submit(max_attempts=1)
    (await api.move(await api.claim(), "park", waiting_for="the moon", delay_seconds=3600)).good()
    job = await api.job(job_id)
    assert (job["state"], job["attempt"], job["waiting_for"]) == ("queued", 0, "the moon")


async def test_a_failed_job_is_not_retried(api: Api) -> None:
    job_id = await api.submit()
    assert (await api.move(await api.claim(), "fail", error="no use", failed_step="start")).good()["state"] == "failed"
    job = await api.job(job_id)
    assert (job["error"], job["failed_step"], job["attempt"]) == ("no use", "start", 1)


async def test_after_a_lease_expires_the_next_worker_gets_the_job_and_the_old_lease_is_refused(api: Api) -> None:
    job_id = await api.submit()
    lost = await api.claim(lease_seconds=0.05)
    job = await api.claim(wait_seconds=10)
    assert (job["id"], job["attempt"]) == (job_id, 2)
    assert job["lease"] > lost["lease"]
    for move, fields in MOVES.items():
        (await api.move(lost, move, **fields)).problem(409, "conflict.stale_lease")
    (await api.move(job, "succeed")).good()


async def test_a_finished_job_accepts_no_further_move(api: Api, subtests: pytest.Subtests) -> None:
    await api.submit()
    job = await api.claim()
    (await api.move(job, "succeed", result=1)).good()
    for move, fields in MOVES.items():
        if move != "succeed":
            with subtests.test(move=move):
                (await api.move(job, move, **fields)).problem(409, "conflict.stale_lease")


async def test_a_worker_whose_answer_was_lost_may_finish_a_job_again(api: Api, subtests: pytest.Subtests) -> None:
    for move, fields in (("succeed", {"result": {"n": 1}}), ("fail", {"error": "no disk", "failed_step": "start"})):
        with subtests.test(move=move):
            job_id = await api.submit()
            job = await api.claim()
            first = (await api.move(job, move, **fields)).good()
            before = await api.job(job_id)
            assert (await api.move(job, move, **fields)).good() == first
            assert await api.job(job_id) == before


async def test_another_outcome_under_the_same_lease_is_refused_with_how_the_job_ended(
    api: Api, subtests: pytest.Subtests
) -> None:
    for (move, fields), (other, more) in (
        (("succeed", {"result": 1}), ("fail", {"error": "no"})),
        (("fail", {"error": "no"}), ("succeed", {"result": 1})),
        (("fail", {"error": "no"}), ("fail", {"error": "another"})),
        (("retry", {"error": "no"}), ("fail", {"error": "another"})),
    ):
        with subtests.test(first=move, then=other):
            job_id = await api.submit(max_attempts=1)
            job = await api.claim()
            ended = (await api.move(job, move, **fields)).good()["state"]
            refused = (await api.move(job, other, **more)).problem(409, "conflict.stale_lease")
            assert f"ended as {ended}" in refused["detail"]
            assert (await api.job(job_id))["state"] == ended


# ── what workers may say ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_impossible_lease_is_refused_and_does_not_disturb_other_requests(
    api: Api, subtests: pytest.Subtests
) -> None:
    await api.submit()
    job = await api.claim()
    for lease in (2**31, 2**63 - 1, 2**63, 2**64, 10**30):
        for move, fields in MOVES.items():
            with subtests.test(lease=lease, move=move):
                # Submit others at the same time, so that they share a commit with the refused move.
                others = asyncio.gather(*[api.submit() for _ in range(3)])
                refused = await api.move({"id": job["id"], "lease": lease}, move, **fields)
                if refused.status != 409:
                    refused.problem(400, "request.invalid_field", "lease")
                assert len(await others) == 3
    (await api.move(job, "succeed")).good()


@on_sqlite
async def test_an_invalid_field_of_a_move_is_named(api: Api, subtests: pytest.Subtests) -> None:
    await api.submit()
    job = await api.claim()
    wrong: list[tuple[str, str, Any]] = [
        *[(move, "lease", value) for move in MOVES for value in (0, -1, "1", None, 1.5)],
        ("beat", "lease_seconds", 0),
        ("beat", "lease_seconds", 1e6),
        ("advance", "stage", ""),
        ("advance", "stage", "Not This"),
        ("advance", "message", "x" * 10_001),
        ("note", "message", 1),
        ("note", "level", "debug"),
        ("note", "step", "x" * 201),
        ("retry", "error", None),
        ("retry", "error", "x" * 10_001),
        ("retry", "delay_seconds", -1),
        ("park", "waiting_for", "x" * 201),
        ("park", "delay_seconds", 1e10),
        ("fail", "failed_step", "x" * 201),
    ]
    for move, field, value in wrong:
        with subtests.test(move=move, field=field, value=value):
            refused = await api.move(job, move, **MOVES[move] | {field: value})
            refused.problem(400, "request.invalid_field", field)


async def test_a_nul_in_a_text_is_refused_or_replaced_on_every_store(api: Api, subtests: pytest.Subtests) -> None:
    texts: list[tuple[str, dict[str, Any]]] = [
        ("note", {"message": "a\0b"}),
        ("note", {"message": "x", "step": "a\0b"}),
        ("note", {"message": "x", "data": {"a\0b": "c\0d"}}),
        ("advance", {"stage": "x", "message": "a\0b"}),
        ("park", {"waiting_for": "a\0b"}),
        ("retry", {"error": "a\0b"}),
        ("retry", {"error": "x", "failed_step": "a\0b"}),
        ("fail", {"error": "x", "failed_step": "a\0b"}),
        ("succeed", {"result": {"a\0b": "c\0d"}}),
    ]
    for move, fields in texts:
        with subtests.test(move=move, **fields):
            await api.submit(queue=move)
            job = await api.claim(queues=[move])
            answer = await api.move(job, move, **fields)
            assert answer.status == 200 or answer.problem(400, "request.invalid_field", list(fields)[-1])
            await api.post(f"/engine/jobs/{job['id']}/cancel")
    with subtests.test("owner"):
        await api.submit(queue="owner")
        answer = await api.post("/engine/claims", {"queues": ["owner"], "owner": "a\0b"})
        assert answer.status == 200 or answer.problem(400, "request.invalid_field", "owner")
