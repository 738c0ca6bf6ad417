"""The agent's validation of a recipe accepts and refuses the same as the controller's, which uses another library."""

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from chargehand.doors.provisioning.media.contents import recipe_files
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.recipe.schema import SCHEMA
from provision.schema import Schema, UnknownSchema
from tests.provisioning.recipes import EXAMPLES

_ours = Schema(SCHEMA)
_theirs = jsonschema_rs.Draft202012Validator(SCHEMA, offline=True)

PATHS = sorted(EXAMPLES.glob("*.json"))
ODD: list[Any] = [
    None, True, False, 0, 1, 1.0, 1.5, -1, "", "x", "100%", "1G", "1G\n", "/dev/sda", "/dev/sda\n",
    "ef00", [], [{}], {}, {"a": 1}, {"file": "user-data"}, "é" * 300, "a" * 5000,
]  # fmt: skip


def problems(schema: dict[str, Any], document: Any) -> list[str]:
    return Schema(schema).problems(document)


def on_medium(path: Any) -> dict[str, Any]:
    """Return the recipe as it is on a task medium."""
    document: dict[str, Any] = json.loads(recipe_files(Recipe.of(json.loads(path.read_bytes())), "job")["recipe.json"])
    return document


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_example_is_valid_as_submitted_and_as_on_the_medium(path: Any) -> None:
    assert _ours.problems(json.loads(path.read_bytes())) == []
    assert _ours.problems(on_medium(path)) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_both_evaluators_agree_on_every_single_change_of_an_example(path: Any) -> None:
    document = on_medium(path)
    wrong = 0
    for changed in _changes(document):
        ours, theirs = _ours.problems(changed), _theirs.is_valid(changed)
        assert (ours == []) == theirs, (ours, changed)
        wrong += not theirs
    assert wrong > 100


def test_both_evaluators_agree_on_many_changes_at_once() -> None:
    dice = random.Random(7)
    documents = [on_medium(path) for path in PATHS]
    names = list(SCHEMA["properties"])
    wrong = 0
    for _ in range(1500):
        document = json.loads(json.dumps(dice.choice(documents)))
        for _ in range(dice.randint(1, 3)):
            name = dice.choice(names)
            document[name] = dice.choice([*ODD, *[other.get(name, "x") for other in documents]])
        ours, theirs = _ours.problems(document), _theirs.is_valid(document)
        assert (ours == []) == theirs, (ours, document)
        wrong += not theirs
    assert 100 < wrong < 1500


def test_a_line_break_at_the_end_is_refused() -> None:
    assert problems({"pattern": "^[a-z$]+$"}, "ab$\n") == ["/: does not have the form that is allowed"]
    assert problems({"pattern": "^[a-z$]+$"}, "ab$") == []


def test_true_is_not_an_integer_and_one_point_zero_is() -> None:
    assert problems({"const": 1}, 1.0) == []
    assert problems({"const": 1}, True) != []
    assert problems({"enum": [False]}, 0) != []
    assert problems({"type": "integer"}, True) != []


def test_a_problem_never_repeats_a_value() -> None:
    found = _ours.problems({"task_target": "install-linux.target", "user_data": 5, "hostname": "-swordfish"})
    assert len(found) > 3
    assert "swordfish" not in str(found)
    assert "/oci_url: is missing" in found


def test_a_problem_names_its_place_and_what_is_allowed() -> None:
    layout = [{"size": "1G", "type_guid": "8300", "colour": "red"}, "x"]
    recipe = {"task_target": "x", "wipe": 1, "timeout_minutes": 0, "env": {"PATH": "/"}, "partition_layout": layout}
    found = _ours.problems(recipe)
    assert "/task_target: must be one of install-linux.target, install-windows.target, " in found[0]
    for line in (
        "/wipe: must be boolean",
        "/partition_layout/1: must be object",
        "/partition_layout/0/colour: is not allowed here",
    ):
        assert line in found
    assert any(line.startswith("/timeout_minutes: must be at least ") for line in found)
    assert "/env/PATH: does not have the form that is allowed" in found
    assert problems({"type": ["string", "null"]}, 5) == ["/: must be string, null"]


def test_an_invalid_or_remote_schema_is_refused() -> None:
    schemas: list[Any] = [
        {"oneOf": []},
        {"type": "decimal"},
        {"$ref": "https://elsewhere.example/"},
        {"$ref": "#/$defs/nowhere"},
    ]
    for schema in schemas:
        with pytest.raises(UnknownSchema):
            problems(schema, {})


def _changes(value: Any) -> Any:
    """Yield the document with one member replaced, removed or added, for each member and each odd value."""
    yield from ODD
    if isinstance(value, dict):
        for name in value:
            yield {key: each for key, each in value.items() if key != name}
            for changed in _changes(value[name]):
                yield {**value, name: changed}
        for odd in ODD:
            yield {**value, "another": odd}
    elif isinstance(value, list):
        for index in range(len(value)):
            for changed in _changes(value[index]):
                yield [*value[:index], changed, *value[index + 1 :]]
        yield value * 70
