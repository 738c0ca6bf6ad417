"""The result of a check: its state, what it saw, and what to do."""

from enum import StrEnum

import msgspec


class CheckState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(msgspec.Struct, frozen=True):
    check: str
    state: CheckState
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, CheckState.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    return Finding(check, CheckState.WARNING, text, advice)


def failed(check: str, text: str, advice: str) -> Finding:
    return Finding(check, CheckState.FAILED, text, advice)
