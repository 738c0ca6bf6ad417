"""What a type checker says about programs that declare tasks."""

from pathlib import Path

from mypy import api

PROGRAM = """
from typing import assert_type
from chargehand.client import App, DeclaredFlow, Every, Fail, NewStep, Retries, SentFlow, SentTask, Step, chain, group, join

app = App()

@app.task
def greet(name: str, times: int = 1) -> str:
    return name * times

@app.task(queue="render_video", retry=Retries(attempts=3, never=(KeyError,)), timeout=60, max_running=4)
async def render(film: str) -> list[int]:
    return [1]

@app.task(every=Every("30 2 * * *", "Europe/Berlin"))
def clean() -> None: ...

@app.batch(100)
def index(rows: list[str]) -> list[int | Exception]:
    return [len(row) if row else Fail("empty") for row in rows]

@app.batch(100)
async def insert(rows: list[str]) -> None: ...

@app.task
def total(numbers: list[list[int]], name: str = "") -> dict[str, int]:
    return {name: 0}

def right() -> None:
    assert_type(greet("fox"), str)
    assert_type(greet.send("fox", times=2), SentTask[str])
    assert_type(render.send(film="fox").result(), list[int])
    assert_type(greet.options(delay_seconds=3).send_many([greet.new_task("a")]), list[SentTask[str]])
    assert_type(greet.sent("id").result(), str)
    assert_type(index.send("a").result(), int)
    assert_type(insert.send("a").result(), None)
    greet.schedule("nightly", "@daily", name="fox")

def right_flows() -> None:
    greeting = greet.step("fox", times=2)
    assert_type(greeting, Step[str])
    assert_type(greeting.result, str)
    assert_type(chain(greeting, render), DeclaredFlow[list[int]])
    assert_type(chain(greeting, render, clean.step()).send(name="x"), SentFlow[None])
    assert_type(chain(greeting, lambda name: greet.step(name, times=3), index.step), DeclaredFlow[int])
    assert_type(chain(greeting, lambda film: group(render.step(film), render.step("x")), total).send().result(), dict[str, int])
    assert_type(join([render.step("a"), render.step("b")], lambda all: total.step(all, name="x")), DeclaredFlow[dict[str, int]])
    assert_type(join((render.step(name) for name in "abc"), total), DeclaredFlow[dict[str, int]])
    assert_type(group(greeting, greet.step(greeting.error)).result, list[str])
    report = Step.of(NewStep("report", "inference", {"model": "m", "prompt": f"about {greeting.result}"}))
    chain(report, lambda answer: greet.step(answer.message.content))
    assert_type(render.step("a").after(greeting, report, on="failed", need="any").named("b").result[0], int)
    chain(greeting, render, group(clean.step()), clean.step(), greet.step("a"), greet, render)

async def also_right() -> None:
    assert_type(await (await chain(greet.step("fox"), render).asend()).aresult(timeout=3), list[int])
    assert_type(await render("fox"), list[int])
    assert_type(await render.asend("fox"), SentTask[list[int]])
    assert_type(await (await greet.asend("fox")).aresult(timeout=3), str)

def wrong() -> None:
    greet.send(3)
    greet.send(nme="fox")
    greet.send()
    greet.new_task("fox", times="2")
    greet.options(prio=3)
    greet.schedule("nightly", "@daily")
    index.send(3)
    greet("fox", 1, 2)
    greet.send("fox").result().real
    greet.step(3)
    greet.step(greet.step("fox"))
    render.step(render.step("fox").result)
    chain(greet.step("fox"), total)
    chain(greet.step("fox"), lambda name: greet.step(name, times="3"))
    chain(render.step("fox"), lambda numbers: greet.step(numbers))
    chain(greet, render)
    join([greet.step("fox")], total)
    group(greet.step("fox"), render)
    greet.step("fox").result.nope
    greet.step("fox").after(render.step("x"), on="ended")
    greet.step("fox").send(key="k")
"""


def test_wrong_arguments_are_refused_and_results_are_typed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    said, problems, _ = api.run([*options, str(tmp_path / "program.py")])
    lines = PROGRAM.splitlines()
    refused = {int(line.split("program.py:")[1].split(":")[0]) for line in said.splitlines() if ": error: " in line}
    assert not problems
    assert sorted(refused) == [*range(lines.index("def wrong() -> None:") + 2, len(lines) + 1)], said
