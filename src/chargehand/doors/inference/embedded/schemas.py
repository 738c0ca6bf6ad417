"""JSON Schemas as Ollama's users know them to work, for an engine that takes them at their word.

Ollama's grammars allow an object no other properties than those it lists, and little white space. The ones in our build of
llama.cpp (llguidance) allow both without end, and a small model takes them up on it. They also pass over a schema that makes no
sense, where Ollama refuses.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from chargehand.doors.inference.embedded.backend import Failure

TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def tightened(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**_tightened(schema), "x-guidance": SPACING}


def _tightened(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    check(schema)
    tight = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), Mapping):
            tight[key] = {name: _tightened(part) for name, part in schema[key].items()}
    for key in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            tight[key] = [_tightened(part) for part in schema[key]]
    if "items" in schema:
        tight["items"] = _tightened(schema["items"])
    # The parts of an `allOf` are left as they are: each would forbid what the others list.
    if "properties" in schema and "allOf" not in schema:
        tight.setdefault("additionalProperties", False)
    return tight


def check(schema: Mapping[str, Any]) -> None:
    types = schema.get("type", [])
    for name in types if isinstance(types, list) else [types]:
        if name not in TYPES:
            given = json.dumps(schema, ensure_ascii=False)
            raise Failure(400, f"JSON schema conversion failed:\nUnrecognized schema: {given}")
