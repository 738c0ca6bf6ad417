"""Tasks that are declared on a function: what travels, what is refused, and the eager mode. No server is needed here."""

import asyncio
import datetime
import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pydantic
import pytest

from chargehand.client import (
    App,
    Fail,
    Held,
    JobFailed,
    Middleware,
    NewTask,
    PayloadError,
    Retries,
    Retry,
    Task,
    current_task,
)
from chargehand.client.declared.eager import EagerTask
from chargehand.client.declared.values import Arguments, Returns

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


class Film(msgspec.Struct):
    name: str
    at: datetime.datetime | None = None


class User(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(gt=0)


class Order(msgspec.Struct):
    user: User
    films: list[Film] = []


@pytest.fixture
def app() -> Iterator[App]:
    app = App("http://127.0.0.1:9")
    with app.eager():
        yield app


# the function -----------------------------------------------------------------------------------------------------------


def test_a_declared_function_is_still_called_as_it_is(app: App) -> None:
    @app.task
    def greet(name: str, times: int = 1) -> str:
        """Say hello."""
        return f"Hello, {name}! " * times

    @app.task(queue="later")
    async def agreet(name: str) -> str:
        return name

    assert greet("fox", 2) == "Hello, fox! Hello, fox! "
    assert asyncio.run(agreet("owl")) == "owl"
    assert (greet.__name__, greet.__doc__, greet.command) == ("greet", "Say hello.", "greet")
    assert list(inspect.signature(greet).parameters) == ["name", "times"]


def test_two_tasks_of_one_queue_are_refused(app: App) -> None:
    app.task(queue="greet")(lambda: None)
    with pytest.raises(ValueError, match=r"'Greet' is declared already, by .*<lambda>"):
        app.task(queue="Greet")(lambda: None)


def test_a_declaration_that_cannot_be_meant_is_refused(app: App) -> None:
    def named(name: str) -> None: ...

    def star(*names: str) -> None: ...

    def rows(rows: list[int]) -> None: ...

    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: app.task(star), "names: a task's parameters have names"),
        (lambda: app.task(every="@daily")(named), "every: the clock gives no arguments, and name has no default"),
        (lambda: app.task(queue="  ")(named), "queue: must not be blank"),
        (lambda: app.task(retry=1000)(named), "retry: attempts must be from 0 to 100, not 1000"),
        (lambda: app.task(max_running=-1)(named), "max_running must be 1 or more"),
        (
            lambda: app.task(queue="a.b", max_running=1)(named),
            "queue: max_running needs one of letters, digits, - or _, not 'a.b'",
        ),
        (lambda: app.batch(0)(rows), "size must be 1 or more, not 0"),
        (lambda: Retries(factor=0.5), "factor must be 1 or more, not 0.5"),
    ]
    for declare, says in wrong:
        with pytest.raises((TypeError, ValueError), match=says):
            declare()


def test_a_type_that_cannot_travel_is_refused_when_the_worker_is_made(app: App) -> None:
    class Socket: ...

    def send(socket: Socket) -> None: ...

    send.__annotations__["socket"] = Socket
    task = app.task(send)
    with pytest.raises(PayloadError, match="Socket is no type that msgspec or pydantic knows"):
        task.send(Socket())


# what travels -----------------------------------------------------------------------------------------------------------


def everything(
    film: Film, users: list[User], order: Order, at: datetime.datetime = NOON, *, more: Any = None
) -> None: ...


def test_arguments_come_back_as_they_were_sent() -> None:
    arguments = Arguments(everything)
    order = Order(User(name="a", age=1), [Film("fox", NOON)])
    payload = arguments.pack(Film("owl"), [User(name="b", age=2)], order=order, more={"x": [1]})
    assert arguments.unpack(bytes(payload)) == {
        "film": Film("owl"),
        "users": [User(name="b", age=2)],
        "order": order,
        "more": {"x": [1]},
    }


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"film": "fox"}, "film: Expected object, got str"),
        ({"film": {"name": 3}}, "film.name: Expected str, got int"),
        (
            {"users": [{"name": "a", "age": 1}, {"name": "b", "age": -1}]},
            "users[1]: age: Input should be greater than 0",
        ),
        ({"order": {"user": {"name": "a"}}}, "order.user: age: Field required"),
        ({"at": "noon"}, "at: Invalid RFC3339 encoded datetime"),
        ({"colour": 1}, "Object contains unknown field colour"),
    ],
)
def test_a_wrong_payload_is_refused_by_both_sides_with_the_field(wrong: dict[str, Any], says: str) -> None:
    arguments = Arguments(everything)
    good: dict[str, Any] = {"film": {"name": "fox"}, "users": [], "order": {"user": {"name": "a", "age": 1}}}
    arguments.pack(**good)
    with pytest.raises(PayloadError) as there:
        arguments.unpack(msgspec.json.encode(good | wrong))
    assert str(there.value) == says
    if "colour" not in wrong:
        with pytest.raises(PayloadError) as here:
            arguments.pack(**good | wrong)
        assert str(here.value) == says


