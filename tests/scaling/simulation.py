"""Nodes with old maps, tenants that move, and everything that can die, in an order that a seed decides. A checker watches.

One step of one actor at a time; what happens between two steps of an actor is whatever the others do. A call to a database may fail
before it was carried out, or after it, with its answer lost.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from random import Random
from typing import Any

from tests.scaling.placement import TenantMap
from tests.scaling.protocol import (
    WRITABLE,
    Cluster,
    Directory,
    Move,
    Refused,
    Rules,
    Stale,
    State,
    add_cluster,
    move_tenant,
)

TENANTS = ["ada", "bob", "cleo", "gus", "kim"]  # the last three go to "three" once it is there
NODES, SUBMITTERS, WORKERS, MOVERS = 3, 1, 4, 5
STEPS = 800
SETTLE_STEPS = 10_000
DOWN_STEPS = 40  # of a database that does not answer
STALL_STEPS = 150  # of an actor that is held up, and then goes on as if nothing had happened
Actor = Generator[None, None, None]


class Broken(Exception):
    """An invariant does not hold."""


class Lost(Exception):
    """No answer."""


class Checker:
    """Knows every job that was made, every lease that is held, and what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, str] = {}  # submissions: key -> tenant
        self.done: set[str] = set()
        self.held: dict[str, int] = {}  # key -> lease
        self._made: set[str] = set()

    def made(self, key: str) -> None:
        if key in self._made:
            raise Broken(f"{key} was made twice, in two places or after it was lost")
        self._made.add(key)

    def granted(self, key: str, lease: int) -> None:
        if key in self.held:
            raise Broken(f"{key} was granted while somebody holds it")
        if key in self.done:
            raise Broken(f"{key} was granted after it was finished")
        self.held[key] = lease

    def ended(self, key: str, lease: int) -> None:
        if self.held.get(key) == lease:
            del self.held[key]

    def finished(self, key: str) -> None:
        if key in self.done:
            raise Broken(f"{key} was finished twice")
        self.done.add(key)

    def look(self, clusters: dict[str, Cluster]) -> None:
        for tenant in TENANTS:
            marks = [cluster.marks.get(tenant) for cluster in clusters.values()]
            if sum(mark is not None and mark.state in WRITABLE for mark in marks) > 1:
                raise Broken(f"two clusters serve {tenant}")

    def look_at_the_end(self, clusters: dict[str, Cluster], directory: Directory) -> None:
        if any(not move.over for move in directory.moves):
            raise Broken("a move has not ended")
        for key, tenant in self.acknowledged.items():
            home = clusters[directory.map.home(tenant)]
            if tenant not in home.marks or home.marks[tenant].state is not State.SERVING:
                raise Broken(f"{tenant} is not served where the map says")
            job = home.jobs.get(tenant, {}).get(key)
            if job is None:
                raise Broken(f"{key} was acknowledged and is lost")
            if job.done != (key in self.done):
                raise Broken(f"{key} was finished, and its end is lost")
            if not job.done:
                raise Broken(f"{key} is never finished")


