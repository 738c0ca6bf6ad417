"""Memory and CPU time of a server process, as the kernel counts them, so that a busy machine does not matter."""

from collections.abc import Iterable
from pathlib import Path

PEAK = "5"  # resets the peak


class Memory:
    """Measures by how much the processes' peaks exceed their present size."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._before = {}
        for pid in pids:
            Path(f"/proc/{pid}/clear_refs").write_text(PEAK)
            self._before[pid] = _bytes(pid, "VmRSS")

    def grown(self) -> list[int]:
        return [max(0, _bytes(pid, "VmHWM") - before) for pid, before in self._before.items()]


def _bytes(pid: int, name: str) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def loop_seconds(pid: int) -> float:
    """Return the CPU time of the main thread, which runs the event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
