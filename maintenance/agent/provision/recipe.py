"""Read the task's recipe, validate it with the schema on the medium, and write it where the steps and their units read it."""

import json
from collections.abc import Mapping
from typing import Any

from provision import VERSION
from provision.errors import Exit, Trouble
from provision.places import Places
from provision.schema import Schema, UnknownSchema

PAYLOADS = {
    "user_data": "user-data",
    "meta_data": "meta-data",
    "network_config": "network-config",
    "unattend_xml": "unattend.xml",
    "ks_cfg": "ks.cfg",
}
TARGETS = ("install-linux.target", "install-windows.target", "supermicro-update.target")
MAX_SHOWN = 10

Recipe = Mapping[str, Any]


def read_schema(files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        schema = json.loads(files["recipe.schema.json"])
        if not isinstance(schema, dict) or not schema.get("$id"):
            raise ValueError("no $id")
    except (KeyError, ValueError):
        raise Trouble("the task medium has no recipe.schema.json that can be read", Exit.NO_SCHEMA) from None
    return schema


def read_recipe(files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        recipe = json.loads(files["recipe.json"], parse_constant=_no_number)
    except KeyError:
        raise Trouble("the task medium has no recipe.json", Exit.RECIPE_UNREADABLE) from None
    except (ValueError, RecursionError) as error:
        raise Trouble(f"recipe.json is not JSON ({type(error).__name__})", Exit.RECIPE_UNREADABLE) from None
    if not isinstance(recipe, dict):
        raise Trouble("recipe.json is not an object", Exit.RECIPE_UNREADABLE)
    return recipe


def check(schema: Mapping[str, Any], recipe: Recipe, files: Mapping[str, bytes]) -> None:
    try:
        found = Schema(schema).problems(recipe)
    except UnknownSchema as error:
        raise Trouble(f"the schema is not one that this image understands: {error}", Exit.NO_SCHEMA) from None
    target = recipe.get("task_target")
    if not found and target not in TARGETS:
        found = [f"/task_target: this image has no {target}"]
    for member, name in PAYLOADS.items():
        given = recipe.get(member)
        if given is not None and given != {"file": name}:
            found.append(f"/{member}: on a task medium it is a file of its own")
        elif given is not None and name not in files:
            found.append(f"/{member}: {name} is not on the medium")
    if found:
        more = f" (and {len(found) - MAX_SHOWN} more)" if len(found) > MAX_SHOWN else ""
        raise Trouble(f"the recipe is not valid: {'; '.join(found[:MAX_SHOWN])}{more}", Exit.RECIPE_INVALID)


def keep(places: Places, recipe: Recipe, schema: Mapping[str, Any], files: Mapping[str, bytes], began: str) -> None:
    """Write the recipe and its files to /run/provision."""
    for name in PAYLOADS.values():
        if name in files:
            places.write(name, files[name])
    places.write("recipe.json", recipe)
    places.write("layout.json", {"partitions": recipe.get("partition_layout", [])})
    places.write(
        "started.json", {"started_at": began, "schema_id": schema["$id"], "task_target": recipe["task_target"]}
    )
    places.write("recipe.env", env_file(recipe, schema, places.read("report.json") or {}, began).encode())


def env_file(recipe: Recipe, schema: Mapping[str, Any], report: Mapping[str, Any], began: str) -> str:
    """Return the file for `EnvironmentFile=` of the units. A recipe's own variables begin with USER_, so they replace none of these."""
    disk = recipe.get("target_disk")
    values: dict[str, str] = {
        "TASK_TARGET": str(recipe["task_target"]),
        "TARGET_DISK": disk if isinstance(disk, str) else "",
        "SERIAL_NUMBER": str(report.get("server_serial", "")),
        "JOB_ID": str(report.get("job_id", "")),
        "WORKFLOW_STARTED_AT": began,
        "DISPATCHER_VERSION": VERSION,
        "SCHEMA_ID": str(schema["$id"]),
        "OCI_URL": str(recipe.get("oci_url", "")),
        "WIM_INDEX": str(int(recipe.get("wim_index", 1))),
    }
    given = {name: value for name, value in recipe.get("env", {}).items() if name.startswith("USER_")}
    return "".join(f"{name}={quoted(value)}\n" for name, value in sorted({**values, **given}.items()))


def quoted(value: str) -> str:
    """Quote a value for systemd: in double quotes, with backslashes before special characters."""
    text = "".join(each for each in value if each.isprintable() or each == " ")
    return '"' + "".join("\\" + each if each in '"\\`$' else each for each in text) + '"'


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")
