"""Query systemd about our units: which of them failed by itself, and its log."""

from collections.abc import Mapping
from dataclasses import dataclass

from provision.run import CommandFailed, run

DISPATCHER = "provision-dispatcher.service"
STEPS = (
    "partition",
    "image-linux",
    "bootloader-linux",
    "config-drive",
    "image-windows",
    "bootloader-windows",
    "firmware",
)
UNITS = (DISPATCHER, *(f"{name}.service" for name in STEPS))
TAIL_LINES = 200
_EXITED, _KILLED = "1", ("2", "3")  # CLD_EXITED; CLD_KILLED, CLD_DUMPED
TAIL_CHARACTERS = 16_384


@dataclass(frozen=True)
class State:
    result: str
    exit_code: int | None
    signal: int | None = None  # the signal that ended it, if there is no exit code

    @property
    def failed(self) -> bool:
        """Did it fail by itself? A unit that was not started because another one failed has the result success."""
        return self.result not in ("", "success")


def state(unit: str) -> State:
    return states(unit)[unit]


def states(*units: str) -> dict[str, State]:
    """Return the states of all units with one call: each call takes a second on a slow machine."""
    try:
        asked = ["systemctl", "show", "--property=Id,Result,ExecMainCode,ExecMainStatus", *units]
        output = run(asked, timeout=30, quiet=True).output
    except CommandFailed:
        output = ""
    found = {}
    for block in output.split("\n\n"):
        said = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        found[said.get("Id", "")] = _state(said)
    return {unit: found.get(unit, State("", None)) for unit in units}


def _state(said: Mapping[str, str]) -> State:
    how, status = said.get("ExecMainCode", ""), said.get("ExecMainStatus", "")
    number = int(status) if status.isdigit() else None
    return State(
        said.get("Result", ""),
        number if how == _EXITED else None,
        number if how in _KILLED else None,
    )


def bystander(unit: str) -> str | None:
    """Return the failed unit because of which this one was not started; None if this one failed itself."""
    known = states(unit, *UNITS)
    if known[unit].failed:
        return None
    return next((each for each in UNITS if known[each].failed), None)


def tail(*units: str) -> str:
    """Return the end of the units' logs of this boot; "" if there is no journal."""
    chosen = [argument for unit in units for argument in ("--unit", unit)]
    try:
        output = run(
            ["journalctl", "--boot", "--no-pager", "--quiet", "--output", "cat", "--lines", str(TAIL_LINES), *chosen],
            timeout=20,
            quiet=True,
        ).output
    except CommandFailed:
        return ""
    return output[-TAIL_CHARACTERS:]
