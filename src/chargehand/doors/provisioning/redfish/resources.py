"""Read resources: links, lists and actions as the BMC gives them; no path is built from strings."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from chargehand.doors.provisioning.redfish.client import RedfishClient
from chargehand.doors.provisioning.redfish.errors import RedfishRefused
from chargehand.doors.provisioning.redfish.transport import RedfishAnswer

MAX_MEMBERS = 64
MAX_PAGES = 8
MAX_TEXT = 2048
MAX_WORD = 64


class RedfishAction(msgspec.Struct, frozen=True):
    """An action of a resource: its URL and its parameters."""

    target: str
    allowed: dict[str, tuple[str, ...]]  # by parameter; one that is not listed accepts any value
    required: frozenset[str] = frozenset()


def text(data: dict[str, Any], key: str) -> str:
    """Return a string property, made safe to store and show: a BMC may send anything."""
    value = data.get(key)
    if not isinstance(value, str):
        return ""
    value = value[:MAX_TEXT]
    return (value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)).strip()


def part(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return a nested object; empty if there is none."""
    for key in keys:
        value = data.get(key)
        data = value if isinstance(value, dict) else {}
    return data


def link(data: dict[str, Any], *keys: str) -> str:
    return text(part(data, *keys), "@odata.id")


def links(data: dict[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key)
    items = value if isinstance(value, list) else []
    return tuple(dict.fromkeys(path for item in items if isinstance(item, dict) and (path := text(item, "@odata.id"))))


def texts(value: Any) -> tuple[str, ...]:
    items = value[:MAX_MEMBERS] if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str) and item.isprintable() and len(item) <= MAX_WORD)


async def members(client: RedfishClient, path: str) -> AsyncIterator[RedfishAnswer]:
    """Yield each readable member of a collection, page by page, up to a number that no machine reaches."""
    count = 0
    for _ in range(MAX_PAGES):
        page = await client.find(path)
        if page is None:
            return
        for member in links(page.data, "Members"):
            count += 1
            if count > MAX_MEMBERS:
                return
            if (answer := await client.find(member)) is not None:
                yield answer
        path = text(page.data, "Members@odata.nextLink")
        if not path:
            return


async def action(client: RedfishClient, data: dict[str, Any], name: str) -> RedfishAction | None:
    """Return the action of that name with its allowed values, which may be in a separate resource; None if there is none."""
    offered = part(data, "Actions", f"#{name}")
    target = text(offered, "target")
    if not target:
        return None
    allowed = {
        key.partition("@")[0]: texts(value)
        for key, value in offered.items()
        if key.endswith("@Redfish.AllowableValues") and texts(value)
    }
    required: set[str] = set()
    if (where := text(offered, "@Redfish.ActionInfo")) and (info := await _info(client, where)) is not None:
        parameters = info.data.get("Parameters")
        for parameter in parameters if isinstance(parameters, list) else []:
            if isinstance(parameter, dict) and (key := text(parameter, "Name")):
                if values := texts(parameter.get("AllowableValues")):
                    allowed.setdefault(key, values)
                if parameter.get("Required") is True:
                    required.add(key)
    return RedfishAction(target, allowed, frozenset(required))


async def _info(client: RedfishClient, path: str) -> RedfishAnswer | None:
    """Return the description of an action's parameters, or None if it cannot be read: it is optional."""
    try:
        return await client.find(path)
    except RedfishRefused:
        return None
