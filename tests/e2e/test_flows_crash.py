"""Servers are killed while flows run: none is lost or doubled, and each ends as a model says.

CHARGEHAND_CHAOS_ROUNDS says how often, CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.store.test_flow_model import Model, random_graph

from .server import Server, eventually

ROUNDS = int(os.environ.get("CHARGEHAND_CHAOS_ROUNDS", "2"))
PRODUCERS, WORKERS = 3, 8
MOST = 15 * ROUNDS  # flows of a producer: on a slow machine a round takes long
SETTLE_SECONDS = 90.0

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.chaos,
    pytest.mark.timeout(300 + 30 * ROUNDS),
]


class Load:
    """Producers of random flows, and workers who do what the payload says: succeed or fail."""

    def __init__(self, nodes: Sequence[str], random: Random) -> None:
        self.flows: dict[str, tuple[str, dict[str, Any], Model]] = {}  # id -> its key, its body, and how it must end
        self.wrong: list[Any] = []  # payloads with another result than that of the step before
        self._nodes = nodes
        self._random = random
        self._producing = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=5)
        async with aiohttp.ClientSession(timeout=timeout) as self._http, asyncio.TaskGroup() as group:
            producers = [group.create_task(self._produce(number)) for number in range(PRODUCERS)]
            workers = [group.create_task(self._work()) for _ in range(WORKERS)]
            yield
            self._producing = False
            await asyncio.gather(*producers)
            await eventually(self._all_ended, SETTLE_SECONDS, "every flow has ended")
            for worker in workers:
                worker.cancel()

    async def insist(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Send the request until there is an answer that says whether it was carried out."""
        while True:
            url = f"{self._random.choice(self._nodes)}{path}"
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with self._http.request(method, url, json=body, headers=headers) as response:
                    if response.status < 500:
                        data = await response.read()
                        return response.status, msgspec.json.decode(data) if data else None
            await asyncio.sleep(self._random.uniform(0.01, 0.1))

    async def _produce(self, number: int) -> None:
        turn = 0
        while self._producing and turn < MOST:
            turn += 1
            key = f"{number}/{turn}"
            body, model = self._flow(key)
            status, said = await self.insist("POST", "/engine/flows", body, **{"Idempotency-Key": key})
            assert status == 202, said
            self.flows[said["job_id"]] = key, body, model
            await asyncio.sleep(self._random.uniform(0, 0.3))

    def _flow(self, key: str) -> tuple[dict[str, Any], Model]:
        graph, need_any = random_graph(self._random)
        fails = {name for name in graph if self._random.random() < 0.2}
        steps = [
            {
                "name": name,
                "door": "engine",
                "body": {
                    "queue": "steps",
                    "payload": self._payload(key, name, after, fails, need_any),
                    "max_attempts": 1000,
                },
                "after": [{"step": step, "on": on} for step, on in (each.split(":") for each in after)],
                "need": "any" if name in need_any else "all",
            }
            for name, after in graph.items()
        ]
        return {"steps": steps}, _ended(Model(graph, need_any), fails)

    def _payload(
        self, key: str, name: str, after: Sequence[str], fails: set[str], need_any: list[str]
    ) -> dict[str, Any]:
        """What a step takes over is the name of its flow and of the step before: both must be as they were sent."""
        taken = [each.split(":")[0] for each in after if each.endswith(":succeeded") and name not in need_any]
        return {
            "key": key,
            "name": name,
            "fails": name in fails,
            "taken": {step: f"{{{{{step}.done}}}}" for step in taken},
        }

    async def _work(self) -> None:
        while True:
            status, said = await self.insist(
                "POST", "/engine/claims", {"queues": ["steps"], "wait_seconds": 1, "limit": 2}
            )
            for job in said["jobs"] if status == 200 else ():
                await self._do(job)

    async def _do(self, job: dict[str, Any]) -> None:
        payload, path = job["payload"], f"/engine/jobs/{job['id']}"
        if any(result != f"{payload['key']} {step}" for step, result in payload["taken"].items()):
            self.wrong.append(payload)
        if payload["fails"]:
            await self.insist("POST", f"{path}/fail", {"lease": job["lease"], "error": "it was to fail"})
        else:
            result = {"done": f"{payload['key']} {payload['name']}"}
            await self.insist("POST", f"{path}/succeed", {"lease": job["lease"], "result": result})

    async def _all_ended(self) -> bool:
        status, said = await self.insist("GET", "/engine/flows?state=running&limit=1")
        return status == 200 and not said["jobs"]

    # the proof

    async def prove(self) -> None:
        """All that was acknowledged is there once, and ended as it must."""
        async with aiohttp.ClientSession() as self._http:
            listed = await self._listed()
            assert len(listed) == len(self.flows)
            assert set(listed) == set(self.flows)
            for flow_id in self.flows:
                await self._prove_flow(flow_id)
        assert self.wrong == []

    async def _listed(self) -> list[str]:
        ids: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            _, page = await self.insist("GET", f"/engine/flows?limit=500{f'&cursor={cursor}' if cursor else ''}")
            ids += [flow["id"] for flow in page["jobs"]]
            cursor = page["next"]
        return ids

    async def _prove_flow(self, flow_id: str) -> None:
        key, body, model = self.flows[flow_id]
        _, flow = await self.insist("GET", f"/engine/flows/{flow_id}")
        assert {step["name"]: step["state"] for step in flow["steps"]} == model.states, body
        assert (flow["state"], flow["idempotency_key"]) == (model.state, key), body
        _, log = await self.insist("GET", f"/engine/flows/{flow_id}/events")
        told = Counter(event["step"] for event in log["events"] if event["move"] == "note")
        assert told == Counter(list(model.states)), body  # each step ended once
        for step in flow["steps"]:
            _, events = await self.insist("GET", f"/engine/jobs/{step['job_id']}/events")
            ends = [
                event["move"] for event in events["events"] if event["state"] in ("succeeded", "failed", "cancelled")
            ]
            assert len(ends) == 1, events


def _ended(model: Model, fails: set[str]) -> Model:
    while model.state == "running":
        ready = [name for name, state in model.states.items() if state == "ready"]
        model.states |= {name: "failed" if name in fails else "succeeded" for name in ready}
        model.settle()
    return model


async def _survive(servers: Sequence[Server], random: Random) -> None:
    load = Load([server.url for server in servers], random)
    async with load.running():
        for _ in range(ROUNDS):
            await asyncio.sleep(random.uniform(0.3, 1.5))
            server = random.choice(servers)
            await server.kill()
            await server.start()
        for server in servers:
            await server.ready()
    assert load.flows
    await load.prove()


async def test_a_server_on_sqlite_that_is_killed_while_flows_run_loses_and_doubles_nothing(
    tmp_path: Path, random: Random
) -> None:
    async with Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path) as server:
        await _survive([server], random)


async def test_nodes_on_one_postgres_that_are_killed_while_flows_run_lose_and_double_nothing(
    postgres_url: str, tmp_path: Path, random: Random
) -> None:
    async with Server(postgres_url, tmp_path, "one") as one, Server(postgres_url, tmp_path, "two") as two:
        await _survive([one, two], random)
