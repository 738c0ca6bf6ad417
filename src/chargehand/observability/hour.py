"""The last hour in memory: one value for each minute in which something happened."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

MINUTES = 60

T = TypeVar("T")


class LastHour(Generic[T]):
    """Minutes are numbered from the epoch of whatever clock the caller has."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}

    def at(self, minute: int) -> T:
        """Return the value of this minute, a new one if there is none yet. A new minute drops what is an hour older."""
        value = self._values.get(minute)
        if value is None:
            self.forget(minute)
            value = self._values[minute] = self._make()
        return value

    def forget(self, now: int) -> None:
        """Drop the minutes that are no part of the hour that ends with this one."""
        for minute in [each for each in self._values if each <= now - MINUTES]:
            del self._values[minute]

    def until(self, now: int) -> list[T | None]:
        """Return sixty values, the last one for this minute; None where nothing happened."""
        return [self._values.get(minute) for minute in range(now - MINUTES + 1, now + 1)]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)
