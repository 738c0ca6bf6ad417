"""What systemd knows of our units: which of them failed by itself, and what it wrote."""

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
TAIL_CHARACTERS = 16_384


@dataclass(frozen=True)
class State:
    result: str
    exit_code: int | None

    @property
    def failed(self) -> bool:
        """By itself. A unit that was never started, because another one failed, has the result success."""
        return self.result not in ("", "success")


def state(unit: str) -> State:
    try:
        output = run(["systemctl", "show", "--property=Result,ExecMainStatus,ActiveState", unit], timeout=30).output
    except CommandFailed:
        return State("", None)
    said = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    code = said.get("ExecMainStatus", "")
    return State(said.get("Result", ""), int(code) if code.isdigit() else None)


def tail(*units: str) -> str:
    """The end of what they wrote in this boot; nothing where there is no journal."""
    chosen = [argument for unit in units for argument in ("--unit", unit)]
    try:
        output = run(
            ["journalctl", "--boot", "--no-pager", "--quiet", "--output", "cat", "--lines", str(TAIL_LINES), *chosen],
            timeout=20,
        ).output
    except CommandFailed:
        return ""
    return output[-TAIL_CHARACTERS:]
