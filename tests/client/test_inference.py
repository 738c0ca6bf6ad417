"""The calls for models against the real server, with a scripted target."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chargehand.client import AsyncClient, BadRequest, Conflict, JobFailed, NotDone, NotFound, Token, Wish
from tests.api.serving import until
from tests.client.proxy import cutting
from tests.inference.conformance import Answer, OllamaTarget
from tests.inference.stories import Place, a_place, some_targets, told
from tests.webhooks.receiver import receiving


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        [target] = await stack.enter_async_context(some_targets())
        yield await stack.enter_async_context(a_place(tmp_path, target))


@pytest.fixture
def target(place: Place) -> OllamaTarget:
    return place.target


@pytest.fixture
async def client(place: Place) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(place.url) as opened:
        yield opened


def together(tokens: list[Token]) -> str:
    text = ""
    for token in tokens:
        text = token.text if token.restarted else text + token.text
    return text


async def test_a_chat_is_submitted_waited_for_and_read(client: AsyncClient, target: OllamaTarget) -> None:
    target.script("a", Answer(chunks=["It ", "scatters."]))
    job = await client.chat("a", "Why is the sky blue?", options={"temperature": 0}, priority=7, timeout=10)
    assert (job.state, job.text, job.model, job.priority, job.finished) == ("done", "It scatters.", "a", 7, True)
    assert job.evidence is not None
    assert (job.evidence.target, job.evidence.finish) == ("laptop", "stop")
    [asked] = [seen.json for seen in target.at("/api/chat") if seen.json.get("messages")]
    assert (asked["messages"], asked["options"]) == (
        [{"role": "user", "content": "Why is the sky blue?"}],
        {"temperature": 0},
    )
    whole = await client.chat("a", prompt="Once upon", timeout=10)
    assert whole.text
    listed = [each.id async for each in client.jobs(state="done", model="a")]
    assert listed == [whole.id, job.id]
    assert [event.state async for event in client.events(job.id)][-1] == "done"
    [seen] = await client.targets()
    assert (seen.name, seen.state, [each.model for each in seen.resident]) == ("laptop", "up", ["a:latest"])


async def test_the_states_of_a_job_go_to_its_webhook(client: AsyncClient) -> None:
    async with receiving() as receiver:
        made = await client.submit("a", "hello", webhook=receiver.url(), webhook_events=["done"], metadata={"n": 1})
        job = await client.wait(made.job_id, timeout=10)
        await until(lambda: receiver.hooks)
    assert job.metadata == {"n": 1}
    assert [body["state"] for body in told(receiver, made.job_id)] == ["done"]


async def test_the_same_key_is_the_same_job_and_a_lost_answer_makes_no_second_job(place: Place) -> None:
    async with cutting(place.url, 100) as (url, _), AsyncClient(url) as client:
        made = await client.submit("a", "hello", delay_seconds=60)
        again = [await client.submit("a", "hello", idempotency_key="order-17") for _ in range(2)]
        assert again[0] == again[1]
        listed = [job.id async for job in client.jobs()]
    assert listed == [again[0].job_id, made.job_id]


async def test_tokens_come_as_the_model_writes_them(client: AsyncClient, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y", "z"], hold=hold, hold_after=2))
    made = await client.submit("a", "go")
    stream = client.stream(made.job_id)
    async with asyncio.timeout(10):
        assert [await anext(stream), await anext(stream)] == [Token("x"), Token("y")]
        hold.set()
        assert [token async for token in stream] == [Token("z")]
        assert [token async for token in client.stream(made.job_id)] == [Token("xyz")], "of one that is done: all"


async def test_a_stream_that_is_cut_is_resumed(place: Place) -> None:
    words = [f"word{n} " for n in range(40)]
    place.target.script("a", Answer(chunks=words))
    place.target.habits.token_seconds = 0.02
    async with cutting(place.url, 1000, streams=2) as (url, resumed), AsyncClient(url) as client:
        made = await client.submit("a", "go")
        async with asyncio.timeout(20):
            tokens = [token async for token in client.stream(made.job_id)]
    assert [token.restarted for token in tokens] == [False] * len(tokens)
    assert together(tokens) == "".join(words)
    assert len(tokens) > 5, "they came live"
    assert len(resumed) == 3


async def test_the_answer_of_the_next_attempt_replaces_that_of_a_broken_one(
    client: AsyncClient, target: OllamaTarget
) -> None:
    go = asyncio.Event()
    target.script(
        "a", Answer(chunks=["so", "far"], hold=go, hold_after=2, error_after=2), Answer(chunks=["so", "good"])
    )
    made = await client.submit("a", "go", max_attempts=2)
    tokens = []
    async with asyncio.timeout(20):
        async for token in client.stream(made.job_id):
            tokens.append(token)
            if len(tokens) == 2:
                go.set()
    assert tokens[:3] == [Token("so"), Token("far"), Token("sogood", restarted=True)]
    assert together(tokens) == (await client.job(made.job_id)).text == "sogood"


async def test_a_job_that_fails_says_why_and_how_to_go_on(client: AsyncClient, target: OllamaTarget) -> None:
    target.script("a", Answer(status=400, error="no"))
    with pytest.raises(JobFailed, match="no") as failed:
        await client.chat("a", "go", timeout=10)
    job_id = failed.value.job.id
    assert "retry" in failed.value.advice
    with pytest.raises(JobFailed):
        _ = [token async for token in client.stream(job_id)]
    assert (await client.retry(job_id)).state == "queued"
    assert (await client.wait(job_id, timeout=10)).state == "done"
    with pytest.raises(Conflict):
        await client.cancel(job_id)


async def test_a_timeout_says_what_the_job_waits_for(client: AsyncClient) -> None:
    with pytest.raises(NotDone, match=r"queued: not before .* \(run_at\)") as waited:
        await client.chat("a", "go", delay_seconds=3600, timeout=0.2)
    assert isinstance(waited.value, TimeoutError)
    assert (await client.cancel(waited.value.job.id)).state == "failed"
    with pytest.raises(JobFailed, match="cancelled"):
        await client.wait(waited.value.job.id)


async def test_the_artifacts_of_a_job_are_fetched(client: AsyncClient, target: OllamaTarget) -> None:
    target.script("a", Answer(chunks=['{"n": 1}']))
    wishes: list[str | Wish] = ["the text.txt", Wish("whole.json", "structured")]
    job = await client.chat("a", "go", artifacts=wishes, timeout=10)
    assert sorted(each.name for each in job.artifacts) == ["the text.txt", "whole.json"]
    assert await client.artifact(job.id, "the text.txt") == b'{"n": 1}'
    with pytest.raises(NotFound):
        await client.artifact(job.id, "another")


async def test_a_refusal_has_the_code_and_the_text_of_the_server(client: AsyncClient) -> None:
    with pytest.raises(BadRequest, match="give either messages") as refused:
        await client.submit("a")
    assert (refused.value.status, refused.value.code) == (400, "request.invalid_field")
    with pytest.raises(NotFound) as missing:
        await client.wait("0" * 26, timeout=5)
    assert "retention.finished_seconds" in missing.value.advice
