"""What goes wrong, with the exit code that systemd, and so the controller, is told."""

from enum import IntEnum


class Exit(IntEnum):
    """Of the dispatcher up to 21, of the steps from 30. maintenance/README.md says the same to operators."""

    OK = 0
    FAILED = 1  # a step, for a reason that has no code of its own
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
    """Its message is for the operator: it never holds a secret."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


class ToldToStop(Trouble):
    """The controller wants nothing more from this boot: no report may follow, it would be about somebody else's work."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the controller says no: {reason}", Exit.TOLD_TO_STOP)
