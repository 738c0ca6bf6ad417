"""Run programs as argument lists, in an environment for reproducible output."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

EPOCH = 1_700_000_000  # the timestamp of everything in the image


class BuildFailed(Exception):
    pass


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=_environment(), capture_output=True)
    if done.returncode:
        raise BuildFailed(f"{command[0]} ended with {done.returncode}:\n{_tail(done.stderr)}")
    return done.stdout.decode(errors="replace")


def started(*command: str | Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, env=_environment())


def _environment() -> dict[str, str]:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "http_proxy", "https_proxy") if name in os.environ}
    return {**kept, "PATH": path, "LC_ALL": "C", "TZ": "UTC", "SOURCE_DATE_EPOCH": str(EPOCH), "MTOOLS_SKIP_CHECK": "1"}


def listed(values: Sequence[str]) -> str:
    return ",".join(values)


def _tail(said: bytes) -> str:
    return said.decode(errors="replace")[-4000:]
