"""Validate a recipe by its schema. Each error says where it is, which rule is broken and what is allowed.

What is allowed comes from the descriptions in the schema, so messages, schema and documentation always agree.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationError
from jsonschema_rs import ValidationErrorKind as Kind

from chargehand.doors.provisioning.recipe.text import LONG, pointer, shown
from chargehand.doors.provisioning.refusals import RefusalDetail

SCHEMA_BYTES = files("chargehand.doors.provisioning.recipe").joinpath("recipe.schema.json").read_bytes()
SCHEMA: dict[str, Any] = msgspec.json.decode(SCHEMA_BYTES)
SCHEMA_ID: str = SCHEMA["$id"]
FIELDS: dict[str, Any] = SCHEMA["properties"]

# `mask` keeps values out of the validator's own messages, although we do not use them. With RegexOptions patterns take linear time.
_validator = jsonschema_rs.Draft202012Validator(
    SCHEMA, mask="…", pattern_options=jsonschema_rs.RegexOptions(), offline=True
)

_CODES: dict[type[Kind], str] = {
    Kind.Type: "type",
    Kind.Enum: "enum",
    Kind.Constant: "enum",
    Kind.Pattern: "pattern",
    Kind.MaxLength: "too_large",
    Kind.MaxItems: "too_large",
    Kind.MaxProperties: "too_large",
    Kind.MinLength: "too_small",
    Kind.MinItems: "too_small",
    Kind.MinProperties: "too_small",
    Kind.Minimum: "out_of_range",
    Kind.Maximum: "out_of_range",
}

LONGEST_NAME = 100  # characters compared with known names: a longer name is not a misspelling, and comparing takes time

PAYLOADS = ("user_data", "meta_data", "network_config", "unattend_xml", "ks_cfg")
# The patterns of the schema, for texts that are too long to be copied for the validator.
_TEXT = re.compile(SCHEMA["$defs"]["payload"]["pattern"].replace("]*$", "]*+"))
_BASE64 = re.compile("[A-Za-z0-9+/]*+={0,2}")

# Examples for fields whose description has none.
_EXAMPLES = {"/target_disk": ", such as /dev/sda"}

# Fields whose values a message may repeat: nobody puts a secret there, not even by mistake.
_SHOWN = {"task_target", "schema_version", "image_format", "on_success", "on_failure", "partition_layout", "wipe"}
_SHOWN |= {"wim_index", "timeout_minutes", "hostname", "installer_iso", "target_disk"}


def problems(document: Any) -> Iterator[RefusalDetail]:
    """Yield what is wrong with the document; the same rule at most once for each place."""
    short = _shortened(document)
    if not _validator.is_valid(short):
        document = short
    elif all(_fits(name, document[name]) for name in PAYLOADS if name in document):
        return
    said = set()
    meant = _meant(document)
    if meant is not document:
        # For a misspelt target, report also what breaks the rules of the target that was probably meant.
        for error in _validator.iter_errors(document):
            if error.instance_path == ["task_target"]:
                yield from _details(error, document)
    for error in _validator.iter_errors(meant):
        for detail in _details(error, meant):
            key = (detail.path, detail.code, detail.message if not detail.path else "")
            if key not in said:
                said.add(key)
                yield detail


def _fits(name: str, payload: str | dict[str, str]) -> bool:
    """Check the whole text of a long payload; the validator has seen only its beginning."""
    for form, text in payload.items() if isinstance(payload, dict) else (("content", payload),):
        if len(text) > LONG:
            too_long = len(text) > FIELDS[name]["properties"][form].get("maxLength", LONG)
            if too_long or not (
                _BASE64.fullmatch(text) and len(text) % 4 == 0 if form == "base64" else _TEXT.fullmatch(text)
            ):
                return False
    return True


def _shortened(value: Any) -> Any:
    """Return the value with long texts cut: the validator copies everything that it checks, and again for each error."""
    if isinstance(value, str):
        return value[: LONG + 4]  # a multiple of 4, so that base64 stays valid
    if isinstance(value, dict):
        return {name: _shortened(member) for name, member in value.items()}
    return [_shortened(member) for member in value] if isinstance(value, list) else value


def _meant(document: Any) -> Any:
    """Return the document with a misspelt target corrected."""
    if not isinstance(document, dict) or not isinstance(given := document.get("task_target"), str):
        return document
    near = _nearest(given, FIELDS["task_target"]["enum"])
    return document if near in (given, "") else {**document, "task_target": near}


def _details(error: ValidationError, document: Any) -> Iterator[RefusalDetail]:
    at = pointer(*error.instance_path)
    allowed = _description(error.evaluation_path, error.instance_path)
    match error.kind:
        case Kind.Required(property=name):
            wanted = _description([*error.schema_path[:-1], "properties", name], [*error.instance_path, name])
            options = _options(error.schema_path, name)
            yield RefusalDetail(
                at + pointer(name), "required", f"is missing{_who_needs(error, document)}{wanted}{options}"
            )
        case Kind.AdditionalProperties(unexpected=names):
            fields = _fields(error.schema_path)
            for name in names:
                yield RefusalDetail(at + pointer(name), "unknown_field", _unknown(name, fields))
        case Kind.PropertyNames(error=cause):
            name = str(cause.instance)
            yield RefusalDetail(at + pointer(name), "pattern", f"the name {shown(name)} is not allowed{allowed}")
        case Kind.FalseSchema():
            yield RefusalDetail(at, "conflict", _not_allowed(error.schema_path, document))
        case kind:
            yield RefusalDetail(at, _CODES.get(type(kind), "invalid"), f"{_wrong(error)}{allowed}{_hint(error, at)}")


def _wrong(error: ValidationError) -> str:
    where = error.instance_path
    given = f", not {shown(error.instance)}" if where and where[0] in _SHOWN else ""
    match error.kind:
        case Kind.Type(types=types):
            return f"must be {' or '.join(_article(name) for name in types)}, not {_kind_of(error.instance)}"
        case Kind.Enum(options=options):
            return f"must be {_alternatives(options)}{given}"
        case Kind.Constant(expected_value=value):
            return f"must be {shown(value)}{given}"
        case Kind.MaxLength(limit=limit):
            return f"is longer than {limit} characters"
        case Kind.MaxItems(limit=limit):
            return f"has more than {limit} entries"
        case Kind.MaxProperties(limit=limit):
            return f"has more than {limit} members"
        case Kind.MinLength(limit=limit):
            return f"is shorter than {limit} characters"
        case Kind.MinItems(limit=limit) | Kind.MinProperties(limit=limit):
            return f"is empty; at least {limit} is needed"
        case Kind.Minimum(limit=limit):
            return f"is less than {limit}{given}"
        case Kind.Maximum(limit=limit):
            return f"is more than {limit}{given}"
        case _:
            return f"{shown(error.instance)} is not allowed" if given else "does not have the form that is allowed"


def _hint(error: ValidationError, at: str) -> str:
    """Return an example or a suggestion, to put at the end of the message."""
    match error.kind:
        case Kind.Pattern():
            return _EXAMPLES.get(at, "")
        case Kind.Enum(options=options) if isinstance(error.instance, str) and at.strip("/") in _SHOWN:
            near = _nearest(error.instance, [str(option) for option in options])
            return f"; did you mean {near}?" if near else ""
        case _:
            return ""


def _description(path: Sequence[str | int], instance_path: Sequence[str | int]) -> str:
    """Return the innermost description in the schema on the path to the broken rule."""
    node, found = SCHEMA, ""
    for segment in path:
        if segment == "$ref":
            node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]
        else:
            step = node.get(str(segment)) if isinstance(node, dict) else node[int(segment)]
            if not isinstance(step, dict | list):
                break
            node = step  # type: ignore[assignment]
        if isinstance(node, dict) and isinstance(node.get("description"), str):
            found = node["description"]
    if not found and instance_path:
        found = FIELDS.get(str(instance_path[0]), {}).get("description", "")
    return f": {found}" if found else ""


def _who_needs(error: ValidationError, document: Any) -> str:
    if error.schema_path[0] != "allOf":
        return ""
    return f", and {document['task_target']} needs it"


def _options(path: Sequence[str | int], name: str) -> str:
    values = FIELDS.get(name, {}).get("enum") if path[0] != "$defs" else None
    return f", {_alternatives(values)}" if values else ""


def _not_allowed(path: Sequence[str | int], document: Any) -> str:
    if list(path).count("then") > 1:
        return "is not allowed with image_format raw-disk, because the image has its own partitions: leave it out"
    return f"is not allowed for {document['task_target']}: leave it out"


def _fields(path: Sequence[str | int]) -> list[str]:
    node: Any = SCHEMA
    for segment in path[:-1]:
        node = node[segment]
    return [name for name in node["properties"] if not name.startswith("$") and name != "file"]


def _unknown(name: str, fields: list[str]) -> str:
    near = _nearest(name.replace(".", "_").replace("-", "_"), fields)
    return f"{shown(name)} is not a field here; " + (
        f"did you mean {near}?" if near else f"allowed are {', '.join(fields)}"
    )


def _nearest(name: str, names: Sequence[str]) -> str:
    """Return the most similar of the names, or "" if none is similar."""
    return next(iter(difflib.get_close_matches(name[:LONGEST_NAME], names, n=1, cutoff=0.75)), "")


def _alternatives(options: Sequence[Any]) -> str:
    return shown(options[0]) if len(options) == 1 else f"one of {', '.join(str(option) for option in options)}"


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aio" else f"a {name}"


def _kind_of(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", dict: "an object", list: "an array"}
    return names.get(type(value), "a number")
