"""Declared tasks on a real server: sent, worked on, retried, gathered, scheduled."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event
from typing import Any

import msgspec
import pydantic
import pytest

from chargehand.app import Server
from chargehand.client import (
    App,
    BatchTask,
    Conflict,
    Every,
    Fail,
    Held,
    JobFailed,
    Middleware,
    NewTask,
    Retries,
    SentTask,
    SoftTimeLimit,
    current_task,
)
from chargehand.client.types.engine import RateOfStarts
from chargehand.client.types.schedules import KeyPolicy, Policy
from tests.api.serving import on_sqlite, serving
from tests.client.running_worker import working
from tests.e2e.server import eventually
from tests.tasks.subscribing import a_token

SECONDS = 30.0
user: ContextVar[str] = ContextVar("user", default="nobody")


class Film(msgspec.Struct):
    name: str


class Cut(pydantic.BaseModel):
    film: str
    minutes: int = pydantic.Field(gt=0)


class Users(Middleware):
    """The user travels with the task."""

    def before_send(self, new: NewTask) -> NewTask:
        return msgspec.structs.replace(new, metadata={**new.metadata, "user": user.get()})

    @contextmanager
    def around_run(self, task: Held) -> Iterator[None]:
        before = user.set(task.task.metadata.get("user", "clock"))
        yield
        user.reset(before)


@pytest.fixture
async def server(store_url: str) -> AsyncIterator[Server]:
    async with serving(store_url, {"tasks.backoff_base_seconds": 0}) as running:
        yield running


@pytest.fixture
async def app(server: Server) -> AsyncIterator[App]:
    app = App(server.url, middleware=[Users()])
    yield app
    await app.aclose()


async def test_declared_tasks_are_sent_worked_on_and_their_results_are_typed(app: App) -> None:
    @app.task
    def cut(film: Film, minutes: int = 3) -> Cut:
        return Cut(film=film.name, minutes=minutes)

    @app.task(queue="Who")
    async def who(greeting: str = "hello") -> str:
        await current_task().progress(50, "half")
        await asyncio.sleep(0)
        return f"{greeting} {user.get()}"

    user.set("ada")
    async with working(app.worker(concurrency=4)):
        assert await (await cut.asend(Film("fox"), minutes=5)).aresult(SECONDS) == Cut(film="fox", minutes=5)
        assert await asyncio.to_thread(lambda: who.send().result(SECONDS)) == "hello ada"
        many = await cut.asend_many(cut.new_task(Film(f"film {n}")) for n in range(120))
        assert [(await sent.aresult(SECONDS)).film for sent in many] == [f"film {n}" for n in range(120)]
        assert await cut.sent(many[7].id).aresult(SECONDS) == Cut(film="film 7", minutes=3)


@on_sqlite
async def test_a_wrong_payload_from_elsewhere_fails_the_task_finally_and_names_the_field(app: App) -> None:
    @app.task
    def cut(film: Film, minutes: int) -> None: ...

    async with working(app.worker()):
        task = await app.async_client.tasks.create("cut", {"film": {"name": "fox"}, "minutes": "3"})
        with pytest.raises(
            JobFailed, match="the payload is not what cut takes: minutes: Expected int, got str"
        ) as failed:
            await cut.sent(task.id).aresult(SECONDS)
    assert failed.value.job.attempts == 1


@on_sqlite
async def test_what_is_declared_of_retries_holds(app: App) -> None:
    @app.task(retry=Retries(attempts=3, first_seconds=0, never=(KeyError,)))
    def flaky(error: str) -> int:
        if error:
            raise {"key": KeyError, "os": OSError}[error]("broken")
        return current_task().attempt

    async with working(app.worker(concurrency=2)):
        ended: dict[str, str] = {}
        for error in ("key", "os"):
            sent = await flaky.asend(error)
            with pytest.raises(JobFailed) as failed:
                await sent.aresult(SECONDS)
            ended[error] = f"{failed.value.job.attempts}: {failed.value.job.error}"
        assert ended == {"key": "1: KeyError: 'broken'", "os": "3: OSError: broken"}
        assert await (await flaky.options(max_attempts=1).asend("")).aresult(SECONDS) == 1


@on_sqlite
async def test_the_time_limits_that_are_declared_hold(app: App) -> None:
    @app.task(retry=1, timeout=0.2)
    async def hangs() -> None:
        await asyncio.sleep(SECONDS * 2)

    @app.task(retry=1, timeout=SECONDS, soft_timeout=0.2)
    async def gives_up() -> str:
        try:
            await asyncio.sleep(SECONDS * 2)
        except SoftTimeLimit:
            return "in time"
        return "too late"

    async with working(app.worker(concurrency=2)):
        sent, other = await hangs.asend(), await gives_up.asend()
        with pytest.raises(JobFailed, match=r"took longer than 0\.2 s"):
            await sent.aresult(SECONDS)
        assert await other.aresult(SECONDS) == "in time"


async def test_a_batch_gets_many_tasks_at_once_and_each_has_its_own_outcome(app: App) -> None:
    sizes: list[int] = []

    @app.batch(10, wait_seconds=0.2, retry=2)
    def index(cuts: list[Cut]) -> list[int | Exception]:
        sizes.append(len(cuts))
        with pytest.raises(RuntimeError, match="no task runs here"):
            current_task()
        return [cut.minutes if cut.minutes != 7 else Fail("seven") for cut in cuts]

    many = await index.asend_many(index.new_task(Cut(film="a", minutes=n)) for n in range(1, 26))
    bad = await app.async_client.tasks.create("index", {"film": "b", "minutes": 0})
    async with working(app.worker(concurrency=10)):
        found = await asyncio.gather(*(sent.aresult(SECONDS) for sent in many), return_exceptions=True)
        with pytest.raises(JobFailed, match="minutes: Input should be greater than 0"):
            await index.sent(bad.id).aresult(SECONDS)
    assert isinstance(found.pop(6), JobFailed)
    assert found == [n for n in range(1, 26) if n != 7]
    assert max(sizes) > 1
    assert sum(sizes) == 25


@on_sqlite
@pytest.mark.parametrize("way", ["raises", "returns too few"])
async def test_what_a_batch_raises_holds_for_all_of_its_tasks(app: App, way: str) -> None:
    @app.batch(3, wait_seconds=0.1, retry=1)
    async def index(numbers: list[int]) -> list[int]:
        with pytest.raises(RuntimeError, match="no task runs here"):
            current_task()
        if way == "raises":
            raise OSError("no index")
        return [*numbers, 1]

    sent: list[SentTask[int]] = await index.asend_many(map(index.new_task, range(1, 4)))
    says = (
        "OSError: no index" if way == "raises" else "a batch of . tasks needs as many outcomes; the function returned ."
    )
    async with working(app.worker(concurrency=3)):
        for each in sent:
            with pytest.raises(JobFailed, match=says):
                await each.aresult(SECONDS)


async def ends_of(app: App, batch: BatchTask[int, Any], count: int = 3) -> list[object]:
    """Work on so many tasks; return their results, or the errors for which they failed."""
    sent = await batch.asend_many(map(batch.new_task, range(count)))
    async with working(app.worker(concurrency=count)):
        ends = await asyncio.gather(*(each.aresult(SECONDS) for each in sent), return_exceptions=True)
    return [str(end) if isinstance(end, JobFailed) else end for end in ends]


@on_sqlite
@pytest.mark.parametrize("error", [asyncio.CancelledError("no"), SystemExit("no"), StopIteration("no")])
@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_every_task_of_a_batch_has_an_outcome_whatever_the_function_raises(
    app: App, error: BaseException, in_a_thread: bool
) -> None:
    def raises(numbers: list[int]) -> None:
        raise error

    async def raises_too(numbers: list[int]) -> None:
        raise error

    batch = app.batch(3, retry=1, queue="index")(raises if in_a_thread else raises_too)
    assert [type(error).__name__ in str(end) for end in await ends_of(app, batch)] == [True] * 3


@on_sqlite
@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_a_batch_past_its_soft_limit_gets_it_once_and_may_still_return_outcomes(
    app: App, in_a_thread: bool
) -> None:
    def index(numbers: list[int]) -> list[int]:
        try:
            while True:
                Event().wait(0.01)
        except SoftTimeLimit:
            return numbers

    async def index_too(numbers: list[int]) -> list[int]:
        with pytest.raises(SoftTimeLimit):
            await asyncio.sleep(SECONDS)
        return numbers

    batch = app.batch(3, queue="index", soft_timeout=0.2)(index if in_a_thread else index_too)
    assert await ends_of(app, batch) == [0, 1, 2]


@on_sqlite
async def test_a_batch_of_a_coroutine_past_its_limit_ends_before_its_tasks_are_tried_again(app: App) -> None:
    running, most = 0, 0

    @app.batch(3, retry=2, timeout=0.3)
    async def index(numbers: list[int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(SECONDS)
        finally:
            running -= 1

    ends = await ends_of(app, index)
    assert all("took longer than 0.3 s" in str(end) or "CancelledError" in str(end) for end in ends)
    assert (running, most) == (0, 1)


@on_sqlite
async def test_tasks_of_a_batch_in_a_thread_past_its_limit_go_back_and_keep_their_places_until_it_ends(
    app: App, server: Server
) -> None:
    began, may_end, calls = Event(), Event(), 0

    @app.batch(2, timeout=0.2)
    def index(numbers: list[int]) -> None:
        nonlocal calls
        calls += 1
        began.set()
        may_end.wait(SECONDS)

    sent = await index.asend_many(map(index.new_task, range(2)))
    async with working(app.worker(concurrency=2)):
        client = app.async_client.tasks

        async def gone_back() -> bool:
            return all([(await client.get(each.id)).status == "PENDING" for each in sent])

        assert await asyncio.to_thread(began.wait, SECONDS)
        await eventually(gone_back, SECONDS, "the tasks are given back")
        assert calls == 1
        may_end.set()
        for each in sent:
            await each.aresult(SECONDS)
    assert calls == 2


# what holds on the server -----------------------------------------------------------------------------------------------


async def started(app: App, *, overwrite: bool = False) -> None:
    """Start a worker, and stop it when it has set what is declared."""
    worker = app.worker(overwrite=overwrite)
    worker.stop()
    await worker.serve()


def shop(url: str, *, cron: str = "30 2 * * *", max_running: int = 4, token: str = "") -> App:
    app = App(url, token)

    @app.task(retry=3, max_running=max_running, every=Every(cron, "Europe/Berlin"))
    def report(kind: str = "daily") -> None: ...

    app.task(queue="plain")(lambda: None)
    return app


async def test_a_worker_sets_what_is_declared_and_says_nothing_twice(server: Server) -> None:
    app = shop(server.url)
    await started(app)
    topic, schedule = await app.async_client.topics.get("report"), await app.async_client.schedules.get("report")
    assert (topic.policy, topic.version) == (Policy(tuple(range(10)), 3, max_consumers=4), 1)
    assert (schedule.cron, schedule.timezone, schedule.payload) == ("30 2 * * *", "Europe/Berlin", {})
    assert (schedule.max_attempts, schedule.version) == (3, 1)
    await started(app)
    assert await app.async_client.topics.get("report") == topic
    assert (await app.async_client.schedules.get("report")).version == 1
    assert len(await app.async_client.topics.find()) == len(await app.async_client.schedules.find()) == 1
    await app.aclose()


async def test_the_rate_and_the_limits_of_keys_that_are_declared_hold_on_the_server(app: App) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @app.task(per_key=KeyPolicy(1))
    async def print_page(key: str) -> None:
        running[key] += 1
        most[key] = max(most[key], running[key])
        await asyncio.sleep(0.02)
        running[key] -= 1

    @app.task(rate=RateOfStarts(1, 3600), per_key=KeyPolicy(2, RateOfStarts(9, 60)))
    def mail() -> None: ...

    mails = [await mail.asend() for _ in range(2)]
    await started(app)
    policy = (await app.async_client.topics.get("mail")).policy
    assert (policy.rate, policy.per_key) == (RateOfStarts(1, 3600), KeyPolicy(2, RateOfStarts(9, 60)))
    pages = [await print_page.options(limit_key=key).asend(key) for key in "aaaabb"]
    async with working(app.worker(concurrency=6)):
        for sent in (*pages, mails[0]):
            await sent.aresult(SECONDS)
    assert most == {"a": 1, "b": 1}
    waiting = await app.async_client.tasks.get(mails[1].id)
    assert (waiting.status, waiting.waiting_for) == ("PENDING", "limit: 1 in 3600 s of this queue")


@on_sqlite
async def test_a_worker_does_not_fight_over_what_the_server_has(server: Server) -> None:
    app = shop(server.url)
    await started(app)
    other = shop(server.url, max_running=9)
    with pytest.raises(
        Conflict, match="the topic report is not as declared: max_consumers is 4 there and 9 in the code"
    ):
        await started(other)
    with pytest.raises(Conflict, match=r"cron is '30 2 \* \* \*' there and '@daily' in the code"):
        await started(shop(server.url, cron="@daily"))
    kept = Policy((0, 5), 3, retention_seconds=60, max_consumers=4)
    await app.async_client.topics.put("report", kept)  # what is not declared is nobody's fight
    await started(app)
    await started(other, overwrite=True)
    assert (await app.async_client.topics.get("report")).policy == msgspec.structs.replace(kept, max_consumers=9)
    await app.aclose()


@on_sqlite
async def test_a_worker_whose_token_may_not_set_them_works_all_the_same(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    scopes = "codeq:claim codeq:heartbeat codeq:abandon codeq:nack codeq:result"
    async with serving(store_url, {"auth.tokens": [a_token("hand", scopes=scopes)]}) as server:
        await started(shop(server.url, token="hand"))
    said = [record.getMessage() for record in caplog.records if "is not set on the server" in record.getMessage()]
    lacks = "what report declares is not set on the server, where this token lacks codeq:"
    assert [line.removeprefix(lacks).split(":")[0] for line in said] == ["admin", "produce"]


async def test_a_task_is_sent_by_the_clock_under_a_name(app: App) -> None:
    @app.task(retry=2)
    def clean(folder: str) -> str:
        return folder

    chosen = clean.options(priority=3, limit_key="acme", metadata={"user": "fox"})
    made = await chosen.aschedule("clean-tmp", "@hourly", folder="/tmp")
    assert (made.name, made.cron, made.payload) == ("clean-tmp", "@hourly", {"folder": "/tmp"})
    assert (made.priority, made.max_attempts, made.limit_key, made.metadata) == (3, 2, "acme", {"user": "fox"})
    task = await app.async_client.schedules.run("clean-tmp")
    assert (task.priority, task.limit_key, task.metadata) == (3, "acme", {"user": "fox"})
    plain = await clean.aschedule("clean-tmp", "@hourly", folder="/tmp")
    assert (plain.limit_key, plain.metadata) == ("", None)
    async with working(app.worker()):
        task = await app.async_client.schedules.run("clean-tmp")
        assert await clean.sent(task.id).aresult(SECONDS) == "/tmp"


def test_what_the_clock_cannot_give_a_task_is_refused_by_its_name() -> None:
    app = App("http://127.0.0.1:9")
    clean = app.task(queue="clean")(lambda: None)
    for options in (
        {"unique_key": "k"},
        {"idempotency_key": "k"},
        {"run_at": "2030-01-01T00:00:00Z"},
        {"delay_seconds": 1},
    ):
        with pytest.raises(ValueError, match=f"^{next(iter(options))}: the clock makes a task at every tick"):
            clean.options(**options).schedule("hourly", "@hourly")
