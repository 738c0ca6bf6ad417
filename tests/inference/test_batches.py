"""Files and batches as OpenAI's own client uses them, unchanged, with a scripted target behind the server."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import openai
import pytest
from openai.types import Batch

from chargehand.app import Server
from chargehand.doors.inference.batch import BatchRecord
from chargehand.doors.inference.batch_lines import InputLine, LineError, read_line, split_lines
from chargehand.doors.inference.batch_work import BatchWork
from chargehand.engine.guard import Guard
from chargehand.engine.runner import Outcome
from chargehand.errors import StoreUnavailable
from tests.api.serving import on_sqlite, serving, until
from tests.e2e import server as process
from tests.inference.calling import MODELS, Caller, a_token, before_targets, ran, settings_for, token_of
from tests.inference.conformance import Answer, OllamaTarget

CHAT: Final = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def a_line(custom_id: str, text: str = "one two", model: str = "a", url: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body | fields}


def jsonl(*lines: Any) -> bytes:
    return b"".join([line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines])


class Client:
    """OpenAI's own client, and what a user does with it."""

    def __init__(self, url: str, token: str = "none") -> None:
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0, timeout=20)
        self.files = self.openai.files
        self.batches = self.openai.batches

    async def upload(self, *lines: Any) -> str:
        return (await self.files.create(file=("input.jsonl", jsonl(*lines)), purpose="batch")).id

    async def begin(self, *lines: Any, endpoint: Any = CHAT, window: Any = "24h", **fields: Any) -> Batch:
        file_id = await self.upload(*lines)
        return await self.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window=window, **fields)

    async def reaches(self, batch_id: str, *statuses: str, seconds: float = 20) -> Batch:
        async def there() -> Batch | None:
            batch = await self.batches.retrieve(batch_id)
            return batch if batch.status in statuses else None

        found: Batch = await until(there, seconds)
        return found

    async def has_done(self, batch_id: str, count: int) -> None:
        async def done() -> bool:
            counts = (await self.batches.retrieve(batch_id)).request_counts
            return counts is not None and counts.completed >= count

        await until(done)

    async def ended(self, batch_id: str, seconds: float = 20) -> Batch:
        return await self.reaches(batch_id, *ENDED, seconds=seconds)

    async def lines(self, file_id: str | None) -> list[Any]:
        assert file_id is not None
        return [json.loads(line) for line in (await self.files.content(file_id)).text.splitlines()]


@pytest.fixture
async def target() -> AsyncIterator[OllamaTarget]:
    async with OllamaTarget(MODELS, parallel=8) as opened:
        yield opened


@asynccontextmanager
async def opened(
    store_url: str, folder: Path, target: OllamaTarget, **settings: Any
) -> AsyncIterator[tuple[Server, Client]]:
    targets = [{"name": "laptop", "url": target.url, "parallel": target.parallel}]
    async with before_targets(store_url, folder, target, inference__targets=targets, **settings) as (server, _):
        client = Client(server.url)
        async with client.openai:
            yield server, client


@pytest.fixture
async def client(store_url: str, tmp_path: Path, target: OllamaTarget) -> AsyncIterator[Client]:
    async with opened(store_url, tmp_path, target) as (_, client):
        yield client


def times(batch: Batch) -> set[str]:
    return {name for name, value in batch.to_dict().items() if name.endswith("_at") and value is not None}


def counts(batch: Batch) -> tuple[int, int, int]:
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


# what comes of a batch ------------------------------------------------------------------------------------------------


