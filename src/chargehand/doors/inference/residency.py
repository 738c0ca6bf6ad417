"""Which model may use which target now. Pure: the ledgers say what is so, `choose` says what to do next, in one line.

The rule: a job whose model is in memory goes first, the urgent before the others, the old before the new. A model is thrown out
only when nobody waits for it, or somebody more urgent or somebody who has waited for the cap waits for another; and before it is
thrown out it gets no new work and what runs on it ends.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from chargehand.doors.inference.names import canonical, is_cloud

TRUST_SECONDS = 5.0  # how long a target's list of resident models is believed
USED_SECONDS = 1.0  # a model that answered so shortly ago is still there


class Resident(msgspec.Struct, frozen=True):
    name: str
    digest: str = ""
    expires_at: float | None = None  # Unix seconds by the target's clock
    context_length: int | None = None
    size: int = 0
    size_vram: int = 0


class Ledger:
    """What one target has in memory and what we have given it to do. Every change of residency goes through here."""

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
        self.resident: dict[str, Resident] = {}
        self.opening: dict[str, float] = {}  # being loaded, since when
        self.closing: dict[str, str] = {}  # gets no new work -> because of what
        self.in_flight: dict[str, int] = {}
        self.cramped: set[str] = set()  # did not fit beside others: loaded alone the next time
        self.seen_at = float("-inf")
        self._allowed = frozenset(map(canonical, models))
        self._used_at: dict[str, float] = {}
        self._clock = clock
        self._wall = wall

    # what is so -------------------------------------------------------------------------------------------------------

    def may_have(self, model: str) -> bool:
        """Whether the model could be there, as far as is known."""
        allowed = not self._allowed or model in self._allowed
        return allowed and (self.installed is None or model in self.installed or is_cloud(model))

    def offers(self, model: str) -> bool:
        return self.up and self.installed is not None and self.may_have(model)

    def allows(self, model: str) -> bool:
        return self.up and (not self._allowed or model in self._allowed)

    def holds(self, model: str) -> bool:
        return model in self.resident or is_cloud(model)

    def trusts(self, model: str) -> bool:
        """Whether what is known about this model being in memory is fresh enough to be said aloud."""
        if is_cloud(model) or self.in_flight.get(model):
            return True
        now = self._clock()
        if now - self._used_at.get(model, float("-inf")) < USED_SECONDS:
            return True
        resident = self.resident.get(model)
        lasting = resident is None or resident.expires_at is None or resident.expires_at - self._wall() > 1
        return now - self.seen_at < TRUST_SECONDS and lasting

    def room(self, model: str) -> int:
        """How many more requests the model takes now."""
        if not self.up or not self.holds(model) or model in self.closing or model in self.opening:
            return 0
        return max(0, self.parallel - self.in_flight.get(model, 0))

    def free_slots(self) -> int:
        return self.slots - len(self.resident.keys() | self.opening.keys())

    def idle_seconds(self, model: str) -> float:
        return self._clock() - self._used_at.get(model, float("-inf"))

    # what happens -----------------------------------------------------------------------------------------------------

    def enter(self, model: str) -> None:
        self.in_flight[model] = self.in_flight.get(model, 0) + 1

    def leave(self, model: str, *, used: bool = False) -> None:
        left = self.in_flight.pop(model, 1) - 1
        if left > 0:
            self.in_flight[model] = left
        if used:
            self._used_at[model] = self._clock()

    def loaded(self, model: str) -> None:
        self.resident.setdefault(model, Resident(model))
        self._used_at[model] = self._clock()
        self.cramped.discard(model)

    def unloaded(self, model: str) -> None:
        self.resident.pop(model, None)
        self.closing.pop(model, None)
        self._used_at.pop(model, None)

    def saw(self, resident: Mapping[str, Resident]) -> None:
        """The target's own list, which is the truth: others use it too, and what is idle expires."""
        self.resident = dict(resident)
        self.seen_at = self._clock()

    def lost(self) -> None:
        """The target is away: nothing is known about its memory any more."""
        self.up = False
        self.resident.clear()
        self.closing.clear()
        self._used_at.clear()
        self.seen_at = float("-inf")


