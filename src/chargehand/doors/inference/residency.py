"""Which model may use which target now. Pure: the ledgers hold the state, `choose` returns the next step.

The rule: jobs whose model is in memory go first, by priority, then age. A model is evicted only when no job waits for it, or when
a job for another model is more urgent or has waited for the cap; before it is evicted it gets no new work and what runs on it ends.
The cap counts from when the model was last served, not from when its oldest job came: a backlog that is older than the cap swaps
models once a cap, not once a job.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from chargehand.doors.inference.names import canonical, is_cloud

TRUST_SECONDS = 5.0  # how long a target's list of resident models counts as fresh
USED_SECONDS = 1.0  # a model that answered so recently is still in memory
DOUBT_SECONDS = 1.0  # so near to its expiry a model may be gone
BY_HAND = "@"  # prefix of a reason for closing that is not a model


class LoadedModel(msgspec.Struct, frozen=True):
    name: str
    digest: str = ""
    expires_at: float | None = None  # Unix seconds by the target's clock
    context_length: int | None = None
    size: int = 0
    size_vram: int = 0


class TargetLedger:
    """What one target has in memory, and what we gave it to do. All changes of residency are made here."""

    def __init__(
        self,
        name: str,
        slots: int,
        parallel: int,
        models: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.slots = slots
        self.parallel = parallel
        self.up = False
        self.installed: dict[str, str] | None = None  # canonical name -> digest; None: never seen
        self.resident: dict[str, LoadedModel] = {}
        self.opening: dict[str, float] = {}  # model -> since when it is being loaded
        self.closing: dict[str, str] = {}  # model that gets no new work -> the model wanted in its place, or a reason
        self.in_flight: dict[str, int] = {}
        self.cramped: set[str] = set()  # did not fit beside others: loaded alone the next time
        self.missing: set[str] = set()  # the target answered 404 for it, whatever it lists
        self.seen_at = float("-inf")
        self._allowed = frozenset(map(canonical, models))
        self._used_at: dict[str, float] = {}
        self._clock = clock
        self._wall = wall

    # reading ----------------------------------------------------------------------------------------------------------

    def may_have(self, model: str) -> bool:
        """Return whether the target may have the model, as far as is known."""
        if not self.permits(model) or model in self.missing:
            return False
        return self.installed is None or model in self.installed or is_cloud(model)

    def permits(self, model: str) -> bool:
        return not self._allowed or model in self._allowed

    def offers(self, model: str) -> bool:
        return self.up and self.installed is not None and self.may_have(model)

    def holds(self, model: str) -> bool:
        return (model in self.resident and model not in self.cramped) or is_cloud(model)

    def trusts(self, model: str) -> bool:
        """Return whether what is known about this model is fresh enough to act on."""
        if is_cloud(model) or self.in_flight.get(model):
            return True
        now = self._clock()
        if now - self._used_at.get(model, float("-inf")) < USED_SECONDS:
            return True
        return now - self.seen_at < TRUST_SECONDS and not self.expires(model)

    def expires(self, model: str) -> bool:
        """Return whether the model may expire just now. One that is listed long after its expiry is in use."""
        expires_at = self.resident[model].expires_at if model in self.resident else None
        return expires_at is not None and abs(expires_at - self._wall()) <= DOUBT_SECONDS

    def room(self, model: str) -> int:
        """Return how many more requests the model takes now."""
        if not self.offers(model) or not self.holds(model) or model in self.closing or model in self.opening:
            return 0
        return max(0, self.parallel - self.in_flight.get(model, 0))

    def runners(self) -> list[list[str]]:
        """Return the models in memory, grouped: names of the same weights share a runner."""
        runners: dict[str, list[str]] = {}
        for name, resident in self.resident.items():
            runners.setdefault(resident.digest or name, []).append(name)
        return list(runners.values())

    def free_slots(self) -> int:
        return self.slots - len(self.runners()) - len(self.opening.keys() - self.resident.keys())

    def idle_seconds(self, model: str) -> float:
        return self._clock() - self._used_at.get(model, float("-inf"))

    # changing ---------------------------------------------------------------------------------------------------------

    def enter(self, model: str) -> None:
        self.in_flight[model] = self.in_flight.get(model, 0) + 1

    def leave(self, model: str, *, used: bool = False) -> None:
        left = self.in_flight.pop(model, 1) - 1
        if left > 0:
            self.in_flight[model] = left
        if used:
            self._used_at[model] = self._clock()

    def loaded(self, model: str) -> None:
        if not is_cloud(model):
            self.resident.setdefault(model, LoadedModel(model))
        self._used_at[model] = self._clock()
        self.cramped.discard(model)

    def unloaded(self, model: str) -> None:
        self.resident.pop(model, None)
        self.closing.pop(model, None)
        self._used_at.pop(model, None)

    def saw(self, resident: Mapping[str, LoadedModel]) -> None:
        """Replace what is known by the target's own list: others use the target too, and idle models expire."""
        self.resident = dict(resident)
        self.seen_at = self._clock()

    def lost(self) -> None:
        """The target is away: forget its memory."""
        self.up = False
        self.resident.clear()
        self.closing.clear()
        self._used_at.clear()
        self.seen_at = float("-inf")


def why_closed(wanted: str | None) -> str | None:
    """Say why a model gets no new work, from what the ledger has in `closing`."""
    if wanted is None:
        return None
    return wanted.removeprefix(BY_HAND) if wanted.startswith(BY_HAND) else f"{wanted} is loaded in its place"


# deciding -------------------------------------------------------------------------------------------------------------


class Want(msgspec.Struct):
    """The jobs that wait for one model. They wait since the oldest came, or since the model was last served."""

    model: str
    ready: int
    priority: int
    waited_seconds: float


