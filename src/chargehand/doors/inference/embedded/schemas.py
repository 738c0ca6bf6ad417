"""Adapt JSON Schemas so that our llama.cpp treats them as Ollama does.

Ollama's grammars allow no other properties than the listed ones, and little white space. Our build of llama.cpp (llguidance)
allows both without limit, and small models then produce them endlessly. It also ignores invalid schemas, which Ollama refuses.
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
    # The parts of an `allOf` stay open: each would forbid the properties of the others.
    if "properties" in schema and "allOf" not in schema:
        tight.setdefault("additionalProperties", False)
    return tight


def check(schema: Mapping[str, Any]) -> None:
    types = schema.get("type", [])
    for name in types if isinstance(types, list) else [types]:
        if name not in TYPES:
            given = json.dumps(schema, ensure_ascii=False)
            raise Failure(400, f"JSON schema conversion failed:\nUnrecognized schema: {given}")
