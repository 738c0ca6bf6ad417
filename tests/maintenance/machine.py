"""A machine for the agent: a directory as its root, and a stand-in for systemd that records its calls."""

import asyncio
import os
import stat
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.places import Places

AGENT = Path(__file__).parents[2] / "maintenance" / "agent"

# systemctl and journalctl answer from files, and append their arguments to one.
TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >> '{folder}/calls'
case "$(basename "$0") $1" in
  "systemctl show")
    shift 2
    for unit; do
      echo "Id=$unit"
      cat "{folder}/state-$unit" 2>/dev/null || echo "Result=success"
      echo
    done ;;
  journalctl*) cat '{folder}/journal' ;;
  *) [ ! -e '{folder}/broken' ] ;;
esac
"""


@dataclass(frozen=True)
class Ran:
    code: int
    said: str


class Machine:
    def __init__(self, folder: Path, serial: str = "SN-1", system_uuid: str = "") -> None:
        self.root = folder / "machine"
        self.tools = folder / "tools"
        self.places = Places(self.root)
        self.run = self.places.run
        for path in (
            self.places.dmi,
            self.places.blocks,
            self.root / "dev",
            self.root / "proc/sys/kernel/random",
            self.tools,
        ):
            path.mkdir(parents=True)
        (self.places.dmi / "product_serial").write_text(serial + "\n")
        (self.places.dmi / "product_uuid").write_text(system_uuid + "\n")
        (self.tools / "journal").write_text("")
        for name in ("systemctl", "journalctl"):
            tool = self.tools / name
            tool.write_text(TOOL.format(folder=self.tools))
            tool.chmod(0o755)
        self.boot()

    def boot(self) -> None:
        (self.root / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.tools / "calls").write_text("")

    def insert(self, **drives: bytes) -> None:
        for name, content in drives.items():
            (self.places.blocks / name).mkdir(exist_ok=True)
            (self.root / "dev" / name).write_bytes(content)

    def unit(self, name: str, result: str, code: int = 0) -> None:
        """Set the state that systemd reports of a unit: with an exit code, or the signal that ended it."""
        how = 1 if result == "exit-code" else 2
        (self.tools / f"state-{name}").write_text(f"Result={result}\nExecMainCode={how}\nExecMainStatus={code}\n")

    @property
    def calls(self) -> list[str]:
        """Return the calls of systemctl, without queries."""
        lines = (self.tools / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith("systemctl") and " show " not in line]

    def env(self, more: Mapping[str, str] = {}) -> dict[str, str]:
        return {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(AGENT),
            "PROVISION_ROOT": str(self.root),
            "PROVISION_MEDIUM_SECONDS": "-1",
            "PROVISION_CONTROLLER_SECONDS": "0",
            **more,
        }

    async def agent(self, *argv: str, **env: str) -> Ran:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "provision", *argv,
            env=self.env(env), stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return Ran(process.returncode, said.decode())

    def kept(self, name: str) -> Any:
        return self.places.read(name)

    def readable_by_others(self) -> list[str]:
        files = [path for path in self.run.rglob("*") if path.is_file()]
        return [path.name for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077]
