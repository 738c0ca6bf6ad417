"""Servers are killed while flows run: none is lost or doubled, and each ends as a model says. Some are cancelled, some that failed
are tried again, and some of their steps are tasks.

CHARGEHAND_CHAOS_ROUNDS says how often, CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
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
MOST = 15 * ROUNDS  # flows of a producer; then they come slowly, for on a slow machine a round takes long
SLOWLY_SECONDS = 1.0
FAILS = 0.2  # how likely a step does
TASKS = "/v1/codeq/tasks"
SETTLE_SECONDS = 90.0

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.chaos,
    pytest.mark.timeout(300 + 30 * ROUNDS),
]


@dataclass
class Sent:
    """A flow that was acknowledged, and how it must end."""

    key: str
    body: dict[str, Any]
    model: Model
    ends: Counter[str]  # of its steps
    mended: Model | None  # how it ends if it is tried again
    cancelled: bool | None = False  # None: perhaps
    tried_again: bool = False


class Load:
    """Producers of random flows, and workers who do what the payload says: succeed or fail."""

    def __init__(self, nodes: Sequence[str], random: Random) -> None:
        self.flows: dict[str, Sent] = {}
        self.wrong: list[Any] = []  # payloads with another result than that of the step before
        self._mended: set[str] = set()  # keys of flows whose steps succeed now
        self._retrying: set[asyncio.Task[None]] = set()
        self._nodes = nodes
        self._random = random
        self._producing = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=5)
        async with aiohttp.ClientSession(timeout=timeout) as self._http, asyncio.TaskGroup() as group:
            self._group = group
            producers = [group.create_task(self._produce(number)) for number in range(PRODUCERS)]
            workers = [group.create_task(work()) for work in [self._work, self._work_on_tasks] * (WORKERS // 2)]
            yield
            self._producing = False
            await asyncio.gather(*producers)
            await eventually(self._all_ended, SETTLE_SECONDS, "every flow has ended")
            for worker in workers:
                worker.cancel()

    async def insist(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Send the request until there is an answer that says whether it was carried out."""
        while True:
            if (answer := await self._once(method, path, body, headers)) is not None:
                return answer
            await asyncio.sleep(self._random.uniform(0.01, 0.1))

    async def _once(self, method: str, path: str, body: object, headers: dict[str, str]) -> tuple[int, Any] | None:
        url = f"{self._random.choice(self._nodes)}{path}"
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._http.request(method, url, json=body, headers=headers) as response:
                data = await response.read()
                if response.status < 500:
                    return response.status, msgspec.json.decode(data) if data else None
        return None

    async def _produce(self, number: int) -> None:
        turn = 0
        while self._producing:
            turn += 1
            key = f"{number}/{turn}"
            sent = self._flow(key)
            status, said = await self.insist("POST", "/engine/flows", sent.body, **{"Idempotency-Key": key})
            assert status == 202, said
            self.flows[said["job_id"]] = sent
            await asyncio.sleep(self._random.uniform(0, 0.3) if turn < MOST else SLOWLY_SECONDS)
            if turn % 5 == 1:  # also the first of each
                await self._cancel(said["job_id"], sent)
            elif sent.mended is not None:
                retry = self._group.create_task(self._retry(said["job_id"], sent, sent.mended))
                self._retrying.add(retry)
                retry.add_done_callback(self._retrying.discard)

    async def _cancel(self, flow_id: str, sent: Sent) -> None:
        """Cancel it, or ask for that once and do not care for the answer: then the servers must come to it by themselves."""
        path, sent.cancelled = f"/engine/flows/{flow_id}/cancel", None
        if self._random.random() < 0.5:
            await self._once("POST", path, None, {})
        else:
            status, said = await self.insist("POST", path)
            assert status in (200, 409), said
            sent.cancelled = status == 200

    async def _retry(self, flow_id: str, sent: Sent, mended: Model) -> None:
        async def failed() -> bool:
            return bool((await self.insist("GET", f"/engine/flows/{flow_id}/wait?seconds=1"))[1]["state"] == "failed")

        await eventually(failed, SETTLE_SECONDS, f"flow {flow_id} has failed")
        self._mended.add(sent.key)
        status, said = await self.insist("POST", f"/engine/flows/{flow_id}/retry", {})
        assert status in (200, 409), said  # 409: it was carried out, and the answer was lost
        sent.model, sent.tried_again = mended, True

    def _flow(self, key: str) -> Sent:
        graph, need_any = random_graph(self._random)
        fails = {name for name in graph if self._random.random() < FAILS}
        steps = [
            {
                "name": name,
                **self._at_a_door(self._payload(key, name, after, fails, need_any)),
                "after": [{"step": step, "on": on} for step, on in (each.split(":") for each in after)],
                "need": "any" if name in need_any else "all",
            }
            for name, after in graph.items()
        ]
        model, ends, mended = _ended(Model(graph, need_any), fails), Counter(list(graph)), None
        if model.state == "failed" and self._random.random() < 0.5:
            mended = Model(graph, need_any)
            mended.states = dict(model.states)
            ends.update(mended.again())
            _ended(mended, set())
        return Sent(key, {"steps": steps}, model, ends, mended)

    def _at_a_door(self, payload: dict[str, Any]) -> dict[str, Any]:
        if self._random.random() < 0.4:
            return {"door": "tasks", "body": {"command": "steps", "payload": payload, "maxAttempts": 1000}}
        return {"door": "engine", "body": {"queue": "steps", "payload": payload, "max_attempts": 1000}}

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

    async def _work_on_tasks(self) -> None:
        while True:
            claim = {"commands": ["steps"], "waitSeconds": 1, "leaseSeconds": 2}
            status, task = await self.insist("POST", f"{TASKS}/claim", claim)
            if status == 200:
                end: dict[str, Any] = {"lease": task["lease"]}
                if (result := self._worked(msgspec.json.decode(task["payload"]))) is None:
                    end |= {"status": "FAILED", "error": "it was to fail"}
                else:
                    end |= {"status": "COMPLETED", "result": result}
                await self.insist("POST", f"{TASKS}/{task['id']}/result", end)

    async def _do(self, job: dict[str, Any]) -> None:
        path, lease = f"/engine/jobs/{job['id']}", {"lease": job["lease"]}
        if (result := self._worked(job["payload"])) is None:
            await self.insist("POST", f"{path}/fail", {**lease, "error": "it was to fail"})
        else:
            await self.insist("POST", f"{path}/succeed", {**lease, "result": result})

    def _worked(self, payload: dict[str, Any]) -> dict[str, str] | None:
        """Return the result of a step; None: it fails."""
        if any(result != f"{payload['key']} {step}" for step, result in payload["taken"].items()):
            self.wrong.append(payload)
        if payload["fails"] and payload["key"] not in self._mended:
            return None
        return {"done": f"{payload['key']} {payload['name']}"}

    async def some_run(self) -> bool:
        status, said = await self.insist("GET", "/engine/flows?state=running&limit=1")
        return status == 200 and bool(said["jobs"])

    async def _all_ended(self) -> bool:
        return not self._retrying and not await self.some_run()

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
        sent = self.flows[flow_id]
        _, flow = await self.insist("GET", f"/engine/flows/{flow_id}")
        states = {step["name"]: step["state"] for step in flow["steps"]}
        if sent.cancelled is None:
            sent.cancelled = flow["state"] == "cancelled"
        if sent.cancelled:  # each step ended before that as it would have, or was cancelled
            assert all(states[name] in (state, "cancelled") for name, state in sent.model.states.items()), sent
            assert (flow["state"], flow["idempotency_key"]) == ("cancelled", sent.key), sent
        else:
            assert states == sent.model.states, sent
            assert (flow["state"], flow["idempotency_key"]) == (sent.model.state, sent.key), sent
        _, log = await self.insist("GET", f"/engine/flows/{flow_id}/events")
        told = Counter(event["step"] for event in log["events"] if event["move"] == "note")
        ends = sent.ends if sent.tried_again else Counter(list(states))
        assert told == ends, sent
        for step in flow["steps"]:
            _, events = await self.insist("GET", f"/engine/jobs/{step['job_id']}/events")
            over = [event for event in events["events"] if event["state"] in ("succeeded", "failed", "cancelled")]
            assert len([event for event in over if event["move"] != "note"]) == ends[step["name"]], events


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
            await eventually(load.some_run, SETTLE_SECONDS, "flows run")
            await server.kill()
            await server.start()
        for server in servers:
            await server.ready()
    await load.prove()
    cancelled = sum(bool(each.cancelled) for each in load.flows.values())
    again = sum(each.tried_again for each in load.flows.values())
    assert load.flows
    print(f"{len(load.flows)} flows: {cancelled} cancelled, {again} tried again")


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
