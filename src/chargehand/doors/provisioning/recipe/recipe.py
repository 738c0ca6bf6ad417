"""A checked recipe: what is done to one machine.

`judge` checks every recipe that a caller sends. A recipe that it accepts is stored as it was sent. `Recipe.of` reads a stored recipe
without checking it again, so that jobs survive an upgrade to a version with stricter checks.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Any, ClassVar

import msgspec

from chargehand.doors.provisioning.recipe.checks import cross_problems
from chargehand.doors.provisioning.recipe.payloads import FILES, payload_problems, payload_sizes
from chargehand.doors.provisioning.recipe.schema import SCHEMA_ID, problems
from chargehand.doors.provisioning.recipe.text import Text, Unreadable, read
from chargehand.doors.provisioning.refusals import ProvisioningRefused, RefusalDetail
from chargehand.doors.provisioning.taxonomy import Key

MAX_PROBLEMS = 50
MAX_COUNTED = 200  # problems after which the check stops: describing a problem takes longer than finding it
SMALL = 65_536

_KINDS = {
    "install-linux.target": "install",
    "install-windows.target": "install",
    "install-esxi.target": "esxi",
    "supermicro-update.target": "maintenance",
}


class Recipe(msgspec.Struct, frozen=True):
    plain: dict[str, Any]  # as it was given; holds secrets
    target: str
    kind: str  # install, esxi or maintenance
    on_success: str
    on_failure: str
    timeout_minutes: int | None

    schema_id: ClassVar[str] = SCHEMA_ID
    secrets: ClassVar[tuple[str, ...]] = (*FILES, "env")  # the members that may hold secrets

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Recipe":
        """Return the Recipe of a document that was checked before."""
        minutes = plain.get("timeout_minutes")
        return cls(
            plain=plain,
            target=plain["task_target"],
            kind=_KINDS[plain["task_target"]],
            on_success=plain.get("on_success", "reboot"),
            on_failure=plain.get("on_failure", "leave"),
            timeout_minutes=None if minutes is None else int(minutes),  # 30.0 is an integer to JSON Schema
        )


async def judged(recipe: Text, at: str = "") -> Recipe:
    """Like `judge`, but check a large recipe in a thread, so that other requests are served meanwhile."""
    return judge(recipe, at) if len(recipe) < SMALL else await asyncio.to_thread(judge, recipe, at)


def check(recipe: Text, at: str = "") -> Recipe:
    """Return the whole recipe, or raise ProvisioningRefused. It takes several times its size in memory: the server calls `judge`."""
    judge(recipe, at)
    return Recipe.of(msgspec.json.decode(recipe))


def judge(recipe: Text, at: str = "") -> Recipe:
    """Return what may be shown of the recipe, or raise ProvisioningRefused with everything that is wrong with it.

    `at`: where the recipe is in the caller's document. Payloads are checked piece by piece, so that they take little memory.
    """
    try:
        document, found = read(recipe)
    except Unreadable as error:
        raise _refused([error.detail], at) from None
    found += islice(problems(document), MAX_COUNTED)
    sizes: dict[str, int] = {}
    if isinstance(document, dict):
        broken = {detail.path.split("/")[1] for detail in found if detail.path}
        payloads = {name: document[name] for name in FILES if name in document.keys() - broken}
        sizes = payload_sizes(recipe, payloads)
        found += payload_problems(payloads, sizes)
        found += cross_problems(document, broken)
    if found:
        raise _refused(found, at)
    return Recipe.of(_public(document, sizes))


def _public(plain: dict[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    shown = dict(plain)
    for name in Recipe.secrets:
        if name in shown:
            size = sizes[name] if name in FILES else len(msgspec.json.encode(shown[name]))
            shown[name] = {"redacted": True, "bytes": size}
    if "firmware_url" in shown:  # the signature of a signed URL is in its query
        url, mark, _ = shown["firmware_url"].partition("?")
        shown["firmware_url"] = f"{url}?redacted" if mark else url
    return shown


def _refused(found: list[RefusalDetail], at: str) -> ProvisioningRefused:
    count = len(found)
    first = found[0]
    message = f"the recipe cannot be used: {first.path.lstrip('/') or 'it'} {first.message}"
    if count > 1:
        message += f" (and {count - 1} more)" if count < MAX_COUNTED else f" (and {MAX_COUNTED - 1} more at least)"
    details = [RefusalDetail(at + detail.path, detail.code, detail.message) for detail in found[:MAX_PROBLEMS]]
    return ProvisioningRefused(400, Key.VALIDATION_SCHEMA, message, details)