# what to do next ------------------------------------------------------------------------------------------------------


class Want(msgspec.Struct):
    """What waits for one model."""

    model: str
    ready: int
    priority: int
    waited_seconds: float


class Admit(msgspec.Struct, frozen=True):
    """The model is in memory and has room: give it a job."""

    target: str
    model: str


class Load(msgspec.Struct, frozen=True):
    """Take a job, throw out `evict`, load the model, go on with the job."""

    target: str
    model: str
    evict: tuple[str, ...]
    reason: str


class Close(msgspec.Struct, frozen=True):
    """Give `model` no new work, so that what runs on it ends and it can be thrown out."""

    target: str
    model: str
    wanted: str
    reason: str


class Ask(msgspec.Struct, frozen=True):
    """No target lists the model: ask one, so that the answer is a target's and not ours."""

    target: str
    model: str


Step = Admit | Load | Close | Ask


def choose(want: Want, wants: Mapping[str, Want], ledgers: Sequence[Ledger], cap_seconds: float) -> Step | None:
    """The next step for what waits for one model; None: it waits. Targets are preferred in their order."""
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
        return None  # it is in memory somewhere and busy: its turn comes
    steps = (_make_room(want, wants, ledger, cap_seconds) for ledger in cold)
    return next((step for step in steps if step is not None), None)


def _ask(model: str, ledgers: Sequence[Ledger]) -> Step | None:
    """Not while a target that is away may have it."""
    if any(not ledger.up and ledger.may_have(model) for ledger in ledgers):
        return None
    for ledger in ledgers:
        if ledger.allows(model) and ledger.installed is not None and not ledger.in_flight.get(model):
            return Ask(ledger.name, model)
    return None


def _make_room(want: Want, wants: Mapping[str, Want], ledger: Ledger, cap_seconds: float) -> Step | None:
    needed = len(ledger.resident) if want.model in ledger.cramped else 1 - ledger.free_slots()
    closing = [model for model, wanted in ledger.closing.items() if wanted == want.model and model in ledger.resident]
    open_ones = [model for model in ledger.resident if model not in ledger.closing and model not in ledger.opening]
    victims = (closing + sorted(open_ones, key=lambda model: _dearness(model, wants, ledger)))[: max(needed, 1)]
    if len(victims) < needed or not victims:
        return None
    reasons = [_may_evict(want, wants.get(victim), cap_seconds) for victim in victims if victim not in closing]
    if not all(reasons):
        return None
    reason = (
        f"{want.model} is loaded on {ledger.name} in place of {', '.join(victims)}: {(reasons or ['it has ended'])[0]}"
    )
    for victim in victims:
        if ledger.in_flight.get(victim):
            return None if victim in closing else Close(ledger.name, victim, want.model, reason)
    return Load(ledger.name, want.model, tuple(victims), reason)


def _dearness(model: str, wants: Mapping[str, Want], ledger: Ledger) -> tuple[int, bool, float]:
    """The least dear is thrown out: nobody waits for it, then the least urgent, the idle, the one longest idle."""
    want = wants.get(model)
    urgency = want.priority + 1 if want is not None and want.ready else 0
    return urgency, bool(ledger.in_flight.get(model)), -ledger.idle_seconds(model)


def _may_evict(want: Want, rival: Want | None, cap_seconds: float) -> str:
    """Why it may, or "" when it may not."""
    if rival is None or not rival.ready:
        return "nobody waits for it"
    if want.priority > rival.priority:
        return f"priority {want.priority} goes before {rival.priority}"
    if want.waited_seconds >= cap_seconds:
        return f"it has waited {want.waited_seconds:.0f} s, the cap is {cap_seconds:.0f} s"
    return ""
