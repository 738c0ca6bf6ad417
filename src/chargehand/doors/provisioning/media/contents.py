"""The files of the task medium: the recipe with its payloads, and where to report."""

from typing import Any

import msgspec

from chargehand.doors.provisioning.job.orders import metadata_of
from chargehand.doors.provisioning.names import BASE
from chargehand.doors.provisioning.recipe.payloads import FILES, content
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.recipe.schema import SCHEMA_BYTES
from chargehand.engine.job import Job

REPORT = "report.json"  # where to report, and with which token


def recipe_files(recipe: Recipe, job_id: str) -> dict[str, bytes]:
    """Return the recipe's files. Each payload has its own file, unchanged; `recipe.json` names it."""
    held = {name: content(recipe.plain[name]) for name in FILES if name in recipe.plain}
    pointers = {name: {"file": FILES[name]} for name in held}
    made = {FILES[name]: data for name, data in held.items()}
    made["recipe.json"] = _pretty({**recipe.plain, **pointers})
    made["recipe.schema.json"] = SCHEMA_BYTES
    if recipe.target == "install-linux.target" and "meta_data" not in held:
        made["meta-data"] = _meta_data(job_id, recipe.plain.get("hostname"))
    return dict(sorted(made.items()))


def report_file(job: Job, base_url: str, token: str) -> bytes:
    metadata = metadata_of(job)
    url = f"{base_url}{BASE}/status-webhook/{metadata.server_serial}"
    report = {
        "job_id": job.id,
        "server_serial": metadata.server_serial,
        "system_uuid": metadata.system_uuid,
        "status_url": url,
        "progress_url": f"{url}/progress",
        "registry_url": base_url,
        "token": token,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def _pretty(document: dict[str, Any]) -> bytes:
    """Sorted and indented, so that the same recipe gives the same bytes and a person on the machine can read them."""
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def _meta_data(job_id: str, hostname: str | None) -> bytes:
    """YAML with every value in quotes, so that no name is taken for a number or for true."""
    lines = [f"instance-id: {_quoted(job_id)}"]
    if hostname is not None:
        lines.append(f"local-hostname: {_quoted(hostname)}")
    return "".join(line + "\n" for line in lines).encode()


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
