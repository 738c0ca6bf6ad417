"""Errors and their exit codes, which systemd passes to the controller."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes: the dispatcher's up to 21, the steps' from 30. maintenance/README.md documents them."""

    OK = 0
    FAILED = 1  # a step failed for a reason without its own code
    USAGE = 2
    NO_MEDIUM = 10
    MEDIUM_UNREADABLE = 11
    NO_SCHEMA = 12
    RECIPE_UNREADABLE = 13
    RECIPE_INVALID = 14
    RUN_NOT_WRITABLE = 15
    SYSTEMCTL = 16
    NOT_ROOT = 17
    WRONG_MACHINE = 18
    TOLD_TO_STOP = 19
    UNEXPECTED = 20
    UNREACHABLE = 21
    COMMAND = 30
    DISK = 31
    REGISTRY = 32
    DIGEST = 33
    IMAGE = 34


class Trouble(Exception):
    """An error with a message for the operator, which never holds a secret."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


class ToldToStop(Trouble):
    """The controller refuses this boot: no report may follow, because another boot owns the job."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the controller refuses: {reason}", Exit.TOLD_TO_STOP)