@on_sqlite
async def test_five_hundred_lines_are_answered_and_joined_by_custom_id(client: Client) -> None:
    asked = {f"question-{number}": f"this is number {number}" for number in range(500)}
    begun = await client.begin(*[a_line(*pair) for pair in asked.items()], metadata={"run": "nightly"})
    assert begun.status == "validating"
    done = await client.ended(begun.id)
    assert (done.status, counts(done), done.error_file_id, done.errors) == ("completed", (500, 500, 0), None, None)
    assert times(done) == {"created_at", "in_progress_at", "finalizing_at", "completed_at", "expires_at"}
    assert done.expires_at == done.created_at + 24 * 3600
    assert (done.metadata, done.endpoint, done.completion_window) == ({"run": "nightly"}, CHAT, "24h")
    lines = await client.lines(done.output_file_id)
    said = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    assert said == {custom_id: f"a says: {text}" for custom_id, text in asked.items()}
    assert [line["custom_id"] for line in lines] == list(asked)
    assert lines[0].keys() == {"id", "custom_id", "response", "error"}
    assert lines[0]["id"] == f"batch_req_{lines[0]['response']['request_id']}"
    assert {(line["response"]["status_code"], line["error"]) for line in lines} == {(200, None)}
    output = await client.files.retrieve(str(done.output_file_id))
    assert (output.purpose, output.filename) == ("batch_output", f"{done.id}_output.jsonl")


@on_sqlite
async def test_every_openai_endpoint_of_the_targets_can_be_batched(client: Client) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"model": "a", "messages": [{"role": "user", "content": "hello"}]},
        "/v1/completions": {"model": "a", "prompt": "hello"},
        "/v1/embeddings": {"model": "embedder", "input": ["hello", "there"]},
        "/v1/responses": {"model": "a", "input": "hello"},
    }
    for endpoint, body in bodies.items():
        line = {"custom_id": "only", "method": "POST", "url": endpoint, "body": body}
        done = await client.ended((await client.begin(line, endpoint=endpoint)).id)
        assert (done.status, counts(done)) == ("completed", (1, 1, 0)), endpoint
        [line] = await client.lines(done.output_file_id)
        assert line["response"]["body"]["object"] in ("chat.completion", "text_completion", "list", "response")


@on_sqlite
async def test_a_line_that_asks_for_a_stream_gets_a_whole_answer(client: Client, target: OllamaTarget) -> None:
    begun = await client.begin(a_line("s", stream=True, stream_options={"include_usage": True}))
    [line] = await client.lines((await client.ended(begun.id)).output_file_id)
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "a says: one two"
    [asked] = ran(target, CHAT)
    assert asked.json == a_line("s", stream=False)["body"]


async def test_lines_that_fail_are_in_the_error_file_and_the_batch_is_still_completed(
    client: Client, target: OllamaTarget
) -> None:
    target.script("plain", Answer(status=400, error="plain does not support tools"), always=True)
    begun = await client.begin(a_line("good"), a_line("unknown", model="nobody-has-this"), a_line("bad", model="plain"))
    done = await client.ended(begun.id)
    assert (done.status, counts(done)) == ("completed", (3, 1, 2))
    assert [line["custom_id"] for line in await client.lines(done.output_file_id)] == ["good"]
    errors = {line["custom_id"]: line for line in await client.lines(done.error_file_id)}
    assert errors.keys() == {"unknown", "bad"}
    assert "nobody-has-this" in errors["unknown"]["error"]["message"]
    assert "does not support tools" in errors["bad"]["error"]["message"]
    assert {(line["response"], line["error"]["code"]) for line in errors.values()} == {(None, "request_failed")}


@on_sqlite
async def test_a_caller_that_waits_goes_before_the_lines_of_a_batch(store_url: str, tmp_path: Path) -> None:
    async with OllamaTarget(MODELS) as target, opened(store_url, tmp_path, target) as (_, client):
        target.habits.hold = asyncio.Event()
        begun = await client.begin(*[a_line(f"{number}") for number in range(5)])
        await until(lambda: target.in_flight["a"])
        waiting = asyncio.create_task(
            client.openai.chat.completions.create(model="a", messages=[{"role": "user", "content": "quick"}])
        )
        await asyncio.sleep(0.1)
        target.habits.hold.set()
        await waiting
        await client.ended(begun.id)
        asked = [seen.json["messages"][0]["content"] for seen in ran(target, CHAT)]
        assert asked == ["one two", "quick", *["one two"] * 4]