class Admit(msgspec.Struct, frozen=True):
    """The model is in memory and has room: give it a job."""

    target: str
    model: str


class Load(msgspec.Struct, frozen=True):
    """Claim a job, unload `evict`, load the model, run the job."""

    target: str
    model: str
    evict: tuple[str, ...]
    reason: str


class Close(msgspec.Struct, frozen=True):
    """Give `model` no new work, so that it can be unloaded once what runs on it has ended."""

    target: str
    model: str
    wanted: str
    reason: str


class Ask(msgspec.Struct, frozen=True):
    """No target lists the model: ask one, so that a target answers and not we."""

    target: str
    model: str


Step = Admit | Load | Close | Ask


def in_turn(wants: Iterable[Want], cap_seconds: float) -> list[Want]:
    """Sort by priority, then age; but models that have waited for the cap come first."""

    def turn(want: Want) -> tuple[bool, int, float]:
        late = want.waited_seconds >= cap_seconds
        return not late, 0 if late else -want.priority, -want.waited_seconds

    return sorted(wants, key=turn)


def reopen(wants: Mapping[str, Want], ledgers: Sequence[TargetLedger]) -> None:
    """Open models again that were closed for a model that no longer waits, or is in memory by now."""
    served = {model for ledger in ledgers for model in ledger.opening.keys() | ledger.resident.keys()}
    for ledger in ledgers:
        for model, wanted in list(ledger.closing.items()):
            gone = wanted not in wants or wanted in served
            if gone and wanted not in ledger.opening and not wanted.startswith(BY_HAND):
                del ledger.closing[model]


def choose(want: Want, wants: Mapping[str, Want], ledgers: Sequence[TargetLedger], cap_seconds: float) -> Step | None:
    """Return the next step for the jobs of one model; None if they must wait. The first targets are preferred."""
    model = want.model
    homes = [ledger for ledger in ledgers if ledger.offers(model)]
    if not homes:
        return _ask(model, ledgers)
    for ledger in homes:
        if ledger.room(model) > 0:
            return Admit(ledger.name, model)
    if any(model in ledger.opening for ledger in homes):
        return None
    cold = [ledger for ledger in homes if not ledger.holds(model)]
    for ledger in cold:
        if ledger.free_slots() > 0 and model not in ledger.cramped:
            return Load(ledger.name, model, (), f"{model} has a free slot on {ledger.name}")
    if len(cold) < len(homes):
        return None  # it is in memory and busy: the jobs wait for their turn
    steps = [_make_room(want, wants, ledger, cap_seconds) for ledger in cold]
    if any(model in ledger.closing.values() for ledger in cold):
        steps = [
            step for step in steps if isinstance(step, Load)
        ]  # room is being made for it already: not on a second target too
    return min((step for step in steps if step), key=lambda step: not isinstance(step, Load), default=None)


def _ask(model: str, ledgers: Sequence[TargetLedger]) -> Step | None:
    """Ask a target that is up, but not while one that is away may have the model."""
    if any(not ledger.up and ledger.may_have(model) for ledger in ledgers):
        return None
    for ledger in [ledger for ledger in ledgers if ledger.permits(model)] or ledgers:
        if ledger.up and ledger.installed is not None and not ledger.in_flight.get(model):
            return Ask(ledger.name, model)
    return None


def _make_room(want: Want, wants: Mapping[str, Want], ledger: TargetLedger, cap_seconds: float) -> Step | None:
    alone = want.model in ledger.cramped
    others = [names for names in ledger.runners() if want.model not in names]
    needed = len(others) if alone else 1 - ledger.free_slots()
    if alone and ledger.opening:
        return None

    def free(names: list[str]) -> bool:
        return all(ledger.closing.get(name, want.model) == want.model and name not in ledger.opening for name in names)

    def dear(names: list[str]) -> tuple[bool, tuple[int, bool, float]]:
        closed = any(name in ledger.closing for name in names)  # for this want already
        return not closed, max(_dearness(name, wants, ledger) for name in names)

    chosen = sorted(filter(free, others), key=dear)[:needed]
    if len(chosen) < needed:
        return None
    victims = [name for names in chosen for name in names]
    reasons = [_may_evict(want, wants.get(name), cap_seconds) for name in victims if name not in ledger.closing]
    if not all(reasons):
        return None
    instead = (
        f" in place of {', '.join(victims)}: {(reasons or ['it has ended'])[0]}" if victims else ": it needs all of it"
    )
    reason = f"{want.model} is loaded on {ledger.name}{instead}"
    for name in victims:
        if ledger.in_flight.get(name):
            return None if name in ledger.closing else Close(ledger.name, name, want.model, reason)
    return Load(ledger.name, want.model, tuple(victims), reason)


def _dearness(model: str, wants: Mapping[str, Want], ledger: TargetLedger) -> tuple[int, bool, float]:
    """Rank a runner for eviction: not wanted first, then the least urgent, the idle, the longest idle."""
    want = wants.get(model)
    urgency = want.priority + 1 if want is not None and want.ready else 0
    return urgency, bool(ledger.in_flight.get(model)), -ledger.idle_seconds(model)


def _may_evict(want: Want, rival: Want | None, cap_seconds: float) -> str:
    """Return why the runner may be evicted, or "" if it may not."""
    if rival is None or not rival.ready:
        return "nobody waits for it"
    if want.priority > rival.priority:
        return f"priority {want.priority} goes before {rival.priority}"
    if want.waited_seconds >= cap_seconds:
        return f"it has waited {want.waited_seconds:.0f} s, the cap is {cap_seconds:.0f} s"
    return ""
