"""What a type checker says about programs that declare tasks."""

from pathlib import Path

from mypy import api

PROGRAM = """
from typing import assert_type
from chargehand.client import App, Every, Fail, Retries, SentTask

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

def right() -> None:
    assert_type(greet("fox"), str)
    assert_type(greet.send("fox", times=2), SentTask[str])
    assert_type(render.send(film="fox").result(), list[int])
    assert_type(greet.options(delay_seconds=3).send_many([greet.new_task("a")]), list[SentTask[str]])
    assert_type(greet.sent("id").result(), str)
    assert_type(index.send("a").result(), int)
    assert_type(insert.send("a").result(), None)
    greet.schedule("nightly", "@daily", name="fox")

async def also_right() -> None:
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
"""


def test_wrong_arguments_are_refused_and_results_are_typed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    said, problems, _ = api.run([*options, str(tmp_path / "program.py")])
    lines = PROGRAM.splitlines()
    refused = {int(line.split("program.py:")[1].split(":")[0]) for line in said.splitlines() if ": error: " in line}
    assert not problems
    assert sorted(refused) == [*range(lines.index("def wrong() -> None:") + 2, len(lines) + 1)], said
