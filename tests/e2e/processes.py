"""What a server process costs, as the kernel counts it: no clock of a busy machine comes into it."""

from collections.abc import Iterable
from pathlib import Path

PEAK = "5"  # what the kernel wants to hear to forget the peak


class Memory:
    """How far the processes grow, each at its worst, above what they have now."""

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
    """CPU time of the main thread, where the event loop runs."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
