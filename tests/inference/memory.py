"""The peak memory of a server and its children, as the kernel counts it."""

from pathlib import Path

from tests.e2e.server import Server


class Memory:
    def __init__(self, server: Server, *, children: bool = True) -> None:
        self._pids = [server.process.pid, *(child.pid for child in server.children() if children)]
        self._before = 0

    def begin(self) -> None:
        """Reset the peaks to what is in use now."""
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        self._before = self._highest()

    def grown(self) -> int:
        """Return how far the peaks have grown since `begin`, in bytes."""
        return self._highest() - self._before

    def _highest(self) -> int:
        return sum(self._mark(pid) for pid in self._pids)

    def _mark(self, pid: int) -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