@on_sqlite
async def test_the_progress_of_a_batch_can_be_read_while_it_runs_and_in_its_log(
    client: Client, target: OllamaTarget
) -> None:
    target.habits.hold = asyncio.Event()
    begun = await client.begin(*[a_line(f"{number}") for number in range(20)])
    batch = await client.reaches(begun.id, "in_progress")
    assert (counts(batch), times(batch)) == ((20, 0, 0), {"created_at", "in_progress_at", "expires_at"})
    target.habits.hold.set()
    assert counts(await client.ended(begun.id)) == (20, 20, 0)
    async with aiohttp.ClientSession() as session:
        url = f"{str(client.openai.base_url).removesuffix('/v1/')}/engine/jobs/{begun.id.removeprefix('batch_')}/events"
        async with session.get(url) as response:
            events = (await response.json())["events"]
    stages = [event["stage"] for event in events if event["move"] == "advance"]
    assert stages == ["validating", "in_progress", "finalizing"]
    assert 2 <= sum("lines have ended" in event["message"] and event["move"] == "note" for event in events) <= 10


# input that is not right ----------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_bad_line_fails_the_batch_before_any_request_to_a_target(client: Client, target: OllamaTarget) -> None:
    other = a_line("other", url="/v1/completions")
    begun = await client.begin(
        a_line("good"),
        b"not json\n",
        b"\n",
        b'{"custom_id": "x", "method": "POST", "url": "/v1/chat/completions"}\n',
        a_line("good"),
        a_line("") | {"custom_id": " "},
        a_line("get") | {"method": "GET"},
        other,
        a_line("no-model") | {"body": {"messages": []}},
        a_line("no-object") | {"body": []},
        a_line("seven") | {"custom_id": 7},
        b'{"custom_id": "\xff", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "a"}}\n',
        a_line("empty-model", model=""),
    )
    failed = await client.ended(begun.id)
    assert (failed.status, failed.output_file_id, failed.error_file_id) == ("failed", None, None)
    assert times(failed) == {"created_at", "expires_at", "failed_at"}
    assert failed.errors is not None
    assert [(error.code, error.line, error.param) for error in failed.errors.data or ()] == [
        ("invalid_json_line", 2, None),
        ("missing_required_parameter", 4, "body"),
        ("duplicate_custom_id", 5, "custom_id"),
        ("invalid_custom_id", 6, "custom_id"),
        ("invalid_method", 7, "method"),
        ("invalid_url", 8, "url"),
        ("missing_required_parameter", 9, "body.model"),
        ("invalid_type", 10, "body"),
        ("invalid_type", 11, "custom_id"),
        ("invalid_json_line", 12, None),
        ("invalid_model", 13, "body.model"),
    ]
    assert ran(target, CHAT) == []


@on_sqlite
async def test_an_input_without_lines_or_with_too_many_fails(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargehand.doors.inference.batch_work.MAX_LINES", 3)
    for lines, code in ([b" \n\n"], "empty_file"), ([a_line(f"{n}") for n in range(4)], "too_many_lines"):
        failed = await client.ended((await client.begin(*lines)).id)
        assert failed.errors is not None
        assert [error.code for error in failed.errors.data or ()] == [code]
    assert (await client.ended((await client.begin(*[a_line(f"{n}") for n in range(3)])).id)).status == "completed"


@on_sqlite
async def test_an_invalid_batch_is_refused(client: Client) -> None:
    file_id = await client.upload(a_line("x"))
    good: dict[str, Any] = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"input_file_id": "file-7ZZZZZZZZZZZZZZZZZZZZZZZZZ"}, "input_file_id"),
        ({"input_file_id": "nonsense"}, "input_file_id"),
        ({"endpoint": "/v1/messages"}, "endpoint"),
        ({"completion_window": "25h"}, "completion_window"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {f"{n}": "" for n in range(17)}}, "metadata"),
        ({"metadata": {"name": "x" * 513}}, "metadata"),
    ]
    for change, field in bad:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.create(**good | change)
        assert (refused.value.param, refused.value.type) == (field, "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_7ZZZZZZZZZZZZZZZZZZZZZZZZZ")


