"""When a task whose function raised is tried again."""

import random

import msgspec

from chargehand.client.errors import Fail, Retry

MOST_ATTEMPTS = 100


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """`attempts` counts all runs; 0: as many as the server says. Without `first_seconds` the pauses are the server's;
    with it they grow by `factor` up to `most_seconds`, and are shortened by chance, by half at most.

    An exception of `never`, or none of `only`, fails the task at once.
    """

    attempts: int = 0
    first_seconds: float | None = None
    factor: float = 2.0
    most_seconds: float = 900.0
    only: tuple[type[Exception], ...] = (Exception,)
    never: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.attempts <= MOST_ATTEMPTS:
            raise ValueError(f"retry: attempts must be from 0 to {MOST_ATTEMPTS}, not {self.attempts}")
        if self.first_seconds is not None and self.first_seconds < 0:
            raise ValueError(f"retry: first_seconds must not be negative, and is {self.first_seconds:g}")
        if self.factor < 1:
            raise ValueError(f"retry: factor must be 1 or more, not {self.factor:g}")

    def verdict(self, error: Exception, attempt: int) -> Exception:
        """Return what the worker gets to decide about: Fail, Retry, or the error itself."""
        if isinstance(error, Fail | Retry):
            return error
        if isinstance(error, self.never) or not isinstance(error, self.only):
            return Fail(_said(error))
        return error if self.first_seconds is None else Retry(self._pause(attempt), _said(error))

    def _pause(self, attempt: int) -> float:
        longest = (self.first_seconds or 0.0) * self.factor ** min(attempt - 1, 100)
        return min(longest, self.most_seconds) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, hides nothing


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
