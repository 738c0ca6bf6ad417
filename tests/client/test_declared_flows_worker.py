"""Flows of declared tasks on a real server, with a real worker."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chargehand.app import Server
from chargehand.client import (
    App,
    BadRequest,
    Fail,
    Held,
    JobFailed,
    Middleware,
    NewStep,
    NewTask,
    NotDone,
    Step,
    chain,
    current_task,
    group,
    join,
)
from tests.api.serving import on_sqlite, serving
from tests.client.running_worker import working
from tests.inference.calling import MODELS, before_targets
from tests.inference.conformance import Answer, OllamaTarget

SECONDS = 30.0


class Film(msgspec.Struct, rename="camel"):
    name: str
    scenes: list[str] = []


class Sender(Middleware):
    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []

    def before_send(self, new: NewTask) -> NewTask:
        return msgspec.structs.replace(new, metadata={"sent": new.command, "text": "{{fetch}}"})

    @contextmanager
    def around_run(self, task: Held) -> Iterator[None]:
        assert task.task.metadata["text"] == "{{fetch}}"
        self.ran.append((task.command, task.task.metadata["sent"]))
        yield


def films(url: str) -> App:
    app = App(url, middleware=[Sender()])

    @app.task
    def fetch(url: str) -> str:
        if url == "broken":
            raise Fail("no such film")
        return f"<{url}>"

    @app.task(retry=2)
    async def cut(text: str, scenes: int = 1) -> Film:
        return Film(text, [f"scene {n}" for n in range(scenes)])

    @app.task
    def show(films: list[Film], title: str = "") -> str:
        return f"{title}{' and '.join(film.name for film in films)}"

    @app.task
    def anything(value: Any = None) -> Any:
        return value

    @app.batch(10, wait_seconds=0.05)
    def index(films: list[Film]) -> list[int]:
        return [len(film.scenes) for film in films]

    return app


@pytest.fixture
async def server(store_url: str) -> AsyncIterator[Server]:
    async with serving(store_url, {"tasks.backoff_base_seconds": 0}) as running:
        yield running


@pytest.fixture
async def app(server: Server) -> AsyncIterator[App]:
    app = films(server.url)
    yield app
    await app.aclose()


def of(app: App, name: str) -> Any:
    return app.tasks[name]


async def test_a_chain_a_group_and_a_join_run_and_give_typed_results(app: App) -> None:
    fetch, cut, show, index = (of(app, name) for name in ("fetch", "cut", "show", "index"))
    text = '{{x}} {{{fetch.value}} "\\u00e9 {'
    flow = chain(
        fetch.step(text),
        lambda film: group(cut.step(film, scenes=2), cut.step(f"also {film}"), cut.step("owl")),
        lambda cuts: show.step(cuts, title="tonight: "),
    )
    async with working(app.worker(concurrency=12)):
        joined = await join((cut.step(name) for name in ("a", "b")), show).asend()
        shown = await flow.asend(name="night", metadata={"a": 1})
        assert await shown.aresult(SECONDS) == f"tonight: <{text}> and also <{text}> and owl"
        assert await flow.sent(shown.id).aresult(SECONDS) == await shown.aresult()
        assert await joined.aresult(SECONDS) == "a and b"
        pair = group(cut.step("a"), cut.step("b", scenes=3))
        several = await chain(
            pair,
            lambda cuts: group(
                index.step(cuts[1]), cut.step(cuts[0].name), fetch.step(f"{cuts[1].scenes[2]} {cuts[0]}")
            ),
        ).asend()
        assert await several.aresult(SECONDS) == [
            3,
            Film("a", ["scene 0"]),
            '<scene 2 {"name":"a","scenes":["scene 0"]}>',
        ]
        read = await app.async_client.flows.get(shown.id)
    assert (read.name, read.metadata, read.counts) == ("night", {"a": 1}, {"succeeded": 5})
    assert [step.name for step in read.steps] == ["fetch", "cut", "cut-2", "cut-3", "show"]
    [sender] = app.middleware
    assert isinstance(sender, Sender)
    assert all(command == sent for command, sent in sender.ran)


@on_sqlite
@pytest.mark.parametrize(
    "value", [None, 3, [1], {"a": 1}, {}, {"value": 3}, {"value": {"value": None}}, "{{anything}}"]
)
async def test_results_of_any_type_are_passed_on_as_they_were(app: App, value: Any) -> None:
    anything = of(app, "anything")
    flow = chain(anything.step(value), anything, lambda result: anything.step({"in": [result], "and": result}))
    async with working(app.worker(concurrency=10)):
        assert await (await flow.asend()).aresult(SECONDS) == {"in": [value], "and": value}


@on_sqlite
async def test_a_flow_is_sent_and_waited_for_without_a_loop(app: App) -> None:
    def program() -> None:
        sent = chain(of(app, "fetch").step("fox"), of(app, "cut")).send(idempotency_key="fox-17")
        again = chain(of(app, "fetch").step("fox"), of(app, "cut")).send(idempotency_key="fox-17")
        assert (again.id, repr(again)) == (sent.id, f"<SentFlow {sent.id}>")
        assert sent.result(SECONDS) == again.result() == Film("<fox>", ["scene 0"])
        waiting = of(app, "cut").options(delay_seconds=600).step("owl").send()
        with pytest.raises(NotDone):
            waiting.result(0)
        assert waiting.cancel().state == "cancelled"
        with pytest.raises(JobFailed, match="cancelled"):
            waiting.result(SECONDS)
        app.close()

    async with working(app.worker(concurrency=10)):
        await asyncio.to_thread(program)


@on_sqlite
async def test_a_failure_is_handled_and_the_flow_tried_again(app: App) -> None:
    fetch, cut, show = (of(app, name) for name in ("fetch", "cut", "show"))
    broken = fetch.step("broken")
    mend = cut.step(f"{broken.state}: {broken.error}")
    async with working(app.worker(concurrency=10)):
        failed = await chain(broken, cut).asend()
        with pytest.raises(JobFailed, match="step 'fetch' failed: no such film"):
            await failed.aresult(SECONDS)
        mended = await mend.asend()
        assert (await mended.aresult(SECONDS)).name == "failed: no such film"
        skipped = await chain(broken, cut).also(mend).asend()
        with pytest.raises(JobFailed, match="the job failed: skipped: step 'fetch' failed"):
            await skipped.aresult(SECONDS)
        assert (await app.async_client.flows.get(skipped.id)).counts == {"failed": 1, "skipped": 1, "succeeded": 1}
        finished = await show.step([]).after(broken, on="finished").asend()
        assert await finished.aresult(SECONDS) == ""

        attempts: list[int] = []

        @app.task(retry=1)
        def flaky(value: str) -> str:
            attempts.append(current_task().attempt)
            if len(attempts) == 1:
                raise OSError("not yet")
            return value

    async with working(app.worker(concurrency=10)):
        again = await chain(fetch.step("fox"), flaky).asend()
        with pytest.raises(JobFailed, match="step 'flaky' failed: OSError: not yet"):
            await again.aresult(SECONDS)
        await again.aretry("flaky")
        assert await again.aresult(SECONDS) == "<fox>"
    assert len(attempts) == 2


@on_sqlite
async def test_a_flow_is_cancelled_with_its_steps(app: App) -> None:
    sent = await chain(of(app, "fetch").step("fox"), of(app, "cut")).asend()
    assert (await sent.acancel()).state == "cancelled"
    with pytest.raises(JobFailed, match="cancelled"):
        await sent.aresult(SECONDS)
    read = await app.async_client.flows.get(sent.id)
    assert {step.state for step in read.steps} == {"cancelled"}


@on_sqlite
async def test_what_the_server_refuses_names_the_step(app: App) -> None:
    with pytest.raises(BadRequest, match=r"steps\[1\]\.body\.queue"):
        await chain(of(app, "fetch").step("fox"), Step.of(NewStep("tell", "engine", {"payload": 1}))).asend()


@on_sqlite
async def test_jobs_of_other_doors_take_results_and_hand_theirs_on(store_url: str, tmp_path: Path) -> None:
    async with OllamaTarget(MODELS) as target, before_targets(store_url, tmp_path, target) as (server, _):
        target.script("a", Answer(chunks=["A fine ", "film."]))
        app = films(server.url)
        film = of(app, "cut").step("fox", scenes=2)
        prompt = f"Write about {film.result.scenes[1]} of {film.result.name}."
        report = Step.of(
            NewStep("report", "inference", {"model": "a", "messages": [{"role": "user", "content": prompt}]})
        )
        tell = Step.of(NewStep("tell", "engine", {"queue": "tell", "payload": {"text": report.result.message.content}}))
        flow = chain(report, lambda answer: of(app, "fetch").step(answer.message.content))
        async with working(app.worker(concurrency=10)):
            sent = await group(flow, tell, film).asend()
            [job] = await app.async_client.engine.claim(["tell"], wait_seconds=20)
            assert job.payload == {"text": "A fine film."}
            await app.async_client.engine.succeed(job.id, job.lease, {"value": 3})
            assert await sent.aresult(SECONDS) == ["<A fine film.>", {"value": 3}, Film("fox", ["scene 0", "scene 1"])]
        [asked] = [seen.json for seen in target.at("/api/chat") if seen.json.get("messages")]
        assert asked["messages"][0]["content"] == "Write about scene 1 of fox."
        await app.aclose()