@on_sqlite
async def test_a_key_makes_a_repeated_request_the_same_batch(client: Client) -> None:
    file_id = await client.upload(a_line("x"))
    asked: dict[str, Any] = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    headers = {"Idempotency-Key": "once"}
    first = await client.batches.create(**asked, extra_headers=headers)
    assert (await client.batches.create(**asked, extra_headers=headers)).id == first.id
    with pytest.raises(openai.UnprocessableEntityError):
        await client.batches.create(**asked, metadata={"other": "body"}, extra_headers=headers)


@on_sqlite
async def test_batches_are_listed_newest_first_a_page_at_a_time(client: Client) -> None:
    file_id = await client.upload(a_line("x"))
    made = [
        (await client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")).id
        for _ in range(5)
    ]
    page = await client.batches.list(limit=2)
    assert ([batch.id for batch in page.data], page.has_more) == (made[:2:-1], True)
    assert [batch.id async for batch in client.batches.list(limit=2)] == made[::-1]


# stopping -------------------------------------------------------------------------------------------------------------


async def hold_after(target: OllamaTarget, client: Client, batch_id: str, count: int) -> None:
    """Make the target stop answering once at least `count` lines are done."""
    await client.has_done(batch_id, count)
    target.habits.hold = asyncio.Event()


async def test_a_cancelled_batch_stops_its_lines_and_keeps_the_answers_it_has(
    client: Client, target: OllamaTarget
) -> None:
    target.habits.token_seconds = 0.002
    begun = await client.begin(*[a_line(f"{number}") for number in range(200)])
    await hold_after(target, client, begun.id, 10)
    asked = await client.batches.cancel(begun.id)
    assert asked.status in ("cancelling", "cancelled")
    done = await client.ended(begun.id)
    total, completed, failed = counts(done)
    assert (done.status, total, completed + failed) == ("cancelled", 200, 200)
    assert completed >= 10
    assert times(done) >= {"created_at", "in_progress_at", "cancelling_at", "cancelled_at", "expires_at"}
    kept, stopped = await client.lines(done.output_file_id), await client.lines(done.error_file_id)
    assert (len(kept), len(stopped)) == (completed, failed)
    assert {line["error"]["code"] for line in stopped} <= {"cancelled", "not_run"}
    assert sorted(int(line["custom_id"]) for line in kept + stopped) == list(range(200))
    await until(lambda: not target.in_flight["a"])
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(begun.id)


@on_sqlite
async def test_a_batch_that_has_not_started_is_cancelled_at_once(client: Client, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    begun = [await client.begin(a_line("x")) for _ in range(5)]
    for batch in begun[:4]:
        await client.reaches(batch.id, "in_progress")
    last = await client.batches.cancel(begun[4].id)
    assert (last.status, last.output_file_id) == ("cancelled", None)
    target.habits.hold.set()
    for batch in begun[:4]:
        assert (await client.ended(batch.id)).status == "completed"


@on_sqlite
async def test_a_batch_whose_window_passes_expires_and_keeps_the_answers_it_has(
    client: Client, target: OllamaTarget
) -> None:
    target.habits.token_seconds = 0.01
    begun = await client.begin(*[a_line(f"{number}") for number in range(100)], window="2s")
    await hold_after(target, client, begun.id, 3)
    done = await client.ended(begun.id)
    total, completed, failed = counts(done)
    assert (done.status, total, completed + failed) == ("expired", 100, 100)
    assert times(done) >= {"expired_at", "expires_at"}
    assert len(await client.lines(done.output_file_id)) == completed >= 3
    assert {line["error"]["code"] for line in await client.lines(done.error_file_id)} == {"batch_expired"}


@on_sqlite
async def test_a_batch_that_is_cancelled_as_a_job_of_the_engine_leaves_no_lines_behind(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    async with opened(store_url, tmp_path, target) as (server, client):
        target.habits.hold = asyncio.Event()
        begun = await client.begin(*[a_line(f"{number}") for number in range(30)])
        await client.reaches(begun.id, "in_progress")
        await until(lambda: target.in_flight["a"] == 8)
        await server.engine.cancel(Guard.seen(await server.engine.get(begun.id.removeprefix("batch_"))))
        assert (await client.batches.retrieve(begun.id)).status == "cancelled"

        async def none_left() -> bool:
            return not await server.store.count_queues()

        await until(none_left)


# crashes, nodes, tenants ----------------------------------------------------------------------------------------------


def quick(folder: Path, target: OllamaTarget) -> process.Server:
    settings = settings_for(folder, target)
    return process.Server(
        f"sqlite:///{folder}/chargehand.db",
        folder,
        server_data_dir=folder,
        inference_targets=target.url,
        inference_probe_seconds=settings["inference.probe_seconds"],
    )


@pytest.mark.xdist_group("processes")
async def test_a_batch_survives_two_kills_of_its_server(tmp_path: Path, target: OllamaTarget) -> None:
    """The server is killed at the beginning, and again in the middle, right after a cancel of one of the batches."""
    target.habits.token_seconds = 0.002
    async with quick(tmp_path, target) as server:
        client = Client(server.url)
        async with client.openai:
            begun = await client.begin(*[a_line(f"{number}", f"number {number}") for number in range(100)])
            other = await client.begin(*[a_line(f"{number}", model="b") for number in range(100)])
            await server.kill()
            await server.start()
            await client.has_done(begun.id, 20)
            await client.has_done(other.id, 5)
            target.habits.hold = asyncio.Event()
            await client.batches.cancel(other.id)
            await server.kill()
            await server.start()
            assert (await client.batches.retrieve(other.id)).status in ("cancelling", "cancelled")
            target.habits.hold.set()
            done, stopped = await client.ended(begun.id, 30), await client.ended(other.id)

            assert (done.status, counts(done)) == ("completed", (100, 100, 0))
            lines = await client.lines(done.output_file_id)
            assert [line["custom_id"] for line in lines] == [f"{number}" for number in range(100)]
            said = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
            assert said == [f"a says: number {number}" for number in range(100)]
            # Only the requests that were running when the server died are sent again.
            asked = Counter(
                seen.json["messages"][0]["content"] for seen in ran(target, CHAT) if seen.json["model"] == "a"
            )
            assert len(asked) <= asked.total() <= len(asked) + 2

            total, completed, failed = counts(stopped)
            assert (stopped.status, total, completed + failed) == ("cancelled", 100, 100)
            assert completed >= 5
            kept, dropped = await client.lines(stopped.output_file_id), await client.lines(stopped.error_file_id)
            assert (len(kept), len(dropped)) == (completed, failed)
            assert sorted(int(line["custom_id"]) for line in kept + dropped) == list(range(100))
            written = {done.output_file_id, stopped.output_file_id, stopped.error_file_id}
            assert {file.id async for file in client.files.list(purpose="batch_output")} == written


async def test_files_that_are_written_again_replace_the_first_ones(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server crashes between writing the files and ending the batch."""
    first_end, calls = BatchWork._end, []

    async def end(self: BatchWork, batch: Any, record: BatchRecord) -> Outcome:
        calls.append(record.output_file_id)
        if len(calls) == 1:
            raise StoreUnavailable("not now")
        return await first_end(self, batch, record)

    monkeypatch.setattr(BatchWork, "_end", end)
    monkeypatch.setattr("chargehand.doors.inference.batch_work.STORE_SECONDS", 0.0)
    done = await client.ended((await client.begin(a_line("x"))).id)
    assert calls == [done.output_file_id] * 2
    assert [file.id async for file in client.files.list(purpose="batch_output")] == [done.output_file_id]


async def test_a_batch_may_run_on_one_node_and_its_lines_on_another(
    postgres_url: str, tmp_path: Path, target: OllamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chargehand.doors.inference.batch_work.POLL_SECONDS", 0.5)
    async with OllamaTarget(MODELS) as away:
        await away.go_away()
        alone = {"inference__targets": [{"name": "laptop", "url": away.url}]}
        lines = [a_line(f"{number}") for number in range(20)]
        async with before_nobody(postgres_url, tmp_path, away, **alone) as client:
            begun = await client.begin(*lines)
            await client.reaches(begun.id, "in_progress")
            async with opened(postgres_url, tmp_path, target) as (_, elsewhere):
                done = await client.ended(begun.id)
                assert (done.status, counts(done)) == ("completed", (20, 20, 0))
                assert len(await elsewhere.lines(done.output_file_id)) == 20


@asynccontextmanager
async def before_nobody(store_url: str, folder: Path, away: OllamaTarget, **settings: Any) -> AsyncIterator[Client]:
    async with serving(store_url, settings_for(folder, away, **settings)) as server:
        client = Client(server.url)
        async with client.openai:
            yield client


async def test_another_tenant_sees_nothing_of_files_and_batches(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    tokens = [a_token("acme", "acme"), a_token("umbrella", "umbrella"), a_token("reader", "acme", "jobs:read")]
    async with opened(store_url, tmp_path, target, auth__tokens=tokens) as (server, _):
        acme, umbrella, reader = (Client(server.url, token_of(name)) for name in ("acme", "umbrella", "reader"))
        async with acme.openai, umbrella.openai, reader.openai:
            done = await acme.ended((await acme.begin(a_line("x"))).id)
            output, given = str(done.output_file_id), done.input_file_id
            for file_id in output, given:
                for call in umbrella.files.retrieve, umbrella.files.content, umbrella.files.delete:
                    with pytest.raises(openai.NotFoundError):
                        await call(file_id)
            for look in umbrella.batches.retrieve, umbrella.batches.cancel:
                with pytest.raises(openai.NotFoundError):
                    await look(done.id)
            with pytest.raises(openai.BadRequestError):
                await umbrella.batches.create(input_file_id=given, endpoint=CHAT, completion_window="24h")
            assert [file async for file in umbrella.files.list()] == []
            assert [batch async for batch in umbrella.batches.list()] == []
            assert [batch.id async for batch in reader.batches.list()] == [done.id]
            with pytest.raises(openai.PermissionDeniedError):
                await reader.upload(a_line("x"))
        async with Client(server.url, "nonsense").openai as nobody:
            with pytest.raises(openai.AuthenticationError):
                await nobody.files.list()


# files ----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_file_is_uploaded_downloaded_and_deleted(client: Client) -> None:
    content = jsonl(*[a_line(f"{number}", "é" * 1000) for number in range(400)])  # more than one piece
    file = await client.files.create(file=("Eingabe é.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(content),
        "Eingabe é.jsonl",
        "batch",
        "processed",
    )
    assert file.expires_at == file.created_at + 2_592_000
    assert (await client.files.retrieve(file.id)) == file
    assert (await client.files.content(file.id)).content == content
    for start, end in ((10, 20), (100, 700_000)):
        part = await client.files.content(file.id, extra_headers={"Range": f"bytes={start}-{end - 1}"})
        assert part.content == content[start:end]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.content(file.id)


@on_sqlite
async def test_files_are_listed_newest_first_a_page_at_a_time(client: Client) -> None:
    made = [await client.upload(a_line(f"{number}")) for number in range(5)]
    page = await client.files.list(limit=2)
    assert ([file.id for file in page.data], page.has_more) == (made[:2:-1], True)
    assert [file.id async for file in client.files.list(limit=2)] == made[::-1]
    assert [file async for file in client.files.list(purpose="batch_output")] == []


@on_sqlite
async def test_a_running_batch_no_longer_needs_its_upload(store_url: str, tmp_path: Path, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    async with opened(store_url, tmp_path, target) as (_, client):
        begun = await client.begin(a_line("x"))
        await until(lambda: target.in_flight["a"])
        await client.files.delete(begun.input_file_id)
    target.habits.hold.set()
    async with opened(store_url, tmp_path, target) as (_, client):
        done = await client.ended(begun.id)
        assert (done.status, counts(done), done.input_file_id) == ("completed", (1, 1, 0), begun.input_file_id)


@on_sqlite
async def test_an_invalid_upload_leaves_no_file(store_url: str, tmp_path: Path, target: OllamaTarget) -> None:
    async with opened(store_url, tmp_path, target, inference__max_file_bytes=100_000) as (server, client):
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await client.files.create(file=b"{}", purpose="fine-tune")
        for size in 100_001, 1_000_000:  # refused while it arrives, and by its Content-Length
            with pytest.raises(openai.APIStatusError) as refused:
                await client.files.create(file=b" " * size, purpose="batch")
            assert refused.value.status_code == 413
        await client.files.create(file=b" " * 100_000, purpose="batch")

        file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="C:\\\\x\\\\y.jsonl"\r\n\r\n{}\r\n'
        purpose = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        form, end = "multipart/form-data; boundary=b", b"--b--\r\n"
        forms: list[tuple[str, bytes, int]] = [
            (form, file + purpose + end, 200),  # the parts in the other order
            (form, file + purpose.replace(b"batch", b"evil") + end, 400),
            (form, file + file + purpose + end, 400),
            (form, purpose + end, 400),
            (form, file + end, 400),
            (form, file + purpose, 400),  # cut off
            (form, file[:-10], 400),
            ("multipart/form-data", file + purpose + end, 400),
            ("application/json", b"{}", 400),
        ]
        async with aiohttp.ClientSession() as session:
            api = Caller(server.url, session)
            for media, body, status in forms:
                answer = await api.call("POST", "/v1/files", data=body, headers={"Content-Type": media})
                assert answer.status == status, (body, answer.body)
                assert answer.json.keys() >= ({"id"} if status == 200 else {"error"})
        assert [file.filename async for file in client.files.list()] == ["y.jsonl", "upload"]


@on_sqlite
async def test_old_uploads_and_unreferenced_bytes_are_removed(
    store_url: str, tmp_path: Path, target: OllamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidy: dict[str, Any] = {"inference__file_seconds": 1.0, "retention__interval_seconds": 0.05}
    monkeypatch.setattr("chargehand.files.Files.sweep.__defaults__", (0.3,))
    async with opened(store_url, tmp_path, target, **tidy) as (_, client):
        done = await client.ended((await client.begin(a_line("x"))).id)

        async def gone() -> bool:
            return [file.id async for file in client.files.list()] == [done.output_file_id]

        await until(gone)
        assert len(await client.lines(done.output_file_id)) == 1
        orphan = await client.upload(a_line("orphan"))
        before = {path.name for path in (tmp_path / "files").iterdir()}
        await client.files.delete(orphan)
        await until(lambda: len(before - {path.name for path in (tmp_path / "files").iterdir()}) == 1)


# lines ----------------------------------------------------------------------------------------------------------------


async def test_lines_are_found_wherever_the_pieces_are_cut() -> None:
    content = b'\n{"a": 1}\r\n\n{"b": 2}\n{"c": 3}'
    for size in range(1, len(content) + 1):

        async def pieces(size: int = size) -> AsyncIterator[bytes]:
            for start in range(0, len(content), size):
                yield content[start : start + size]

        found = [(number, json.loads(line)) async for number, line in split_lines(pieces(), 100)]
        assert found == [(2, {"a": 1}), (4, {"b": 2}), (5, {"c": 3})]


def test_a_file_may_begin_with_a_byte_order_mark() -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(a_line("x")).encode()
    assert isinstance(read_line(1, raw, CHAT, True), InputLine)
    assert isinstance(read_line(2, raw, CHAT, True), LineError)


@on_sqlite
async def test_an_outcome_is_one_line_whatever_the_target_sent(client: Client, target: OllamaTarget) -> None:
    sent = b'{\n "id": "x",\n "big": 12345678901234567890.10,\n "text": "a\\nb"\n}\n'
    target.script(CHAT, Answer(raw=sent), always=True)
    done = await client.ended((await client.begin(a_line("x"))).id)
    content = (await client.files.content(str(done.output_file_id))).content
    assert content.count(b"\n") == 1
    assert b'"body":{"id":"x","big":12345678901234567890.10,"text":"a\\nb"}' in content


# lines that are meant to hurt -------------------------------------------------------------------------------------------

DEEP = b"[" * 100_000 + b"]" * 100_000
LINE = b'{"custom_id":"%b","method":"POST","url":"/v1/chat/completions","body":{"model":"a"%b}}\n'


def test_a_line_of_any_shape_is_parsed_or_is_an_error() -> None:
    for raw, code in (
        (LINE % (b"x", b',"x":' + DEEP), "invalid_json_line"),
        (DEEP, "invalid_type"),
        (LINE % (b"x", b',"x":"\\ud800"'), "invalid_json_line"),
        (LINE % (b"\\ud800", b""), "invalid_json_line"),
        (LINE % (b"x" * 100_000, b""), "line_too_large"),
        (LINE % (b"x", b',"x":[' + b"[]," * 50_000 + b"1]"), "invalid_body"),
        (LINE % (b"x", b"".join(b',"%d":1' % number for number in range(10_000))), "invalid_body"),
        (LINE % (b"x", b',"messages":[' + b"[]," * 50_000 + b"1]"), None),
        (LINE % (b"x", b',"seed":' + b"9" * 10_000), None),
        (b'{"x":' + b"9" * 100_000 + b"}", "line_too_large"),
    ):
        found = read_line(1, raw, CHAT, True)
        assert (found.code if isinstance(found, LineError) else None) == code, raw[:100]


async def test_a_zero_byte_in_a_line_is_stored_and_returned(client: Client) -> None:
    done = await client.ended((await client.begin(a_line("a\0b", text="\0"))).id)
    [line] = await client.lines(done.output_file_id or done.error_file_id)
    assert line["custom_id"] == "a\0b"


@on_sqlite
async def test_a_line_as_long_as_the_whole_file_is_refused(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    async with opened(store_url, tmp_path, target, inference__max_body_bytes=100_000) as (_, client):
        failed = await client.ended((await client.begin(b"x" * 8_000_000)).id)
        assert failed.errors is not None
        assert [error.code for error in failed.errors.data or ()] == ["line_too_large"]


@on_sqlite
async def test_thousands_of_lines_do_not_block_the_event_loop(store_url: str, tmp_path: Path) -> None:
    """Measured in CPU time of this thread between two turns of a task, which a busy machine does not change."""
    longest, ended = 0.0, False

    async def look() -> None:
        nonlocal longest
        while not ended:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    async with before_targets(store_url, tmp_path) as (server, _):
        client = Client(server.url)
        wide = "😀".rjust(100, "x")
        content = b"".join([LINE % (f"{wide}{number}".encode(), b',"x":' + b"9" * 50) for number in range(4000)])
        async with client.openai:
            begun = await client.begin(content)
            looking = asyncio.create_task(look())
            await client.reaches(begun.id, "in_progress", seconds=60)
            await client.batches.cancel(begun.id)
            assert (await client.ended(begun.id, 60)).status == "cancelled"
            ended = True
            await looking
    assert longest < 0.2
