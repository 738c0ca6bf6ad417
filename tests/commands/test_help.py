"""Each command's help has a sentence and examples, which are valid."""

import shlex
from collections.abc import Iterator
from typing import Any

import typer

from chargehand.cli import app
from chargehand.commands.doors import TABLE
from chargehand.commands.exit_codes import MEANINGS, OF_OUTCOMES
from chargehand.commands.jobs import KINDS

ROOT = typer.main.get_group(app)


def commands(group: Any = ROOT, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def examples(command: Any) -> list[str]:
    parts = [" ".join(part.split()) for part in command.help.split("\n\n")]
    return [part.removeprefix("Example: ") for part in parts if part.startswith("Example: ")]


def test_every_command_has_an_example_and_json_output() -> None:
    assert {name for name, command in commands() if not examples(command)} == set()
    options = {name: {param.name for param in command.params} for name, command in commands()}
    assert {name for name, named in options.items() if "json" not in named} == set()
    assert {name for name, command in commands() if not all(param.help for param in command.params)} == set()


def test_every_example_is_valid() -> None:
    for name, command in commands():
        for example in examples(command):
            words = shlex.split(example.replace("source <(", "").rstrip(")"))
            start = words.index("chargehand") + 1
            end = next((at for at, word in enumerate(words) if word in (">", "|") and at >= start), len(words))
            path = name.split()
            assert words[start : start + len(path)] == path, example
            command.make_context(name, words[start + len(path) : end])


def test_jobs_list_takes_the_kind_of_every_door() -> None:
    assert tuple(TABLE) == KINDS


def test_every_outcome_has_a_code_that_is_explained() -> None:
    assert set(OF_OUTCOMES.values()) < set(MEANINGS)
