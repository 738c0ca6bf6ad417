import asyncio
from typing import Any

import pytest

from tests.api.serving import Api, on_sqlite, until
from tests.webhooks.receiver import Receiver, answer


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"webhooks.max_attempts": 2}


async def listed(api: Api, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get(f"/engine/deliveries?{query}")).good()["deliveries"]
    return found


async def test_a_delivery_is_listed_with_its_attempts(api: Api, receiver: Receiver) -> None:
    receiver.script.append(answer(503, body=b"not now"))
    job_id = await api.submit(webhook={"url": receiver.url()})
    [delivery] = await api.deliveries(f"job={job_id}&state=delivered")
    assert (delivery["job_id"], delivery["sequence"], delivery["dialect"]) == (job_id, 1, "standard")
    assert (delivery["id"], delivery["url"], delivery["tries"]) == (receiver.hooks[0].id, receiver.url(), 2)
    detail = (await api.get(f"/engine/deliveries/{delivery['id']}")).good()
    attempts = detail.pop("attempts")
    assert detail == delivery
    assert [(each["number"], each["status"], each["answer"]) for each in attempts] == [
        (2, 200, ""),
        (1, 503, "not now"),
    ]
    assert all(each["duration_seconds"] >= 0 and each["at"] for each in attempts)


async def test_a_delivery_shows_its_job_its_topic_and_the_last_answer(api: Api, receiver: Receiver) -> None:
    receiver.script.append(answer(503))
    job_id = await api.submit(queue="films", webhook={"url": receiver.url()})
    [delivery] = await api.deliveries(f"job={job_id}&state=delivered")
    assert (delivery["kind"], delivery["queue"], delivery["topic"]) == ("job", "films", "queued")
    assert (delivery["status"], delivery["duration_seconds"] > 0) == (200, True)


async def test_the_body_of_a_delivery_can_be_read_as_it_was_sent(api: Api, receiver: Receiver) -> None:
    job_id = await api.submit(webhook={"url": receiver.url()})
    [delivery] = await api.deliveries(f"job={job_id}&state=delivered")
    said = await api.get(f"/engine/deliveries/{delivery['id']}/body")
    assert (said.good()["data"]["job_id"], said.body) == (job_id, receiver.hooks[0].body)
    (await api.get(f"/engine/deliveries/{job_id}/body")).problem(404, "not_found")


async def test_an_endpoint_shows_tries_successes_and_durations_of_the_last_hour(api: Api, receiver: Receiver) -> None:
    receiver.script.append(answer(503))
    job_id = await api.submit(webhook={"url": receiver.url()})
    [delivery] = await api.deliveries(f"job={job_id}&state=delivered")
    path = f"/engine/endpoints/{delivery['endpoint_id']}"
    # The store has the outcome a moment before the metrics count it.
    hour = await until(lambda: _two_tries(api, path))
    assert (hour["tries"], hour["delivered"], hour["success_rate"]) == (2, 1, 0.5)
    assert (sum(hour["delivered_by_minute"]), sum(hour["failed_by_minute"])) == (1, 1)
    assert len(hour["delivered_by_minute"]) == len(hour["failed_by_minute"]) == 60
    assert 0 < hour["p50_seconds"] <= hour["p95_seconds"] < 10
    [listed_one] = (await api.get("/engine/endpoints")).good()["endpoints"]
    assert listed_one["hour"] == hour


async def _two_tries(api: Api, path: str) -> Any:
    hour = (await api.get(path)).good()["hour"]
    return hour if hour["tries"] == 2 else None


async def test_deliveries_can_be_narrowed_by_state_endpoint_and_job(api: Api, receiver: Receiver) -> None:
    one = await api.submit(webhook={"url": receiver.url("/one")})
    await api.deliveries(f"job={one}&state=delivered")
    receiver.otherwise = answer(500)
    two = await api.submit(webhook={"url": receiver.url("/two")})
    [dead] = await api.deliveries(f"job={two}&state=dead")
    assert [each["job_id"] for each in await listed(api)] == [two, one]
    assert [each["job_id"] for each in await listed(api, "state=delivered")] == [one]
    assert [each["job_id"] for each in await listed(api, "state=dead")] == [two]
    assert [each["job_id"] for each in await listed(api, f"endpoint={dead['endpoint_id']}")] == [two]
    assert await listed(api, f"job={one}&endpoint={dead['endpoint_id']}") == []
    assert await listed(api, "state=pending") == []


@on_sqlite
async def test_pages_of_deliveries_are_complete_and_without_duplicates(api: Api, receiver: Receiver) -> None:
    await asyncio.gather(*[api.submit(webhook={"url": receiver.url()}) for _ in range(50)])
    everything = [each["id"] for each in await api.deliveries("state=delivered", 50)]
    seen: list[str] = []
    path = "/engine/deliveries?limit=20"
    while path:
        page = (await api.get(path)).good()
        seen += [each["id"] for each in page["deliveries"]]
        path = f"/engine/deliveries?limit=20&cursor={page['next']}" if page["next"] else ""
    assert seen == everything
    assert len(set(seen)) == 50