class Simulation:
    def __init__(self, seed: int, rules: Rules = Rules()) -> None:  # noqa: B008 - it is frozen
        self.seen: Counter[str] = Counter()
        self.checker = Checker()
        self._random = Random(seed)
        self._rules = rules
        names = ("one", "two")
        self.clusters = {name: self._cluster(name, 1) for name in names}
        self.directory = Directory(TenantMap(clusters=names), rules)
        self._maps = [self.directory.map] * NODES  # what each node knows
        self._now = 0  # steps so far
        self._down_until: dict[int, int] = {}  # databases that do not answer, by id
        self._stalled_until: dict[int, int] = {}  # actors, by place
        self._faults = True
        self._accepting = True
        self._keys = 0
        self._actors: list[tuple[Callable[[], Actor], Actor]] = []

    def run(self) -> None:
        """Raise Broken if an invariant does not hold, during the run or after all has settled."""
        makers = [self._submit] * SUBMITTERS + [self._work] * WORKERS + [self._lapse, self._add_a_cluster]
        for make in [*makers, *[self._move] * MOVERS]:
            self._actors.append((make, make()))
        for _ in range(STEPS):
            self._step()
        self._faults = self._accepting = False
        self._down_until.clear()
        self._stalled_until.clear()
        for _ in range(SETTLE_STEPS):
            self._step()
            if self._is_settled():
                break
        self.checker.look_at_the_end(self.clusters, self.directory)

    def _is_settled(self) -> bool:
        return all(move.over for move in self.directory.moves) and self.checker.acknowledged.keys() <= self.checker.done

    def _step(self) -> None:
        self._now += 1
        place = self._random.randrange(len(self._actors))
        if self._stalled_until.get(place, 0) > self._now:
            return
        make, actor = self._actors[place]
        if self._chance(0.02):
            self._strike()
            actor.close()  # and this one dies
        elif self._chance(0.03):
            self._stalled_until[place] = self._now + STALL_STEPS
        try:
            next(actor)
        except (Lost, Refused, Stale, StopIteration):
            self._actors[place] = make, make()
        self.checker.look(self.clusters)

    def _strike(self) -> None:
        """A node dies and comes back with the map of now, and a database stops to answer for a while."""
        self._maps[self._random.randrange(NODES)] = self.directory.map
        database = self._random.choice([self.directory, *self.clusters.values()])
        self._down_until[id(database)] = self._now + DOWN_STEPS
        self.seen["a database stopped to answer"] += 1

    # the network ----------------------------------------------------------------------------------------------------------

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        lost_before, lost_after = self._chance(0.03), self._chance(0.03)
        if lost_before or self._is_down(getattr(method, "__self__", None)):
            raise Lost
        if method.__name__ == "put" and self._chance(0.05):
            self.seen["rows were lost on the way"] += 1
            arguments = (*arguments[:-1], arguments[-1][1:])
        answer = method(*arguments)
        if lost_after:
            self.seen["an answer was lost"] += 1
            raise Lost
        return answer

    def _is_down(self, database: object) -> bool:
        return self._down_until.get(id(database), 0) > self._now

    def _chance(self, probability: float) -> bool:
        return self._faults and self._random.random() < probability

    def _ask(self, tenant: str, method: str, *arguments: object, with_layout: bool = False) -> Any:
        """What a node does with a request: it asks the cluster of its map, and reads the map anew after a refusal."""
        node = self._random.randrange(NODES)
        known = self._maps[node]
        cluster = self.clusters[known.home(tenant)]
        try:
            return self._call(getattr(cluster, method), tenant, *arguments, *((known.layout,) if with_layout else ()))
        except Refused:
            self.seen["a node was refused"] += 1
            self.seen["a node had an old map"] += known.version < self.directory.map.version
            if not self._is_down(self.directory):
                self._maps[node] = self.directory.map
            raise

    # actors ---------------------------------------------------------------------------------------------------------------

    def _submit(self) -> Actor:
        """A caller that sends a submission until it is acknowledged. One that dies leaves its submission in doubt."""
        yield
        self._keys += 1
        tenant = self._random.choice(TENANTS[: 2 + self._keys // 6])  # new ones come in the course of time
        key = f"{tenant}/{self._keys}"
        while self._accepting:
            yield
            try:
                self._ask(tenant, "submit", key, with_layout=True)
            except (Lost, Refused):
                continue
            self.checker.acknowledged[key] = tenant
            self.seen["a job was acknowledged"] += 1
            return
        yield

    def _work(self) -> Actor:
        """A worker, which reports to any node. Sometimes it dies, or its claim's answer is lost: then the lease must lapse."""
        yield
        tenant = self._random.choice(TENANTS)
        claimed = self._ask(tenant, "claim")
        if claimed is None or self._chance(0.1):
            return
        for _ in range(self._random.randrange(8)):
            yield
        while True:
            yield
            try:
                self._ask(tenant, "finish", *claimed)
            except (Lost, Refused):
                continue
            self.seen["a job was finished"] += 1
            return

    def _lapse(self) -> Actor:
        tenant = self._random.choice(TENANTS)
        for cluster in list(self.clusters.values()):
            yield
            with suppress(Refused):
                self._call(cluster.lapse, tenant)

    def _move(self) -> Actor:
        """A mover: it goes on with a move that is there, perhaps beside another mover, or announces one."""
        yield
        open_moves = [move for move in self.directory.moves if not move.over]
        if open_moves and (not self._accepting or self._random.random() < 0.7):
            yield from self._go_on(self._random.choice(open_moves))
        elif self._accepting:
            tenant, target = self._random.choice(TENANTS), self._random.choice(self.directory.map.clusters)
            if tenant not in self.clusters[self.directory.map.home(tenant)].marks:
                return  # a tenant that has never written cannot be moved: it has no mark that could hold it
            yield from self._go_on(self._call(self.directory.announce, tenant, target))

    def _go_on(self, move: Move) -> Actor:
        if self._chance(0.1):
            self._call(self.directory.decide, move, False)  # an operator wants it back
        yield from move_tenant(move, self.directory, self.clusters, self._call, self._random.randrange(6))
        self.seen["a tenant was moved" if move.forward else "a move was taken back"] += 1
        yield
        self._call(self.clusters[move.source].sweep, move.tenant)

    def _add_a_cluster(self) -> Actor:
        yield
        if "three" not in self.directory.map.clusters:
            new = self.clusters.setdefault("three", self._cluster("three", 2))
            yield from add_cluster(new, self.directory, self.clusters, self._call)
            self.seen["a cluster was added"] += 1

    def _cluster(self, name: str, layout: int) -> Cluster:
        return Cluster(name, layout, self.checker, self._rules)
