"""Validate a recipe with python3-jsonschema; the errors never repeat a value."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import Draft202012Validator, extend

_RULES = {
    None: "is not allowed here",
    "additionalProperties": "is not allowed here",
    "required": "is missing",
    "type": "must be {}",
    "enum": "must be one of {}",
    "const": "is not the one value that is allowed",
    "pattern": "does not have the form that is allowed",
    "minLength": "must be at least {} characters",
    "maxLength": "must be at most {} characters",
    "minItems": "must be at least {} entries",
    "maxItems": "must be at most {} entries",
    "minProperties": "must be at least {} members",
    "maxProperties": "must be at most {} members",
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
}


class UnknownSchema(Exception):
    """The schema cannot be evaluated here."""


class Schema:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise UnknownSchema(error.message) from None
        self._validator = _Validator(schema)

    def problems(self, document: Any) -> list[str]:
        """Return the errors as JSON pointers with the violated rule; never with a value, which may be a secret."""
        try:
            found = [line for error in self._validator.iter_errors(document) for line in _lines(error)]
        except Exception as error:  # an unresolvable reference: each version has its own class for it
            raise UnknownSchema(type(error).__name__) from None
        return list(dict.fromkeys(found))


def _lines(error: ValidationError) -> Iterator[str]:
    rule, wanted = error.validator, error.validator_value
    at = "".join(f"/{each}" for each in error.absolute_path)
    text = _RULES.get(rule, f"breaks the rule {rule}").format(
        ", ".join(map(str, wanted)) if isinstance(wanted, list) else wanted
    )
    names = [""]
    if rule == "required":  # its errors name the member only in their text
        names = [f"/{name}" for name in wanted if name not in error.instance]
    elif rule == "additionalProperties":
        names = [f"/{_shown(name)}" for name in error.instance if name not in error.schema.get("properties", {})]
    elif "propertyNames" in error.absolute_schema_path:
        names = [f"/{_shown(error.instance)}"]
    yield from (f"{at}{name}: {text}" if at or name else f"/: {text}" for name in names)


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:64]


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _compiled(pattern).search(value):
        yield ValidationError("")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which `$` matches only at the end; Python's also matches before a final line break."""
    pieces = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|[^\\\[]", pattern, re.DOTALL)
    return re.compile("".join(r"\Z" if piece == "$" else piece for piece in pieces), re.ASCII)


def _reference(validator: Any, target: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not target.startswith("#"):  # jsonschema would fetch it
        raise UnknownSchema("a reference leads out of the schema")
    yield from Draft202012Validator.VALIDATORS["$ref"](validator, target, value, schema)


_Validator = extend(Draft202012Validator, {"pattern": _pattern, "$ref": _reference})
