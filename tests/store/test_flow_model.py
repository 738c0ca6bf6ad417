"""Random flows with random outcomes, compared with a simple model; on PostgreSQL by several nodes at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random

import pytest

from chargehand.engine.flow import RetryFlow
from chargehand.engine.job import FINAL
from chargehand.engine.moves import Change, Moved
from chargehand.engine.store import Claim, Store
from chargehand.store import open_store
from tests.conftest import Clock
from tests.store.flow_given import Graph, a_flow, id_of, states
from tests.store.given import TENANT, get, seen, sql

FLOWS = 40
MOVES = {"succeeded": "succeed", "failed": "fail", "cancelled": "cancel"}


class Model:
    """The steps of a flow by name: waiting, ready, or how they ended."""

    def __init__(self, graph: Graph, need_any: list[str]) -> None:
        self.graph, self.need_any = graph, need_any
        self.states = dict.fromkeys(graph, "waiting")
        self.settle()

    def settle(self) -> None:
        before = None
        while before != self.states:
            before = dict(self.states)
            for name in (name for name, state in before.items() if state == "waiting"):
                self.states[name] = self._decide(name)

    def _decide(self, name: str) -> str:
        edges = [self._edge(*each.split(":")) for each in self.graph[name]]
        if name in self.need_any and edges:
            return "ready" if True in edges else "waiting" if None in edges else "skipped"
        return "skipped" if False in edges else "waiting" if None in edges else "ready"

    def _edge(self, parent: str, on: str) -> bool | None:
        state = self.states[parent]
        if state in ("waiting", "ready"):
            return None
        return on == "finished" or (state in ("failed", "cancelled") if on == "failed" else state == "succeeded")

    @property
    def state(self) -> str:
        if {"waiting", "ready"} & set(self.states.values()):
            return "running"
        lost = [
            name for name, state in self.states.items() if state in ("failed", "cancelled") and not self._handled(name)
        ]
        return "failed" if lost else "succeeded"

    def _handled(self, name: str) -> bool:
        takers = [child for child, after in self.graph.items() if {f"{name}:failed", f"{name}:finished"} & set(after)]
        return any(self.states[child] != "skipped" for child in takers)

    def again(self) -> list[str]:
        """Start what did not succeed again, and all after it; return those steps."""
        self.states = {name: state if state == "succeeded" else "waiting" for name, state in self.states.items()}
        changed = True
        while changed:
            after = {
                n for n, edges in self.graph.items() if any(self.states[e.split(":")[0]] == "waiting" for e in edges)
            }
            changed = any(self.states[name] != "waiting" for name in after)
            self.states |= dict.fromkeys(after, "waiting")
        waiting = [name for name, state in self.states.items() if state == "waiting"]
        self.settle()
        return [name for name in waiting if self.states[name] != "skipped"]  # the others stay as they were


def random_graph(random: Random) -> tuple[Graph, list[str]]:
    names = [f"s{number}" for number in range(random.randint(1, 9))]
    graph = {}
    for place, name in enumerate(names):
        parents = random.sample(names[:place], random.randint(0, min(place, 3)))
        graph[name] = [
            f"{parent}:{random.choice(['succeeded', 'succeeded', 'failed', 'finished'])}" for parent in parents
        ]
    shuffled = random.sample(names, len(names))
    return {name: graph[name] for name in shuffled}, random.sample(names, len(names) // 2)


@pytest.fixture
async def nodes(store_url: str, clock: Clock) -> AsyncIterator[list[Store]]:
    async with AsyncExitStack() as stack:
        count = 1 if store_url.startswith("sqlite") else 3
        opened = []
        for _ in range(count):
            store = await open_store(store_url, clock=clock)
            stack.push_async_callback(store.close)
            opened.append(store)
        yield opened


async def test_random_flows_end_as_a_model_says(nodes: list[Store], random: Random) -> None:
    for _ in range(FLOWS):
        graph, need_any = random_graph(random)
        flow, model = a_flow(graph, need_any), Model(graph, need_any)
        await nodes[0].write(flow)
        for retries in range(2):
            while model.state == "running":
                assert await states(nodes[0], flow) == model.states, graph
                ready = [name for name, state in model.states.items() if state == "ready"]
                chosen = {
                    name: random.choice(list(MOVES)) for name in random.sample(ready, random.randint(1, len(ready)))
                }
                # All at once: each step that ends may decide others, also those that two of them end on different nodes.
                await asyncio.gather(
                    *[_end(random.choice(nodes), id_of(flow, name), how) for name, how in chosen.items()]
                )
                model.states |= chosen
                model.settle()
            assert await states(nodes[0], flow) == model.states, graph
            job = await get(nodes[0], flow.job.id)
            assert job.state == model.state, graph
            assert job.state in FINAL
            if retries or model.state != "failed":
                break
            assert await nodes[0].write(RetryFlow(job.id, TENANT, job.seq, "", "again")) is not None, graph
            model.again()


async def test_parents_that_end_at_once_on_several_nodes_release_their_child_once(
    nodes: list[Store], store_url: str
) -> None:
    parents = [f"p{number}" for number in range(60)]
    for need_any in ([], ["child"]):
        flow = a_flow({name: [] for name in parents} | {"child": parents, "lost": ["p0:failed"]}, need_any)
        await nodes[0].write(flow)
        ends = [
            nodes[number % len(nodes)].write(Change(seen(id_of(flow, name)), "cancel", error="x"))
            if need_any and number % 2
            else _end(nodes[number % len(nodes)], id_of(flow, name), "succeeded")
            for number, name in enumerate(parents)
        ]
        moves = [each for moved in await asyncio.gather(*ends) if moved is not None for each in moved.others]
        assert [each.job_id for each in moves if each.move == "release"] == [id_of(flow, "child")]
        assert [each.job_id for each in moves if each.move == "cancel"] == [id_of(flow, "lost")]
    if store_url.startswith("postgres"):
        [(deadlocks,)] = await sql(
            store_url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        assert deadlocks == 0


async def _end(store: Store, job_id: str, how: str) -> Moved:
    if how != "cancelled":
        await _claim(store, job_id)
    change = Change(
        seen(job_id), MOVES[how], result=b"1" if how == "succeeded" else None, error=None if how == "succeeded" else how
    )
    moved = await store.write(change)
    assert moved is not None
    return moved


async def _claim(store: Store, job_id: str) -> None:
    job = await get(store, job_id)
    claimed = await store.write(Claim((job.queue,), "worker", 60))
    assert [each.id for each in claimed.jobs] == [job_id]