async def test_an_invalid_or_unmatched_filter_is_never_a_server_error(api: Api, subtests: pytest.Subtests) -> None:
    for query, field in {"state=lost": "state", "job=x": "job", "cursor=x": "cursor", "limit=0": "limit"}.items():
        with subtests.test(query=query):
            (await api.get(f"/engine/deliveries?{query}")).problem(400, "request.invalid_field", field)
    for path in ("/engine/deliveries?endpoint=%00", "/engine/endpoints?cursor=%00", "/engine/endpoints/%00"):
        with subtests.test(path=path):
            assert (await api.get(path)).status in (200, 400, 404)


async def test_a_dead_delivery_is_sent_once_more_and_keeps_its_id(api: Api, receiver: Receiver) -> None:
    receiver.otherwise = answer(500)
    job_id = await api.submit(webhook={"url": receiver.url()})
    [dead] = await api.deliveries(f"job={job_id}&state=dead")
    assert dead["reason"] == "gave up after 2 tries: answered 500"
    receiver.otherwise = answer(200)
    assert (await api.post(f"/engine/deliveries/{dead['id']}/replay")).good() == {"replayed": 1}
    [delivered] = await api.deliveries(f"job={job_id}&state=delivered")
    assert (delivered["id"], delivered["tries"]) == (dead["id"], 3)
    assert {hook.id for hook in receiver.hooks} == {dead["id"]}


async def test_a_delivered_delivery_can_be_replayed_and_a_pending_one_cannot(api: Api, receiver: Receiver) -> None:
    job_id = await api.submit(webhook={"url": receiver.url()})
    [delivery] = await api.deliveries(f"job={job_id}&state=delivered")
    replay = f"/engine/deliveries/{delivery['id']}/replay"
    await api.post(f"/engine/endpoints/{delivery['endpoint_id']}/pause")
    (await api.post(replay)).good()
    (await api.post(replay)).problem(409, "conflict")
    await api.post(f"/engine/endpoints/{delivery['endpoint_id']}/resume")
    await until(lambda: len(receiver.hooks) == 2)


async def test_an_endpoint_counts_its_dead_deliveries_and_replays_all_of_them(api: Api, receiver: Receiver) -> None:
    receiver.otherwise = answer(500)
    jobs = await asyncio.gather(*[api.submit(webhook={"url": receiver.url(f"/hook?job={n}")}) for n in range(20)])
    [first, *_] = await api.deliveries("state=dead", 20)
    place = f"/engine/endpoints/{first['endpoint_id']}"
    endpoint = (await api.get(place)).good()
    assert (endpoint["url"], endpoint["state"], endpoint["dead"]) == (receiver.url(), "active", 20)
    assert (endpoint["pending"], endpoint["oldest_due_at"]) == (0, None)
    receiver.otherwise = answer(200)
    assert (await api.post(f"{place}/replay")).good() == {"replayed": 20}
    await api.deliveries(f"endpoint={first['endpoint_id']}&state=delivered", 20)
    assert {hook.job_id for hook in receiver.hooks[-20:]} == set(jobs)
    assert (await api.post(f"{place}/replay")).good() == {"replayed": 0}


async def test_a_paused_endpoint_holds_its_deliveries_and_a_resumed_one_sends_them(
    api: Api, receiver: Receiver
) -> None:
    await api.submit(webhook={"url": receiver.url()})
    [delivery] = await api.deliveries("state=delivered")
    place = f"/engine/endpoints/{delivery['endpoint_id']}"
    assert (await api.post(f"{place}/pause")).good()["state"] == "paused"
    job_id = await api.submit(webhook={"url": receiver.url()})
    await api.deliveries(f"job={job_id}&state=pending")
    held = (await api.get(place)).good()
    assert (held["state"], held["pending"]) == ("paused", 1)
    assert held["oldest_due_at"]
    assert (await api.post(f"{place}/resume")).good()["state"] == "active"
    await api.deliveries(f"job={job_id}&state=delivered")


async def test_an_endpoint_that_is_gone_is_disabled_until_it_is_resumed(api: Api, receiver: Receiver) -> None:
    receiver.script.append(answer(410))
    await api.submit(webhook={"url": receiver.url()})
    [dead] = await api.deliveries("state=dead")
    place = f"/engine/endpoints/{dead['endpoint_id']}"
    assert (await api.get(place)).good()["state"] == "disabled"
    held = await api.submit(webhook={"url": receiver.url()})
    assert (await api.post(f"{place}/resume")).good()["state"] == "active"
    await api.deliveries(f"job={held}&state=delivered")


@on_sqlite
async def test_pages_of_endpoints_are_complete_and_without_duplicates(api: Api, receiver: Receiver) -> None:
    urls = {receiver.url(f"/{number}") for number in range(25)}
    await asyncio.gather(*[api.submit(webhook={"url": url}) for url in urls])
    seen: list[str] = []
    path = "/engine/endpoints?limit=10"
    while path:
        page = (await api.get(path)).good()
        seen += [each["url"] for each in page["endpoints"]]
        path = f"/engine/endpoints?limit=10&cursor={page['next']}" if page["next"] else ""
    assert len(seen) == 25
    assert set(seen) == urls
