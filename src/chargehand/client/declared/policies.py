"""What was declared of a command and holds on the server: the policy of its topic, and its schedule.

A worker sets them when it starts. What is not there it makes; what is there and says the same it leaves alone. What says something else was
changed by somebody, in the code or on the server, and the worker cannot know where: it does not start, unless it was told to overwrite.
Only what is declared is compared.
"""

import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from msgspec.structs import asdict, replace

from chargehand.client.client import AsyncClient
from chargehand.client.declared.declaration import Declaration
from chargehand.client.errors import Forbidden, NotFound, Unauthenticated, refused
from chargehand.client.types.schedules import Policy

log = logging.getLogger("chargehand.client")

NOTHING_SAID = Policy(tuple(range(10)), 5)  # every priority, and as many attempts as a server gives


async def set_policies(client: AsyncClient, declared: Iterable[Declaration], overwrite: bool) -> None:
    """Set what is declared. Raise Conflict if the server has something else and `overwrite` is false."""
    for each in declared:
        await _allowed(each, "codeq:admin", _set_topic(client, each, overwrite))
        await _allowed(each, "codeq:produce", _set_schedule(client, each, overwrite))


async def _allowed(declared: Declaration, scope: str, setting: Awaitable[None]) -> None:
    """Apply the setting. If the token lacks the scope, log it and go on: one that the server does not know gets no tasks anyway."""
    try:
        await setting
    except (Forbidden, Unauthenticated) as error:
        log.warning(
            "what %s declares is not set on the server, where this token lacks %s: %s", declared.command, scope, error
        )


async def _set_topic(client: AsyncClient, declared: Declaration, overwrite: bool) -> None:
    wanted = {"max_consumers" if name == "max_running" else name: limit for name, limit in declared.limits.items()}
    if not wanted:
        return  # attempts come with each task
    if declared.retries.attempts:
        wanted["max_attempts"] = declared.retries.attempts
    try:
        there = (await client.topics.get(declared.command)).policy
    except NotFound:
        await client.topics.put(declared.command, replace(NOTHING_SAID, **wanted))
        return
    if _differs(f"the topic {declared.command}", wanted, asdict(there), overwrite):
        await client.topics.put(declared.command, replace(there, **wanted))


async def _set_schedule(client: AsyncClient, declared: Declaration, overwrite: bool) -> None:
    if declared.every is None:
        return
    wanted: dict[str, Any] = {
        "cron": declared.every.cron,
        "timezone": declared.every.timezone,
        "command": declared.command,
    }
    wanted |= {"priority": declared.priority, "max_attempts": declared.retries.attempts}
    try:
        there = await client.schedules.get(declared.command)
    except NotFound:
        await client.schedules.put(declared.command, payload={}, **wanted)
        return
    if _differs(f"the schedule {declared.command}", wanted, asdict(there), overwrite):
        await client.schedules.put(declared.command, payload={}, webhook=there.webhook, **wanted)


def _differs(what: str, wanted: Mapping[str, Any], there: Mapping[str, Any], overwrite: bool) -> bool:
    other = {name: value for name, value in wanted.items() if there[name] != value}
    if other and not overwrite:
        said = ", ".join(f"{name} is {there[name]!r} there and {value!r} in the code" for name, value in other.items())
        raise refused(
            409, f"{what} is not as declared", f"{said}; change one of them, or start a worker that overwrites"
        )
    return bool(other)
