"""Plans: sequences of small actions as values. What a step will do can be inspected and tested before it is done."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.errors import Exit, Trouble
from provision.journal import say
from provision.rooted import inside
from provision.run import CommandFailed, run

APPEARS = 30.0


@dataclass(frozen=True)
class Command:
    argv: tuple[str, ...]
    stdin: bytes = b""
    timeout: float = 600
    may_fail: bool = False  # the step goes on if it fails


@dataclass(frozen=True)
class WriteFile:
    """Write a file into the tree at `root`; links in the image cannot lead out of it."""

    root: Path
    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644


@dataclass(frozen=True)
class WaitFor:
    """Wait for a device node, which the kernel creates with a delay."""

    path: str


Action = Command | WriteFile | WaitFor
Plan = Sequence[Action]


def command(*argv: str, stdin: bytes = b"", timeout: float = 600, may_fail: bool = False) -> Command:
    return Command(argv, stdin, timeout, may_fail)


def execute(plan: Plan) -> None:
    for action in plan:
        match action:
            case Command():
                _run(action)
            case WriteFile():
                write(action)
            case WaitFor(path):
                wait_for(path)


def _run(action: Command) -> None:
    try:
        run(action.argv, stdin=action.stdin, timeout=action.timeout)
    except CommandFailed as error:
        if not action.may_fail:
            raise
        say(f"goes on without: {error}")


def write(action: WriteFile) -> None:
    path = inside(action.root, action.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, action.mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, action.mode)
        file.write(action.content)
        file.flush()
        os.fsync(handle)


def wait_for(path: str, seconds: float = APPEARS) -> None:
    limit = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > limit:
            raise Trouble(f"{path} did not appear within {seconds:g} seconds", Exit.DISK)
        time.sleep(0.05)
