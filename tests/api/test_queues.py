from typing import Any

import pytest

from chargehand.http.credentials import hash_token
from tests.api.serving import Api, on_sqlite, serving, talking


async def listed(api: Api) -> dict[str, Any]:
    return {queue["queue"]: queue for queue in (await api.get("/engine/queues")).good()["queues"]}


async def test_a_queue_shows_how_many_jobs_it_has_in_each_state(api: Api) -> None:
    assert await listed(api) == {}
    await api.submit(queue="a/b c")
    await api.submit(queue="a/b c")
    await api.submit(queue="a/b c", delay_seconds=60)
    job = await api.claim(queues=["a/b c"])
    waiting = await listed(api)
    oldest_at = waiting["a/b c"].pop("oldest_at")
    assert oldest_at
    assert waiting == {
        "a/b c": {
            "kind": "job", "queue": "a/b c", "ready": 1, "delayed": 1, "running": 1, "paused": False, "max_running": None,
            "rate": None, "key_max_running": None, "key_rate": None,
        }
    }  # fmt: skip
    await api.move(job, "succeed")
    assert (await listed(api))["a/b c"]["running"] == 0


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(api: Api) -> None:
    paused = (await api.call("PUT", "/engine/queues/job/q", {"paused": True})).good()
    assert (paused["kind"], paused["queue"], paused["paused"], paused["ready"]) == ("job", "q", True, 0)
    job_id = await api.submit()
    assert (await listed(api))["q"]["paused"]
    assert (await api.job(job_id))["waiting_for"] == "queue paused"
    assert (await api.post("/engine/claims", {"queues": ["q"]})).status == 204
    assert (await api.call("PUT", "/engine/queues/job/q", {})).good()["ready"] == 1
    assert (await api.claim())["id"] == job_id


async def test_a_limited_queue_runs_no_more_jobs_than_its_limit_and_a_finished_job_makes_room(api: Api) -> None:
    assert (await api.call("PUT", "/engine/queues/job/q", {"max_running": 2})).good()["max_running"] == 2
    for _ in range(4):
        await api.submit()
    first, _ = (await api.post("/engine/claims", {"queues": ["q"], "limit": 10})).good()["jobs"]
    assert (await api.post("/engine/claims", {"queues": ["q"]})).status == 204
    await api.move(first, "succeed")
    assert len((await api.post("/engine/claims", {"queues": ["q"], "limit": 10})).good()["jobs"]) == 1
    (await api.call("PUT", "/engine/queues/job/q", {"max_running": None})).good()
    assert len((await api.post("/engine/claims", {"queues": ["q"], "limit": 10})).good()["jobs"]) == 1


async def test_a_name_may_hold_slashes_and_letters_of_all_scripts(api: Api) -> None:
    await api.submit(queue="a/b/ü")
    shown = (await api.call("PUT", "/engine/queues/job/a/b/%C3%BC", {"paused": True})).good()
    assert (shown["queue"], shown["ready"]) == ("a/b/ü", 1)


async def test_a_name_that_no_queue_can_have_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for name in ("job/%00", "job/a%0Ab", "job/" + "x" * 201, "%00/q", "j%0Ab/q", "x" * 300 + "/q"):
        with subtests.test(name=name):
            refused = await api.call("PUT", f"/engine/queues/{name}", {})
            assert refused.status == 400, refused.body
            assert refused.json["field"] in ("kind", "queue")


@on_sqlite
async def test_a_wrong_value_is_refused_and_its_field_is_named(api: Api, subtests: pytest.Subtests) -> None:
    wrong = [("paused", "yes"), ("paused", None), ("max_running", 0), ("max_running", -1), ("max_running", 10**30)]
    for field, value in wrong:
        with subtests.test(field=field, value=value):
            refused = await api.call("PUT", "/engine/queues/job/q", {field: value})
            refused.problem(400, "request.invalid_field", field)


@on_sqlite
async def test_queues_of_the_same_name_belong_to_their_tenants(store_url: str) -> None:
    tokens = [{"name": name, "hash": hash_token(name), "tenant": name} for name in ("acme", "umbrella")]
    async with serving(store_url, {"auth.tokens": tokens}) as server, talking(server) as nobody:
        acme, umbrella = nobody.of("acme"), nobody.of("umbrella")
        job_id = await acme.submit()
        assert (await umbrella.post("/engine/claims", {"queues": ["q"]})).status == 204
        await umbrella.call("PUT", "/engine/queues/job/q", {"paused": True})
        assert not (await listed(acme))["q"]["paused"]
        assert (await listed(umbrella))["q"]["ready"] == 0
        assert (await acme.claim())["id"] == job_id
