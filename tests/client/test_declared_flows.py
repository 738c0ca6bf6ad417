"""Flows of declared tasks: the graph that is sent, and the eager mode. No server is needed here."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from chargehand.client import (
    App,
    Conflict,
    DeclaredFlow,
    Fail,
    JobFailed,
    Middleware,
    NewStep,
    NewTask,
    PayloadError,
    Retry,
    SentFlow,
    Step,
    Task,
    chain,
    group,
    join,
)
from chargehand.client.declared.graph import SentSteps
from chargehand.client.declared.values import RESULTS, payload_of
from chargehand.client.types.flows import After

app = App("http://127.0.0.1:9")
ran: list[str] = []


class Point(NamedTuple):
    x: int
    y: int


class Film(msgspec.Struct, rename="camel"):
    name: str
    cut_at: list[Point] = []


class Measured(msgspec.Struct):
    value: float


@app.task(retry=3, priority=4)
def fetch(url: str) -> str:
    ran.append(f"fetch {url}")
    if url == "broken":
        raise Fail("no such film")
    return f"<{url}>"


@app.task
async def cut(text: str, times: int = 1) -> Film:
    ran.append("cut")
    return Film(text, [Point(1, times)])


@app.task
def show(films: list[Film], title: str = "") -> dict[str, int]:
    return {film.name: film.cut_at[0].y for film in films}


@app.task
def measure() -> Measured:
    return Measured(0.5)


@app.task
def anything(value: Any) -> Any:
    return value


@app.task(queue="may be.none")
def maybe(number: int | None = None) -> int | None:
    return number


@app.batch(10)
def index(films: list[Film]) -> list[int]:
    return [len(film.name) for film in films]


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def eagerly() -> Iterator[None]:
    with app.eager():
        yield


def sent(flow: DeclaredFlow[Any]) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in msgspec.json.decode(msgspec.json.encode(SentSteps(flow).new_steps()))}


def graph(flow: DeclaredFlow[Any]) -> dict[str, list[str]]:
    """What each step comes after: "a" if that succeeded."""
    return {
        name: [each["step"] if each["on"] == "succeeded" else f"{each['on']}: {each['step']}" for each in step["after"]]
        for name, step in sent(flow).items()
    }


def payloads(flow: DeclaredFlow[Any]) -> dict[str, Any]:
    return {name: step["body"]["payload"] for name, step in sent(flow).items()}


# the graph --------------------------------------------------------------------------------------------------------------


def test_a_chain_passes_each_result_on_as_the_first_argument() -> None:
    flow = chain(fetch.step("fox"), lambda text: cut.step(text, times=2), index.step)
    assert graph(flow) == {"fetch": [], "cut": ["fetch"], "index": ["cut"]}
    assert payloads(flow) == {
        "fetch": {"url": "fox"},
        "cut": {"text": "{{fetch.value}}", "times": 2},
        "index": "{{cut}}",
    }


def test_a_chain_runs_what_takes_no_result_one_after_the_other_too() -> None:
    flow = chain(fetch.step("fox"), fetch.step("owl"), lambda _: chain(fetch.step("bear"), cut), measure.step())
    assert graph(flow) == {
        "fetch": [],
        "fetch-2": ["fetch"],
        "fetch-3": ["fetch-2"],
        "cut": ["fetch-3"],
        "measure": ["cut"],
    }


def test_a_join_runs_after_a_group_with_the_list_of_results() -> None:
    flow = join([cut.step(name) for name in ("fox", "owl")], lambda films: show.step(films, title="night"))
    assert graph(flow) == {"cut": [], "cut-2": [], "show": ["cut", "cut-2"]}
    assert payloads(flow)["show"] == {"films": ["{{cut}}", "{{cut-2}}"], "title": "night"}
    assert payloads(join([], show)) == {"show": {"films": []}}
    with pytest.raises(ValueError, match="a group needs a flow or more"):
        group()


def test_a_group_within_a_chain_begins_after_what_is_before_it() -> None:
    begin = measure.step()
    flow = chain(
        begin, group(chain(fetch.step("fox"), cut), cut.step("owl")), show, lambda shown: anything.step(shown["owl"])
    )
    assert graph(flow) == {
        "measure": [],
        "fetch": ["measure"],
        "cut": ["measure"],
        "cut-2": ["fetch"],
        "show": ["cut-2", "cut"],
        "anything": ["show"],
    }
    assert payloads(flow)["anything"] == {"value": "{{show.owl}}"}


def test_a_result_as_an_argument_makes_the_dependency_wherever_it_stands() -> None:
    fetched = fetch.step("fox")
    film = cut.step(f"{fetched.result}, {{not {{me}}").result
    flow = anything.step(
        {"in": [film.name, film.cut_at[3].y], "text": f"{film.name}: {fetched} {film.cut_at}", "step": fetched}
    )
    assert graph(flow) == {"fetch": [], "cut": ["fetch"], "anything": ["cut", "fetch"]}
    assert payloads(flow)["cut"] == {"text": "{{fetch.value}}, {not {me}"}
    assert payloads(flow)["anything"]["value"] == {
        "in": ["{{cut.name}}", "{{cut.cutAt.3.1}}"],
        "text": "{{cut.name}}: {{fetch.value}} {{cut.cutAt}}",
        "step": "{{fetch.value}}",
    }


def test_what_looks_like_a_reference_in_an_argument_stays_text_on_the_wire() -> None:
    fetched = fetch.step("fox")
    flow = cut.step(f"{{{{fetch.value}}}} {{{fetched.result}")
    body = msgspec.json.encode(SentSteps(flow).new_steps()[1].body)
    assert rb'"\u007b{fetch.value}} \u007b{{fetch.value}}"' in body
    assert payloads(flow)["cut"] == {"text": "{{fetch.value}} {{{fetch.value}}"}


@pytest.mark.parametrize(
    ("step", "whole"),
    [
        (lambda: fetch.step("fox"), "{{fetch.value}}"),
        (lambda: cut.step("fox"), "{{cut}}"),
        (lambda: show.step([]), "{{show}}"),
        (lambda: measure.step(), "{{measure}}"),
        (lambda: index.step(Film("fox")), "{{index.value}}"),
    ],
)
def test_the_declared_type_tells_how_a_result_travels(step: Callable[[], Step[Any]], whole: str) -> None:
    made = sent(anything.step(step().result))["anything"]
    assert made["body"]["payload"] == {"value": whole}
    assert "metadata" not in made["body"]


def test_of_a_result_that_may_be_an_object_or_not_the_worker_decides() -> None:
    either = anything.step(1)
    flow = anything.options(metadata={"a": 1}).step(
        [either.result, maybe.step(None).result, either.result.name, either.result[0]]
    )
    made = sent(flow)["anything-2"]["body"]
    assert made["payload"]["value"] == ["{{anything}}", "{{may-be-none}}", "{{anything.name}}", "{{anything.value.0}}"]
    assert made["metadata"] == {"a": 1, RESULTS: [["value", 0], ["value", 1]]}
    many = sent(join([anything.step(n) for n in range(2000)], anything))["anything-2001"]
    assert many["body"]["metadata"] == {RESULTS: [["value", None]]}
    with pytest.raises(
        ValueError, match="<Step anything> may return an object or not: declare which, to put it into a text"
    ):
        fetch.step(f"{either.result}")
    with pytest.raises(ValueError, match="declare which, to refer to its 'value'"):
        either.result["value"]


def test_what_a_step_waits_for_can_be_said() -> None:
    fox, owl = fetch.step("fox"), fetch.step("owl")
    first = measure.step().after(fox, owl, need="any")
    mend = cut.step(fox.error)
    last = maybe.step().after(first, mend, on="finished").after(owl)
    assert graph(last) == {
        "fetch": [],
        "fetch-2": [],
        "measure": ["fetch", "fetch-2"],
        "cut": ["failed: fetch"],
        "may-be-none": ["finished: measure", "finished: cut", "fetch-2"],
    }
    assert [step["need"] for step in sent(last).values() if "need" in step] == ["any"]
    assert payloads(last)["cut"] == {"text": "{{fetch.error}}"}
    assert graph(cut.step(fox.error).after(fox, on="finished"))["cut"] == ["finished: fetch"]
    with pytest.raises(
        ValueError, match="<Step measure> needs any of what it comes after, and cannot need all as well"
    ):
        first.after(mend)


def test_a_flow_begins_after_another_and_takes_others_along() -> None:
    begin, mend = fetch.step("fox"), fetch.step("owl").named("mend")
    flow = group(cut.step("a"), chain(cut.step("b"), index.step)).after(begin.also(mend.after(begin, on="failed")))
    assert graph(flow) == {
        "fetch": [],
        "mend": ["failed: fetch"],
        "cut": ["fetch"],
        "cut-2": ["fetch"],
        "index": ["cut-2"],
    }


def test_steps_have_unique_names() -> None:
    steps = [
        maybe.step(),
        fetch.step("a").named("may-be-none-2"),
        maybe.step(),
        maybe.step(),
        maybe.step().named("mine"),
    ]
    assert set(graph(group(*steps))) == {"may-be-none", "may-be-none-2", "may-be-none-3", "may-be-none-4", "mine"}
    assert len(max(sent(app.task(queue="x" * 99)(lambda: None).step()))) <= 64


def test_flows_do_not_change_and_can_be_used_again() -> None:
    last = cut.step("x")
    assert (
        graph(chain(fetch.step("fox"), last))
        == graph(chain(fetch.step("owl"), last))
        == {"fetch": [], "cut": ["fetch"]}
    )
    assert graph(last) == {"cut": []}


def test_steps_that_wait_for_each_other_are_refused() -> None:
    fox, owl = fetch.step("fox"), cut.step("owl")
    with pytest.raises(
        ValueError, match=r"steps wait for each other in a circle: <Step .*> after <Step .*> after <Step"
    ):
        SentSteps(group(fox.after(owl), owl.after(fox)))


def test_a_long_chain_is_made_at_once() -> None:
    flow: DeclaredFlow[Any] = chain(anything.step(0), *[anything] * 3000)
    assert len(SentSteps(flow).nodes) == 3001


def test_steps_of_other_doors_take_results_and_have_some() -> None:
    film = cut.step("fox")
    report = Step.of(
        NewStep("report", "inference", {"model": "m", "prompt": f"About {film.result.name}. {{{{by hand}}}}"})
    )
    after = Step.of(NewStep("tell", "engine", {"queue": "q", "payload": report.result}, after=[After("cut")]))
    flow = chain(report, lambda answer: fetch.step(answer.message.content), after)
    assert (
        graph(flow)
        == {
            "cut": [],
            "report": ["cut"],
            "fetch": ["report"],
            "tell": ["cut", "fetch", "report"],
        }
        or sent(flow)["tell"]["after"][0] == "cut"
    )
    steps = sent(flow)
    assert steps["report"]["body"] == {"model": "m", "prompt": "About {{cut.name}}. {{by hand}}"}
    assert steps["fetch"]["body"]["payload"] == {"url": "{{report.message.content}}"}
    assert steps["tell"]["body"]["payload"] == "{{report}}"
    with pytest.raises(ValueError, match="no step of this flow is a declared task"):
        Step.of(NewStep("a", "engine", {"queue": "q", "payload": 1})).send()
    with pytest.raises(ValueError, match="tell: its body has a result that may be an object or not"):
        Step.of(NewStep("tell", "engine", {"queue": "q", "payload": maybe.step().result}))


def test_metadata_that_names_other_places_than_the_payload_has_is_refused() -> None:
    for place in (["values"], [0], ["value", 3], 7, ["value", None]):
        task = Task(id="a", payload_json='{"value": 1}', metadata={RESULTS: [place]})
        with pytest.raises(
            PayloadError, match=r"the metadata 'chargehand\.results' names a place that it does not have"
        ):
            payload_of(task)


# what is refused --------------------------------------------------------------------------------------------------------


def test_arguments_beside_a_result_are_checked_when_the_step_is_made() -> None:
    fetched = fetch.step("fox")
    with pytest.raises(PayloadError, match=r"^times: Expected int, got str$"):
        cut.step(fetched.result, times="3")  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match=r"^url: Expected str, got int$"):
        fetch.step(3)  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="Expected object, got int"):
        index.step(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing a required argument: 'text'"):
        cut.step(times=3)  # type: ignore[call-arg]
    with pytest.raises(PayloadError, match="the result of a step in it, which only another step can take"):
        fetch.send(fetched.result)
    with pytest.raises(ValueError, match="idempotency_key: a step has none"):
        fetch.options(idempotency_key="k").step("fox")


def test_a_result_that_is_not_known_yet_cannot_be_looked_at() -> None:
    film = cut.step("fox").result
    looks: list[Callable[[], object]] = [
        lambda: bool(film),
        lambda: film == Film("fox"),
        lambda: [*film.cut_at],
    ]
    for look in looks:
        with pytest.raises(
            TypeError, match="of <Step cut>> is not known before the flow runs; only a step can take it"
        ):
            look()
    with pytest.raises(AttributeError, match="Film has no nome"):
        _ = film.nome  # type: ignore[attr-defined]
    for key in ("a b", "a.b", "", -1):
        with pytest.raises(ValueError, match="cannot stand in a reference"):
            anything.step(1).result[key]


def test_a_text_that_refers_to_a_step_that_is_gone_is_refused() -> None:
    text = f"{fetch.step('fox').result}"
    with pytest.raises(ValueError, match="a text refers to a step that is gone"):
        cut.step(text)


def test_options_and_middleware_hold_for_each_step() -> None:
    class Users(Middleware):
        def before_send(self, new: NewTask) -> NewTask:
            return msgspec.structs.replace(new, metadata={"user": new.command})

    with_users = App(middleware=[Users()])
    first = with_users.task(queue="first", retry=3, priority=4)(lambda value=1: value)
    last = with_users.task(queue="last")(lambda value: value)
    steps = sent(chain(first.options(delay_seconds=3, limit_key="acme").step(), last))
    assert steps["first"]["body"] == {
        "command": "first",
        "payload": {},
        "priority": 4,
        "maxAttempts": 3,
        "delaySeconds": 3,
        "limitKey": "acme",
        "metadata": {"user": "first"},
    }
    assert steps["last"]["body"]["metadata"] == {"user": "last", RESULTS: [["value"]]}


# eager ------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eagerly")
def test_eagerly_a_flow_runs_where_it_is_sent() -> None:
    flow = chain(fetch.step("{{x}}"), lambda text: group(cut.step(text, 2), cut.step(f"{text}!")), show)
    assert flow.send(name="films").result() == {"<{{x}}>": 2, "<{{x}}>!": 1}
    assert group(measure.step(), index.step(Film("fox"))).send().result() == [Measured(0.5), 3]


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("value", [None, 3, [1], {"a": 1}, {}, {"value": 3}, {"value": {"value": None}}, "{{x}}"])
def test_eagerly_results_of_any_type_are_passed_on_as_they_were(value: Any) -> None:
    assert chain(anything.step(value), anything, anything).send().result() == value


@pytest.mark.usefixtures("eagerly")
async def test_eagerly_a_flow_is_sent_by_coroutines_too() -> None:
    flow: SentFlow[Film] = await chain(fetch.step("fox"), cut).asend()
    assert await flow.aresult() == Film("<fox>", [Point(1, 1)])


@pytest.mark.usefixtures("eagerly")
def test_eagerly_a_failure_is_handled_as_the_server_does() -> None:
    broken = fetch.step("broken")
    flow = chain(broken, cut)
    failed = flow.send()
    with pytest.raises(JobFailed, match="step 'fetch' failed: no such film") as error:
        failed.result()
    assert error.value.job.state == "failed"
    with pytest.raises(Conflict, match="the flow ran eagerly, and has ended"):
        failed.cancel()
    assert ran == ["fetch broken"]
    mended = flow.also(cut.step(broken.error)).send()
    with pytest.raises(JobFailed, match=r"the job failed: skipped: step 'fetch' failed"):
        mended.result()
    assert cut.step(broken.error).send().result().name == "no such film"
    either = measure.step().after(broken, fetch.step("fox"), need="any")
    assert either.also(measure.step().after(broken, on="failed")).send().result() == Measured(0.5)
    with pytest.raises(JobFailed, match="skipped: step 'cut' was skipped"):
        measure.step().after(cut.step(broken.result), need="any").also(cut.step(broken.error)).send().result()
    assert measure.step().after(broken, on="finished").send().result() == Measured(0.5)
    with pytest.raises(JobFailed, match="the result of step 'show' has no fox"):
        anything.step(show.step([]).result["fox"]).send().result()


@pytest.mark.usefixtures("eagerly")
def test_eagerly_bugs_are_raised_and_other_doors_refused() -> None:
    other = App()

    @other.task
    def bug(again: bool) -> None:
        raise Retry(0, "not yet") if again else ZeroDivisionError

    with other.eager():
        with pytest.raises(ZeroDivisionError):
            bug.step(again=False).send()
        with pytest.raises(JobFailed, match="step 'bug' failed: not yet"):
            bug.step(again=True).send().result()
    with pytest.raises(RuntimeError, match="eagerly only declared tasks run, and report is a job of inference"):
        chain(Step.of(NewStep("report", "inference", {"model": "m", "prompt": "x"})), anything).send()
