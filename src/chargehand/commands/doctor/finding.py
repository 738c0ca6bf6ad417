"""What a check found: whether it is well, what was seen, and what to do if it is not."""

from enum import StrEnum

import msgspec


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(msgspec.Struct, frozen=True):
    check: str
    state: State
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, State.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    return Finding(check, State.WARNING, text, advice)


def failed(check: str, text: str, advice: str) -> Finding:
    return Finding(check, State.FAILED, text, advice)
