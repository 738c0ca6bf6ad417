"""The calls of a producer on its own connection, and those of the server that they are compared with."""

import json
from typing import Any

import asyncpg

from tests.api.serving import Api

Connection = asyncpg.Connection

TASKS = "/v1/codeq/tasks"
HOOK = "http://127.0.0.1:9000/hook?token=1"


async def submit(connection: Connection, what: str, name: str, payload: str, **options: Any) -> str:
    statement = f"SELECT chargehand_submit_{what}($1, $2, $3)"
    return str(await connection.fetchval(statement, name, payload, json.dumps(options)))


async def submit_task(connection: Connection, command: str = "pack", payload: str = "{}", **options: Any) -> str:
    return await submit(connection, "task", command, payload, **options)


async def claimed(api: Api, *commands: str, count: int = 1) -> list[str]:
    ids = []
    for _ in range(count):
        answer = await api.post(f"{TASKS}/claim", {"commands": commands or ["pack"]})
        ids += [answer.json["id"]] if answer.status == 200 else []
    return ids


async def task(api: Api, **fields: Any) -> str:
    return str((await api.post(TASKS, {"command": "pack", "payload": {}} | fields)).good(202)["id"])


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
