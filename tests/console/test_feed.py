"""The feed: which lines each reader gets, and how a reader resumes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from chargehand.app import Server
from chargehand.console import feed as feeds
from chargehand.engine.queue import Queue
from chargehand.http.credentials import hash_token
from tests.api.serving import Api, on_sqlite, serving, talking, until
from tests.console.reading import following, of
from tests.inference.calling import all_there, is_away, settings_for
from tests.inference.conformance import Model, OllamaTarget
from tests.webhooks.receiver import Receiver

pytestmark = on_sqlite


async def run(api: Api, **fields: Any) -> str:
    """Run a job from its submission to its success, with one stage between."""
    job_id = await api.submit(**fields)
    job = await api.claim()
    (await api.move(job, "advance", stage="cooking")).good()
    (await api.move(job, "succeed")).good()
    return job_id


async def test_the_feed_has_a_line_for_every_state_of_a_job_that_its_caller_sees(api: Api) -> None:
    async with following(api) as reader:
        assert (await reader.next()).name == "reset"
        job_id = await run(api)
        lines = await reader.until(of(job_id, "job.succeeded"))
    assert [line["type"] for line in lines] == ["job.queued", "job.claimed", "job.cooking", "job.succeeded"]
    assert lines[2] == {
        "type": "job.cooking", "at": lines[2]["at"], "kind": "job", "job_id": job_id, "queue": "q",
        "move": "advance", "topic": "running:cooking", "attempt": 1,
    }  # fmt: skip


async def test_a_claim_that_callers_do_not_see_wakes_readers_without_a_line(api: Api, server: Server) -> None:
    await api.submit()
    async with following(api) as reader:
        await reader.next()
        await server.engine.claim((Queue("job", "default", "q"),), "a runner", 60)
        assert (await reader.next()).lines == []


async def test_a_heartbeat_wakes_no_reader(api: Api) -> None:
    await api.submit()
    job = await api.claim()
    async with following(api) as reader:
        await reader.next()
        (await api.move(job, "beat")).good()
        with pytest.raises(TimeoutError):
            await reader.next(seconds=2 * feeds.PAUSE_SECONDS)


async def test_the_line_of_a_delivery_has_its_answer_and_hides_the_query_of_its_url(
    api: Api, receiver: Receiver
) -> None:
    async with following(api) as reader:
        await reader.next()
        await api.submit(webhook={"url": receiver.url("/hook?key=of-the-receiver")})
        lines = await reader.until(lambda line: line["type"] == "delivery.delivered")
    assert lines[-1]["url"] == receiver.url("/hook")
    assert lines[-1]["status"] == 200
    assert "of-the-receiver" not in str(lines)


async def test_a_reader_that_reconnects_gets_the_missed_lines_and_none_twice(api: Api) -> None:
    async with following(api) as reader:
        await reader.next()
        first = await api.submit()
        await reader.until(of(first, "job.queued"))
        last_id = reader.last_id
    second = await api.submit()
    async with following(api, last_id) as reader:
        bundle = await reader.next()
    assert bundle.name == "lines"
    assert [line["job_id"] for line in bundle.lines] == [second]


async def test_a_reader_that_was_away_too_long_gets_a_reset(api: Api, server: Server) -> None:
    async with following(api) as reader:
        await reader.next()
        await api.submit()
        last_id = (await reader.next()).id
    for _ in range(feeds.KEPT + 1):
        server.console.feed.on_target("laptop", True, "")
    async with following(api, last_id) as reader:
        bundle = await reader.next()
    assert bundle.name == "reset"
    assert len(bundle.lines) == 50


@pytest.mark.parametrize("last_id", ["nonsense", "-1", "0badcafe-1", "x" * 3000])
async def test_an_event_id_of_another_process_gets_a_reset(api: Api, last_id: str) -> None:
    async with following(api, last_id) as reader:
        assert (await reader.next()).name == "reset"


async def test_an_event_id_beyond_the_last_gets_a_reset(api: Api) -> None:
    async with following(api) as reader:
        run, _, number = (await reader.next()).id.partition("-")
    async with following(api, f"{run}-{int(number) + 5}") as reader:
        assert (await reader.next()).name == "reset"


async def test_the_number_of_readers_is_bounded_and_a_disconnect_frees_a_place(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_READERS", 2)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            reader = await stack.enter_async_context(following(api))
            await reader.next()
        refused = await api.get("/engine/feed")
        assert refused.problem(429, "rate_limited")["detail"].startswith("the feed already has 2 readers")
        assert refused.headers["retry-after"] == "5"

    async def room() -> bool:
        async with api.session.get(f"{api.url}/engine/feed") as response:
            return response.status == 200

    await until(room)


async def test_a_reader_does_not_delay_the_shutdown_of_the_server(store_url: str) -> None:
    async with AsyncExitStack() as life:
        server = await life.enter_async_context(serving(store_url, {"server.drain_seconds": 60}))
        async with talking(server) as api, following(api) as reader:
            await reader.next()
            async with asyncio.timeout(20):
                await life.aclose()


# tenants --------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def two_tenants(store_url: str) -> AsyncIterator[Server]:
    tokens = [{"name": name, "hash": hash_token(f"token-of-{name}"), "tenant": name} for name in ("acme", "umbrella")]
    async with serving(store_url, {"auth.tokens": tokens}) as server:
        yield server


async def test_a_tenant_gets_only_lines_of_its_own_jobs_and_is_not_woken_by_others(two_tenants: Server) -> None:
    async with talking(two_tenants) as nobody:
        acme, umbrella = nobody.of("token-of-acme"), nobody.of("token-of-umbrella")
        async with following(umbrella) as reader:
            await reader.next()
            await run(acme)
            with pytest.raises(TimeoutError):
                await reader.next(seconds=2 * feeds.PAUSE_SECONDS)
            mine = await umbrella.submit()
            lines = (await reader.next()).lines
        assert [line["job_id"] for line in lines] == [mine]
        async with following(umbrella) as reader:
            recent = (await reader.next()).lines
        assert [line["job_id"] for line in recent] == [mine]


async def test_the_feed_needs_a_token_if_auth_is_on(two_tenants: Server) -> None:
    async with talking(two_tenants) as nobody:
        assert (await nobody.get("/engine/feed")).status == 401


# targets --------------------------------------------------------------------------------------------------------------


async def test_lines_about_targets_go_to_all_tenants(store_url: str, tmp_path: Path) -> None:
    async with OllamaTarget({"a": Model()}) as target:
        settings = settings_for(tmp_path, target, inference__probe_seconds=0.1)
        async with serving(store_url, settings) as server, talking(server) as api:
            await all_there(server)
            async with following(api) as reader:
                recent = (await reader.next()).lines
                assert [(line["type"], line["name"]) for line in recent] == [("target.here", "laptop")]
                await target.go_away()
                await is_away(server)
                [line] = await reader.until(lambda line: line["type"] == "target.away")
            assert line["name"] == "laptop"
            assert line["message"]
            [seen] = (await api.get("/targets")).good()["targets"]
            assert [change["state"] for change in seen["seen"]] == ["up", "away"]


async def test_a_reader_that_disconnects_is_removed(api: Api, server: Server) -> None:
    async with following(api) as reader:
        await reader.next()
        assert len(server.console.feed._news) == 1
    await until(lambda: not server.console.feed._news)