def test_a_call_with_the_wrong_names_is_the_error_of_a_call() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'film'"):
        Arguments(everything).pack()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Arguments(everything).pack(1, 2, 3, colour=1)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, {}),
        (3, {"value": 3}),
        ([1], {"value": [1]}),
        ({"a": 1}, {"a": 1}),
        ({}, {"value": {}}),
        ({"value": 3}, {"value": {"value": 3}}),
        ({"value": 3, "b": 1}, {"value": 3, "b": 1}),
        ({"value": {"value": None}}, {"value": {"value": {"value": None}}}),
    ],
)
def test_every_result_is_an_object_and_comes_back_as_it_was(value: Any, result: dict[str, Any]) -> None:
    returns: Returns[Any] = Returns(Any)
    packed = msgspec.json.decode(returns.pack(value))
    assert packed == result
    assert returns.unpack(packed) == value


def test_results_of_workers_that_declare_nothing_are_read_too() -> None:
    assert Returns(Film).unpack({"name": "fox"}) == Film("fox")
    assert Returns(dict[str, int]).unpack({"value": 3}) == {"value": 3}
    assert Returns(dict[str, int]).unpack({}) == {}
    with pytest.raises(PayloadError, match="name: Expected str, got int"):
        Returns(Film).unpack({"name": 3})


found_by_name = App()


@found_by_name.task
async def shout(word: str) -> str:
    return word.upper()


def test_a_child_process_finds_a_task_by_its_name(app: App) -> None:
    run = pickle.loads(pickle.dumps(shout.handler().for_worker()))
    held = EagerTask(Task(id="a", payload_json='{"word": "fox"}'))
    assert msgspec.json.decode(asyncio.run(run(held))) == {"value": "FOX"}
    local = app.task(queue="local")(lambda: None)
    with pytest.raises(pickle.PicklingError, match=r"test_declared has no task .*<lambda>"):
        pickle.dumps(local.handler().for_worker())
    app.batch(3)(rows_of)
    with pytest.raises(ValueError, match="rows_of takes many tasks at once, and a process has one"):
        app.worker(concurrency=3, processes=2)


def rows_of(rows: list[int]) -> None: ...


# eager ------------------------------------------------------------------------------------------------------------------


def test_eagerly_a_task_runs_where_it_is_sent_with_the_checks_of_both_sides(app: App) -> None:
    @app.task
    def shorten(film: Film, seconds: int = 1) -> Film:
        return Film(film.name[:seconds], film.at)

    sent = shorten.send(Film("fox", NOON), seconds=2)
    assert sent.result() == Film("fo", NOON)
    with pytest.raises(PayloadError, match="seconds: Expected int, got str"):
        shorten.send(Film("fox"), seconds="2")  # type: ignore[arg-type]
    assert [each.result().name for each in shorten.send_many(shorten.new_task(Film(name)) for name in ("a", "b"))] == [
        "a",
        "b",
    ]


def test_eagerly_a_wrong_result_fails_the_task(app: App) -> None:
    @app.task
    def count() -> int:
        return "three"  # type: ignore[return-value]

    with pytest.raises(JobFailed, match="the function returned something else than it declares: Expected int, got str"):
        count.send().result()


