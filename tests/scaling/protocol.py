"""The protocol of docs/scaling.md: what a cluster refuses, what the directory decides, and the steps of a move.

Each method of `Cluster` and `Directory` stands for one transaction of one database. `Rules` leaves out parts of the protocol, so
that a test can see that each of them is needed.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Protocol

from tests.scaling.placement import TenantMap

BATCH = 3  # rows in one step of a copy


@dataclass(frozen=True)
class Rules:
    marks: bool = True  # a cluster refuses what its mark of the tenant does not allow
    freeze: bool = True  # nothing is written while the rows are copied
    verify: bool = True  # the copy is compared before the move is decided
    decide_once: bool = True  # the first decision about a move stands
    numbers: bool = True  # a step of a move that is over is refused
    floor: bool = True  # a node with an old list of clusters makes no new tenant


class Refused(Exception):
    """Not here, or not now: the node reads the map again, and its caller gets 503 with Retry-After."""


class Stale(Exception):
    """The lease is not the job's any more: 409."""


class Watcher(Protocol):
    """What a checker is told as it happens."""

    def made(self, key: str) -> None: ...
    def granted(self, key: str, lease: int) -> None: ...
    def ended(self, key: str, lease: int) -> None: ...
    def finished(self, key: str) -> None: ...


class State(Enum):
    SERVING = auto()
    CLOSING = auto()  # no new claims
    FROZEN = auto()  # no writes
    ARRIVING = auto()  # rows are being copied here
    ELSEWHERE = auto()


WRITABLE = (State.SERVING, State.CLOSING)


@dataclass
class Mark:
    """A row for each tenant in each cluster that has or had it. Every write of the tenant reads it in its transaction."""

    state: State
    move: int = 0  # the last move that touched it


@dataclass
class Job:
    key: str  # the idempotency key of its submission
    lease: int = 0
    running: bool = False
    done: bool = False


class Cluster:
    def __init__(self, name: str, layout: int, watcher: Watcher, rules: Rules) -> None:
        self.name = name
        self.layout = layout  # of the newest list of clusters that was announced here
        self.marks: dict[str, Mark] = {}
        self.jobs: dict[str, dict[str, Job]] = {}
        self._watcher = watcher
        self._rules = rules

    # for nodes ----------------------------------------------------------------------------------------------------------

    def submit(self, tenant: str, key: str, layout: int) -> None:
        if tenant not in self.marks:
            if layout < self.layout and self._rules.floor:
                raise Refused
            self.marks[tenant] = Mark(State.SERVING)
        self._allow(tenant, *WRITABLE)
        jobs = self.jobs.setdefault(tenant, {})
        if key not in jobs:
            jobs[key] = Job(key)
            self._watcher.made(key)

    def claim(self, tenant: str) -> tuple[str, int] | None:
        self._allow(tenant, State.SERVING)
        for job in self.jobs.get(tenant, {}).values():
            if not job.running and not job.done:
                job.running, job.lease = True, job.lease + 1
                self._watcher.granted(job.key, job.lease)
                return job.key, job.lease
        return None

    def finish(self, tenant: str, key: str, lease: int) -> None:
        self._allow(tenant, *WRITABLE)
        job = self.jobs.get(tenant, {}).get(key)
        if job is None or not job.running or job.lease != lease:
            raise Stale
        job.running, job.done = False, True
        self._watcher.ended(key, lease)
        self._watcher.finished(key)

    def lapse(self, tenant: str) -> None:
        """All leases of the tenant run out."""
        self._allow(tenant, *WRITABLE)
        self._hand_back(tenant)

    def _hand_back(self, tenant: str) -> None:
        for job in self.jobs.get(tenant, {}).values():
            if job.running:
                job.running = False
                self._watcher.ended(job.key, job.lease)

    def _allow(self, tenant: str, *states: State) -> None:
        mark = self.marks.get(tenant)
        if self._rules.marks and (mark is None or mark.state not in states):
            raise Refused

    # for movers: each may be done twice, and is refused once the move is over ---------------------------------------------

    def close(self, tenant: str, move: int) -> None:
        mark = self.marks[tenant]
        if mark.move < move and mark.state is State.SERVING:
            self.marks[tenant] = Mark(State.CLOSING, move)
        elif not self._is(tenant, move, State.CLOSING, State.FROZEN):
            raise Refused

    def leases(self, tenant: str) -> int:
        return sum(job.running for job in self.jobs.get(tenant, {}).values())

    def freeze(self, tenant: str, move: int) -> None:
        """Leases that are still held go back to the queue: their numbers are refused from now on."""
        if self._is(tenant, move, State.CLOSING):
            self._hand_back(tenant)
            self.marks[tenant] = Mark(State.FROZEN, move)
        elif not self._is(tenant, move, State.FROZEN):
            raise Refused

    def arrive(self, tenant: str, move: int) -> None:
        mark = self.marks.get(tenant)
        if mark is None or (mark.state is State.ELSEWHERE and mark.move < move):
            self.marks[tenant] = Mark(State.ARRIVING, move)
            self.jobs.pop(tenant, None)  # of an earlier stay
        elif not self._is(tenant, move, State.ARRIVING):
            raise Refused

    def rows(self, tenant: str) -> list[Job]:
        return [replace(job) for job in self.jobs.get(tenant, {}).values()]

    def put(self, tenant: str, move: int, rows: Sequence[Job]) -> None:
        if not self._is(tenant, move, State.ARRIVING):
            raise Refused
        self.jobs.setdefault(tenant, {}).update({job.key: replace(job) for job in rows})

    def leave(self, tenant: str, move: int) -> None:
        if self._is(tenant, move, State.CLOSING, State.FROZEN):
            self.marks[tenant] = Mark(State.ELSEWHERE, move)
        elif not self._is(tenant, move, State.ELSEWHERE):
            raise Refused

    def serve(self, tenant: str, move: int) -> None:
        if self._is(tenant, move, State.ARRIVING):
            self.marks[tenant] = Mark(State.SERVING, move)
        elif not self._is(tenant, move, State.SERVING):
            raise Refused

    def resume(self, tenant: str, move: int) -> None:
        """Undo at the source, also if nothing was done yet: a mover that is late with its first step is refused then."""
        if self.marks[tenant].move <= move or not self._rules.numbers:
            self.marks[tenant] = Mark(State.SERVING, move)

    def abandon(self, tenant: str, move: int) -> None:
        """Undo at the target."""
        mark = self.marks.get(tenant)
        if mark is None or mark.move < move or self._is(tenant, move, State.ARRIVING):
            self.marks[tenant] = Mark(State.ELSEWHERE, move)
            self.jobs.pop(tenant, None)

    def sweep(self, tenant: str) -> None:
        """Delete later: the rows of a tenant that is elsewhere. The mark stays."""
        if self._is(tenant, self.marks[tenant].move, State.ELSEWHERE):
            self.jobs.pop(tenant, None)

    def announce_layout(self, layout: int) -> list[str]:
        """From now on no node with an older list of clusters makes a tenant here. Return the tenants that are known."""
        self.layout = max(self.layout, layout)
        return list(self.marks)

    def _is(self, tenant: str, move: int, *states: State) -> bool:
        mark = self.marks.get(tenant)
        return mark is not None and mark.state in states and (mark.move == move or not self._rules.numbers)


