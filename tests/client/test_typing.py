"""What a type checker says about programs that use the client."""

from pathlib import Path

from mypy import api

RIGHT = """
from typing import Any
from chargehand.client import Held, Worker

worker = Worker()

@worker.task("a")
async def with_type(task: Held) -> dict[str, int]:
    return {"n": task.attempt}

@worker.task("b", lease_seconds=5)
def in_a_thread(task: Held) -> None: ...

@worker.task("c")
async def of_anything(task: Any, copies: int = 1) -> object: ...

class Renders:
    def __call__(self, task: Held) -> bytes:
        return b""

worker.task("d")(Renders())
worker.task("e")(lambda task: task.payload)

async def calls_it(held: Held) -> dict[str, int]:
    return await with_type(held)
"""

WRONG = """
from typing import Any
from chargehand.client import Held, Worker

worker = Worker()

@worker.task("a")
async def without_task() -> None: ...

@worker.task("b")
def with_more(task: Held, name: str) -> None: ...

@worker.task("c")
async def of_the_payload(payload: dict[str, Any]) -> None: ...

@worker.task("d")
def by_keyword(*, task: Held) -> None: ...

worker.task("e")("no function")
"""


def test_a_function_that_cannot_take_a_task_is_refused_by_the_type_checker(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    said, problems, _ = api.run([*options, str(tmp_path / "right.py"), str(tmp_path / "wrong.py")])
    refused = [line for line in said.splitlines() if ": error: " in line]
    lines = WRONG.splitlines()
    assert not problems
    assert [each for each in refused if "right.py" in each] == []
    named = [lines[int(line.split("wrong.py:")[1].split(":")[0]) - 1] for line in refused]
    assert named == [line for line in lines if line.startswith(("@worker.task", "worker.task"))], said
