"""The tasks door: codeQ's own HTTP benchmark over loopback, on our server and on another with the same API, in turn."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

from bench import tasks_work as work
from bench.bench import WARM_UP_SECONDS, Bench
from bench.client import TOKEN, Connection
from bench.peers.running import PEERS, Peer, measured, missing
from bench.processes import Cpu, Server, listener, running
from bench.report import Row, Sample, Target, at, compared, compared_rates, rates
from bench.tasks_client import Wire, drive, runners
from bench.tasks_stream import drain
from bench.waiters import waited
from chargehand.commands.bench.load import Timings

CONNECTIONS = 32
PREFILLED = 100
BACKLOG = 5_000
WAIT_SECONDS = 30
TRY_SECONDS = 1.0  # of a peer's setting
NO_PROCESS = -1
LONE_CREATE = Target("≤", 5.5)  # 0.40 ms, where a bare request takes 0.073


class Place(NamedTuple):
    name: str
    server: Server
    wire: Wire

    def sample(self, before: Cpu, load: Timings) -> Sample:
        return self.server.sample(before, len(load.latencies), load.seconds, load.latencies, load.client_cpu)


Run = Callable[[Place, str, float], Awaitable[Sample]]  # … of an unused command, for so many seconds
Runs = tuple[list[Sample], list[Sample] | None]  # ours, and the peer's if there is one

_numbers = itertools.count()


# on the wire ----------------------------------------------------------------------------------------------------------


async def tasks_cycle(bench: Bench) -> AsyncIterator[Row]:
    """create -> claim -> complete."""
    async with _places(bench) as places:
        for connections, target in ((CONNECTIONS, Target("≥", 1.0)), (1, None)):
            label = f"tasks cycle, {at(connections)}"
            runs = await _in_turn(bench, places, label, _cycles(connections))
            for row in _rows(label, runs, target):
                yield row
            yield _requests(label, runs)


async def tasks_create(bench: Bench) -> AsyncIterator[Row]:
    label = f"tasks create, {at(CONNECTIONS)}"
    async with _places(bench) as places:
        for row in _rows(label, await _in_turn(bench, places, label, _creates(CONNECTIONS))):
            yield row


async def tasks_cost(bench: Bench) -> AsyncIterator[Row]:
    """CPU of a cycle, and the time of a create with no other beside it, each against a request to a bare protocol, in turn."""
    cpu, store_cpu, p50 = map(attrgetter, ("server_microseconds", "store_microseconds", "p50_milliseconds"))
    async with _ours(bench) as place, running("bare") as (pid, [url]):
        bare = Place("bare", Server(url, pid, None), Wire(url, TOKEN, TOKEN))
        label = f"tasks cycle, {at(CONNECTIONS)}"
        works = ((place, _cycles(CONNECTIONS)), (bare, _creates(CONNECTIONS)))
        cycles, requests = await _alternating(bench, label, works)
        label += ", against a bare request"
        yield compared(f"{label}: server's CPU", "µs", (cycles, cpu), (requests, cpu), Target("≤", 36))
        yield compared(f"{label}: store's CPU", "µs", (cycles, store_cpu), (requests, cpu), Target("≤", 20))
        label = f"tasks create, {at(1)}"
        creates, requests = await _alternating(bench, label, ((place, _creates(1)), (bare, _creates(1))))
        yield compared(f"{label}, against a bare request: p50", "ms", (creates, p50), (requests, p50), LONE_CREATE)


async def tasks_busy(bench: Bench) -> AsyncIterator[Row]:
    """Producers and workers at once, on a long queue. Each of the two samples has the CPU of both."""
    created: dict[str, list[Sample]] = {}

    async def run(place: Place, command: str, seconds: float) -> Sample:
        await _fill(place, command, BACKLOG)
        begin, end = work.create(place.wire, command), work.claim_and_complete(place.wire, command)
        creates, sample = await asyncio.gather(
            _run(place, CONNECTIONS, begin, seconds=seconds), _run(place, CONNECTIONS, end, seconds=seconds)
        )
        created.setdefault(place.name, []).append(bench.said(f"created meanwhile, {place.name}", creates))
        return sample

    label = f"tasks busy, {CONNECTIONS} producers, {CONNECTIONS} workers"
    async with _places(bench) as places:
        completed = await _in_turn(bench, places, label, run)
    for row in _rows(f"{label}: completed", completed):
        yield row
    rounds = bench.scale.rounds  # the first created tasks were the warm-up
    ours, peer = (created.get(name, [])[-rounds:] for name in ("ours", "peer"))
    for row in _rows(f"{label}: created", (ours, peer or None)):
        yield row


async def tasks_stream(bench: Bench) -> AsyncIterator[Row]:
    """Workers that stream against as many that claim tasks singly, on the same server and with the same queue."""

    async def singly(place: Place, command: str) -> Sample:
        await _fill(place, command, BACKLOG)
        begin = work.claim_and_complete(place.wire, command)
        # The time is limited too: one worker alone would need longer for the backlog.
        return await _run(place, workers, begin, seconds=bench.scale.seconds, count=BACKLOG)

    async def streamed(place: Place, command: str) -> Sample:
        await _fill(place, command, BACKLOG)
        before = place.server.cpu()
        return place.sample(before, await drain(place.wire, command, workers, BACKLOG))

    async with _ours(bench) as place:
        for workers in (1, CONNECTIONS):
            label = f"tasks streamed, {workers} worker{'s' * (workers > 1)}"
            runs: dict[str, list[Sample]] = {}
            for _ in range(bench.scale.rounds):
                for run in (streamed, singly):
                    sample = bench.said(f"{run.__name__}, {workers}", await run(place, _command()))
                    runs.setdefault(run.__name__, []).append(sample)
            yield compared_rates(label, runs["streamed"], runs["singly"], Target("≥", 2.0))


async def tasks_waiters(bench: Bench) -> AsyncIterator[Row]:
    """Idle long polls, each woken by its own task."""
    command = _command()
    claim, create = work.claiming(command, TOKEN, WAIT_SECONDS), work.creating(command, TOKEN)

    async def submit(connection: Connection) -> None:
        await connection.expect(create, 202)

    async for row in waited(bench, "long polls", claim, submit, bench.scale.waiters):
        yield row


# beside other systems -------------------------------------------------------------------------------------------------


async def tasks_peers(bench: Bench) -> AsyncIterator[Row]:
    """The cycle beside the same work by other systems, all durable, in turn."""
    present = []
    for peer in PEERS:
        if reason := missing(peer):
            bench.say(f"  without {peer.name}: {reason}")
        else:
            present.append(peer)
    run = _cycles(CONNECTIONS)
    ours: dict[str, list[Sample]] = {peer.name: [] for peer in present}
    theirs: dict[str, list[Sample]] = {peer.name: [] for peer in present}
    async with _ours(bench) as place:
        await run(place, _command(), WARM_UP_SECONDS)
        best = {peer.name: await _best_setting(bench, peer) for peer in present}
        for _ in range(bench.scale.rounds):
            for peer in present:
                sample = await run(place, _command(), bench.scale.seconds)
                ours[peer.name].append(bench.said(f"tasks cycle, {at(CONNECTIONS)}", sample))
                sample = await measured(peer, best[peer.name], bench.scale.seconds)
                theirs[peer.name].append(bench.said(f"{peer.name}, {best[peer.name]} at once", sample))
    for peer in present:
        label = f"tasks cycle, {at(CONNECTIONS)}, against {peer.name}"
        yield compared_rates(label, ours[peer.name], theirs[peer.name], Target("≥", peer.bar))


async def _best_setting(bench: Bench, peer: Peer) -> int:
    """Choose by a few short tries of each in turn. The best try counts, because noise only slows a try down."""
    best: dict[int, float] = dict.fromkeys(peer.settings, 0.0)
    for _ in range(bench.scale.tries):
        for setting in peer.settings:
            sample = bench.said(f"{peer.name}, try {setting} at once", await measured(peer, setting, TRY_SECONDS))
            best[setting] = max(best[setting], sample.rate)
    return max(best, key=best.__getitem__)


# how it is done -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _ours(bench: Bench) -> AsyncIterator[Place]:
    async with bench.server() as server:
        yield Place("ours", server, Wire(server.url, TOKEN, TOKEN))


@asynccontextmanager
async def _places(bench: Bench) -> AsyncIterator[list[Place]]:
    async with _ours(bench) as place:
        yield [place, *([_theirs(bench.peer)] if bench.peer else [])]


def _theirs(wire: Wire) -> Place:
    """A server that others started. If it runs here, all its CPU counts as that of a store, which it contains."""
    return Place("peer", Server(wire.url, NO_PROCESS, listener(urlsplit(wire.url).port or 80)), wire)


async def _in_turn(bench: Bench, places: list[Place], label: str, run: Run) -> Runs:
    ours, *peer = await _alternating(bench, label, [(place, run) for place in places])
    return ours, peer[0] if peer else None


async def _alternating(bench: Bench, label: str, runs: Sequence[tuple[Place, Run]]) -> list[list[Sample]]:
    """Run A B A B …, because the speed of the machine varies."""
    for place, run in runs:
        await run(place, _command(), WARM_UP_SECONDS)
    samples: list[list[Sample]] = [[] for _ in runs]
    for _ in range(bench.scale.rounds):
        for (place, run), taken in zip(runs, samples, strict=True):
            sample = await run(place, _command(), bench.scale.seconds)
            taken.append(bench.said(f"{label}, {place.name}", sample))
    return samples


def _cycles(connections: int) -> Run:
    async def run(place: Place, command: str, seconds: float) -> Sample:
        await _fill(place, command, PREFILLED)
        return await _run(place, connections, work.cycle(place.wire, command), seconds=seconds)

    return run


def _creates(connections: int) -> Run:
    async def run(place: Place, command: str, seconds: float) -> Sample:
        return await _run(place, connections, work.create(place.wire, command), seconds=seconds)

    return run


async def _fill(place: Place, command: str, count: int) -> None:
    await _run(place, CONNECTIONS, work.create(place.wire, command), count=count)


async def _run(
    place: Place, connections: int, begin: work.Begin, *, seconds: float = 3600.0, count: int | None = None
) -> Sample:
    async with runners(place.wire.url, connections) as opened:
        before = place.server.cpu()
        return place.sample(before, await drive(opened, begin, seconds=seconds, count=count))


def _command() -> str:
    """Return a new command each time, so that a run finds only the queue that it filled."""
    return f"GENERATE_MASTER_{next(_numbers)}"


def _rows(label: str, runs: Runs, target: Target | None = None) -> list[Row]:
    ours, peer = runs
    first = rates(label, ours) if peer is None else compared_rates(label, ours, peer, target)
    return [first, *[_both(f"{label}: {name}", "ms", runs, attrgetter(name), 1e3) for name in ("p50", "p99")]]


def _requests(label: str, runs: Runs) -> Row:
    return _both(f"{label}: requests", "/s", runs, attrgetter("rate"), 3)


def _both(label: str, unit: str, runs: Runs, get: Callable[[Sample], float], times: float) -> Row:
    ours, peer = (None if samples is None else median(map(get, samples)) * times for samples in runs)
    assert ours is not None
    return Row(measurement=label, value=ours, unit=unit, baseline=peer)