@dataclass
class Move:
    number: int
    tenant: str
    source: str
    target: str
    forward: bool | None = None  # not decided yet
    over: bool = False


@dataclass
class Directory:
    """A small database beside the clusters: the map, and the moves."""

    map: TenantMap
    rules: Rules
    moves: list[Move] = field(default_factory=list)

    def announce(self, tenant: str, target: str) -> Move:
        source = self.map.home(tenant)
        if source == target or any(move.tenant == tenant and not move.over for move in self.moves):
            raise Refused
        self.moves.append(Move(len(self.moves) + 1, tenant, source, target))
        return self.moves[-1]

    def decision(self, move: Move) -> bool | None:
        return move.forward

    def decide(self, move: Move, forward: bool) -> bool:
        """Return what was decided: by this call, or by an earlier one."""
        if move.forward is None or not self.rules.decide_once:
            move.forward = forward
        return forward if not self.rules.decide_once else move.forward

    def finish(self, move: Move) -> None:
        if not move.over:
            move.over = True
            if move.forward:
                self.map = self.map.with_home(move.tenant, move.target)

    def add_cluster(self, name: str, layout: int, tenants: Sequence[str]) -> None:
        if self.map.layout < layout:
            self.map = self.map.with_cluster(name, tenants)


Call = Callable[..., Any]  # reaches a database: calls the method, or fails before it or after it


def move_tenant(
    move: Move, directory: Directory, clusters: Mapping[str, Cluster], call: Call, patience: int
) -> Generator[None, None, None]:
    """All steps of a move. Each yield is a place where the mover may die, or another mover may overtake it.

    A mover that takes over begins again: whatever was done is found done.
    """
    source, target, tenant, number = clusters[move.source], clusters[move.target], move.tenant, move.number
    yield
    forward = call(directory.decision, move)
    if forward is None:
        try:
            is_whole = yield from _copy(move, source, target, call, patience, directory.rules)
        except Refused:  # another mover is ahead, and has decided
            is_whole = False
        yield
        forward = call(directory.decide, move, is_whole)
    steps = (source.leave, target.serve) if forward else (target.abandon, source.resume)
    for step in steps:
        yield
        call(step, tenant, number)
    yield
    call(directory.finish, move)


def _copy(
    move: Move, source: Cluster, target: Cluster, call: Call, patience: int, rules: Rules
) -> Generator[None, None, bool]:
    """Close, drain, freeze, copy, verify. Return whether the copy is whole."""
    tenant, number = move.tenant, move.number
    yield
    call(source.close, tenant, number)
    for _ in range(patience):
        yield
        if not call(source.leases, tenant):
            break
    if rules.freeze:
        yield
        call(source.freeze, tenant, number)
    yield
    call(target.arrive, tenant, number)
    yield
    rows: list[Job] = call(source.rows, tenant)
    for start in range(0, len(rows), BATCH):
        yield
        call(target.put, tenant, number, rows[start : start + BATCH])
    yield
    there = call(target.rows, tenant)
    yield
    return not rules.verify or _sorted(call(source.rows, tenant)) == _sorted(there)


def _sorted(rows: list[Job]) -> list[Job]:
    return sorted(rows, key=lambda job: job.key)


def add_cluster(
    cluster: Cluster, directory: Directory, clusters: Mapping[str, Cluster], call: Call
) -> Generator[None, None, None]:
    """The list of clusters is changed when no node with the old one can make a tenant any more."""
    layout = cluster.layout
    tenants: list[str] = []
    for each in clusters.values():
        yield
        tenants += call(each.announce_layout, layout)
    yield
    call(directory.add_cluster, cluster.name, layout, tenants)
