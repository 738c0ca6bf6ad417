"""Programs of Debian packages that the cluster consists of: where they are, and one as a process."""

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import psutil  # type: ignore[import-untyped]

PACKAGES = {"patroni": "patroni", "etcd": "etcd-server", "postgres": "postgresql"}
DEBIAN = Path("/usr/lib/postgresql")  # a folder for each major version; none of them is on the PATH
USER = "postgres"  # made by the package; neither PostgreSQL nor Patroni runs as root


def postgres_folder() -> Path | None:
    found = sorted(DEBIAN.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def missing() -> str:
    """Return a sentence about what is not installed, or nothing."""
    there = {"patroni": shutil.which("patroni"), "etcd": shutil.which("etcd"), "postgres": postgres_folder()}
    absent = [name for name, place in there.items() if place is None]
    packages = " ".join(PACKAGES[name] for name in absent)
    return f"not installed: {', '.join(absent)} (on Debian: apt install {packages})" if absent else ""


def run_as() -> str | None:
    return USER if os.geteuid() == 0 else None


def give_away(path: Path) -> None:
    """Make a file or folder that of the user whom the programs run as."""
    if (user := run_as()) is not None:
        owner = pwd.getpwnam(user)
        os.chown(path, owner.pw_uid, owner.pw_gid)


class Program:
    """A process that can be started again. What it starts itself is not ended with it."""

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self._command = command
        self._folder = folder
        self._log_file = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        user = run_as()
        # Nothing of this Python's environment: Patroni is written in Python and has its own.
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self._folder), "LC_ALL": "C.UTF-8"}
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=user,
                group=user,
                extra_groups=[] if user else None,
                start_new_session=True,  # a Ctrl-C is for the test, which ends them in order
            )

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all below it; the process itself first, so that it cannot start others meanwhile."""
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