async def test_eagerly_coroutines_run_from_loops_and_without_one(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        await current_task().progress(50)
        await asyncio.sleep(0)
        return n * 2

    @app.task
    def plain(n: int) -> int:
        return n + 1

    assert await (await double.asend(2)).aresult() == 4
    assert double.send(3).result() == 6
    assert await asyncio.to_thread(lambda: double.send(4).result()) == 8
    assert await (await plain.asend(1)).aresult() == 2
    assert [await each.aresult() for each in await plain.asend_many([plain.new_task(1), plain.new_task(2)])] == [2, 3]


def test_eagerly_retry_tries_again_fail_fails_and_a_bug_is_raised(app: App) -> None:
    attempts: list[int] = []

    @app.task(retry=3)
    def flaky(good_at: int) -> int:
        attempts.append(current_task().attempt)
        if current_task().attempt < good_at:
            raise Retry(60, "not yet")
        return current_task().max_attempts

    @app.task
    def wrong(how: str) -> None:
        raise Fail("for good") if how == "fail" else ZeroDivisionError

    assert flaky.send(3).result() == 3
    assert attempts == [1, 2, 3]
    with pytest.raises(JobFailed, match="not yet"):
        flaky.send(4).result()
    sent = wrong.send("fail")
    with pytest.raises(JobFailed, match="for good") as failed:
        sent.result()
    assert failed.value.job.status == "FAILED"
    with pytest.raises(ZeroDivisionError):
        wrong.send("bug")


def test_an_eager_task_is_all_that_a_task_of_a_worker_is() -> None:
    async def fields() -> set[str]:
        return set(vars(Held(Task(id="a"), lambda _: asyncio.get_running_loop().create_future())))

    missing = {name for name in asyncio.run(fields()) - set(vars(EagerTask(Task(id="a")))) if not name.startswith("_")}
    assert missing == set()


def test_there_is_no_current_task_outside_of_one() -> None:
    with pytest.raises(RuntimeError, match="no task runs here"):
        current_task()


# middleware -------------------------------------------------------------------------------------------------------------


class Traced(Middleware):
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def before_send(self, new: NewTask) -> NewTask:
        return msgspec.structs.replace(new, metadata={**new.metadata, self.name: len(new.metadata)})

    @contextmanager
    def around_run(self, task: Held) -> Iterator[None]:
        self.seen.append(f"{self.name} enters with {task.task.metadata[self.name]}")
        try:
            yield
        except Exception as error:
            self.seen.append(f"{self.name} sees {type(error).__name__}")
            raise
        self.seen.append(f"{self.name} leaves")


def test_middleware_is_around_each_run_the_first_outermost_and_context_rides_in_metadata() -> None:
    seen: list[str] = []
    app = App(middleware=[Traced("outer", seen), Traced("inner", seen)])

    @app.task
    def work(well: bool) -> None:
        seen.append("works")
        if not well:
            raise Fail("no")

    with app.eager():
        work.send(well=True)
        work.options(metadata={"user": 7}).send(well=False)
    assert seen == [
        "outer enters with 0",
        "inner enters with 1",
        "works",
        "inner leaves",
        "outer leaves",
        "outer enters with 1",
        "inner enters with 2",
        "works",
        "inner sees Fail",
        "outer sees Fail",
    ]


# retries ----------------------------------------------------------------------------------------------------------------


def test_pauses_grow_up_to_a_bound_and_are_shortened_by_half_at_most() -> None:
    retries = Retries(attempts=9, first_seconds=2, factor=3, most_seconds=50)
    for attempt, longest in [(1, 2), (2, 6), (3, 18), (4, 50), (90, 50), (10**6, 50)]:
        verdict = retries.verdict(KeyError("x"), attempt)
        assert isinstance(verdict, Retry)
        assert verdict.delay_seconds is not None
        assert longest / 2 <= verdict.delay_seconds <= longest
        assert verdict.reason == "KeyError: 'x'"


def test_errors_that_cannot_heal_fail_the_task() -> None:
    never, only = Retries(never=(LookupError,)), Retries(only=(OSError,))
    assert isinstance(never.verdict(KeyError(), 1), Fail)
    assert isinstance(only.verdict(KeyError(), 1), Fail)
    for error in (OSError(), Fail("x"), Retry(3)):
        assert (never.verdict(error, 1), only.verdict(error, 1)) == (error, error)


# batches ----------------------------------------------------------------------------------------------------------------


def test_eagerly_a_batch_function_gets_each_task_alone(app: App) -> None:
    @app.batch(10)
    def ages(users: list[User]) -> list[int | Exception]:
        return [user.age if user.age < 90 else Fail("too old") for user in users]

    assert ages.send(User(name="a", age=3)).result() == 3
    with pytest.raises(JobFailed, match="too old"):
        ages.send(User(name="b", age=91)).result()
    assert ages([User(name="a", age=3)]) == [3]
    with pytest.raises(PayloadError):
        ages.send(3)  # type: ignore[arg-type]


def test_a_batch_needs_as_many_places(app: App) -> None:
    @app.batch(50)
    def rows(rows: list[int]) -> None: ...

    with pytest.raises(ValueError, match="rows takes 50 tasks at once: concurrency must be as much or more"):
        app.worker(concurrency=4)
    with pytest.raises(ValueError, match="no task is declared for 'cols'; there are rows"):
        app.worker(["cols"])
