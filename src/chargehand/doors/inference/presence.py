"""When a target came and went in the last day, as this process saw it."""

from collections import deque

import msgspec

DAY_SECONDS = 86_400.0
MAX_CHANGES = 500  # a target that comes and goes all the time has a shorter history


class PresenceChange(msgspec.Struct, frozen=True):
    at: float
    up: bool


class TargetPresence:
    def __init__(self) -> None:
        self._changes: deque[PresenceChange] = deque(maxlen=MAX_CHANGES)

    def note(self, up: bool, at: float) -> None:
        if not self._changes or self._changes[-1].up != up:
            self._changes.append(PresenceChange(at, up))

    def since(self, now: float) -> list[PresenceChange]:
        """Return the changes of the last day, and the one before them, which says how the day began."""
        begin = now - DAY_SECONDS
        recent = [change for change in self._changes if change.at > begin]
        before = [change for change in self._changes if change.at <= begin]
        return [*before[-1:], *recent]
