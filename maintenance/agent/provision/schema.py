"""As much of JSON Schema as the schema of recipes uses. A word that is not known here is an error, not a rule that is left out."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_SILENT = {"$schema", "$id", "$defs", "title", "description", "default"}
_TYPES = {"string": str, "object": dict, "array": list, "boolean": bool, "null": type(None)}


class UnknownSchema(Exception):
    """The schema says something that this evaluator does not know."""


def problems(schema: Any, document: Any) -> list[str]:
    """Where the document does not fit, as JSON pointers with the rule; never with a value, which may be a secret."""
    return [f"{at or '/'}: {rule}" for at, rule in _check(schema, schema, document, "")]


def _check(root: Any, schema: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(schema, bool):
        if not schema:
            yield at, "is not allowed here"
        return
    if not isinstance(schema, dict):
        raise UnknownSchema(f"a schema is {type(schema).__name__}")
    for word, rule in schema.items():
        if word in _SILENT or word in ("then", "else"):
            continue
        check = _RULES.get(word)
        if check is None:
            raise UnknownSchema(f"the keyword {word!r} is not known")
        yield from check(root, schema, rule, value, at)


def _fits(root: Any, schema: Any, value: Any) -> bool:
    return next(_check(root, schema, value, ""), None) is None


def _ref(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    node = root
    if not str(rule).startswith("#/"):
        raise UnknownSchema("only references within the schema are known")
    for segment in str(rule)[2:].split("/"):
        node = node[segment]
    yield from _check(root, node, value, at)


def _type(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    names = rule if isinstance(rule, list) else [rule]
    if not any(_is(name, value) for name in names):
        yield at, f"must be {' or '.join(names)}"


def _is(name: str, value: Any) -> bool:
    if name in ("integer", "number"):
        whole = name == "number" or (isinstance(value, int | float) and float(value).is_integer())
        return isinstance(value, int | float) and not isinstance(value, bool) and whole
    if name not in _TYPES:
        raise UnknownSchema(f"the type {name!r} is not known")
    return isinstance(value, _TYPES[name])


def _const(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    if not _equal(rule, value):
        yield at, "is not the one value that is allowed"


def _enum(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    if not any(_equal(each, value) for each in rule):
        yield at, f"must be one of {', '.join(map(str, rule))}"


def _equal(one: Any, other: Any) -> bool:
    """To JSON true is not 1, though 1.0 is."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _pattern(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str) and not _compiled(rule).search(value):
        yield at, "does not have the form that is allowed"


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    """`$` is the end of the text alone; Python's own would let a line break follow."""
    pieces = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|[^\\\[]", pattern, re.DOTALL)
    return re.compile("".join(r"\Z" if piece == "$" else piece for piece in pieces), re.ASCII)


def _limit(measure: str, below: bool) -> Any:
    kinds = {"characters": str, "entries": list, "members": dict, "": (int, float)}

    def check(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
        if not isinstance(value, kinds[measure]) or isinstance(value, bool):  # type: ignore[arg-type]
            return
        size = value if measure == "" else len(value)
        if size > rule if below else size < rule:
            yield at, f"must be at {'most' if below else 'least'} {rule} {measure}".rstrip()

    return check


def _items(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    for index, each in enumerate(value if isinstance(value, list) else ()):
        yield from _check(root, rule, each, f"{at}/{index}")


def _required(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from ((f"{at}/{name}", "is missing") for name in rule if name not in value)


def _properties(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    for name, each in rule.items() if isinstance(value, dict) else ():
        if name in value:
            yield from _check(root, each, value[name], f"{at}/{name}")


def _additional(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    for name in value if isinstance(value, dict) else ():
        if name not in schema.get("properties", {}):
            yield from _check(root, rule, value[name], f"{at}/{_shown(name)}")


def _names(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    for name in value if isinstance(value, dict) else ():
        yield from _check(root, rule, name, f"{at}/{_shown(name)}")


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:64]


def _all(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    for each in rule:
        yield from _check(root, each, value, at)


def _if(root: Any, schema: Any, rule: Any, value: Any, at: str) -> Iterator[tuple[str, str]]:
    yield from _check(root, schema.get("then" if _fits(root, rule, value) else "else", True), value, at)


_RULES: dict[str, Any] = {
    "$ref": _ref,
    "type": _type,
    "const": _const,
    "enum": _enum,
    "pattern": _pattern,
    "minLength": _limit("characters", False),
    "maxLength": _limit("characters", True),
    "minItems": _limit("entries", False),
    "maxItems": _limit("entries", True),
    "minProperties": _limit("members", False),
    "maxProperties": _limit("members", True),
    "minimum": _limit("", False),
    "maximum": _limit("", True),
    "items": _items,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "allOf": _all,
    "if": _if,
}
