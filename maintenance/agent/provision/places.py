"""All paths of the agent. `PROVISION_ROOT` moves them under another root, so that the agent can be tested without root."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.errors import Exit, Trouble


class Places:
    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)
        self.run = self.root / "run/provision"
        self.target = self.run / "target"  # the root of the installed system
        self.dmi = self.root / "sys/class/dmi/id"
        self.efi = self.root / "sys/firmware/efi"
        self.blocks = self.root / "sys/block"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Places":
        return cls(environ.get("PROVISION_ROOT") or "/")

    @property
    def real(self) -> bool:
        return self.root == Path("/")

    def at(self, path: str) -> Path:
        """Return where an absolute path of the machine is."""
        return self.root / path.lstrip("/")

    def device(self, path: str) -> str:
        """Return the kernel's name of a device, with links resolved."""
        found = os.path.realpath(self.at(path))
        return found if self.real else "/" + os.path.relpath(found, os.path.realpath(self.root))

    def boot_id(self) -> str:
        try:
            return self.at("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    # files under /run/provision ---------------------------------------------------------------------------------------

    def read(self, name: str) -> Any:
        """Return a document that the agent wrote; None if there is none."""
        try:
            return json.loads((self.run / name).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Trouble(f"{self.run / name} cannot be read: {type(error).__name__}") from None

    def write(self, name: str, content: bytes | Mapping[str, Any]) -> None:
        """Write a file atomically, readable only by root."""
        try:
            self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.replace(self._temporary(content), self.run / name)
        except OSError as error:
            raise Trouble(f"{self.run / name} cannot be written: {error.strerror}", Exit.RUN_NOT_WRITABLE) from None

    def write_once(self, name: str, content: bytes | Mapping[str, Any]) -> bool:
        """Write a file unless it exists; return False if it did. Of concurrent writers exactly one succeeds, atomically."""
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._temporary(content)
        try:
            os.link(temporary, self.run / name)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        return True

    def forget(self, name: str) -> None:
        (self.run / name).unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        return (self.run / name).exists()

    def _temporary(self, content: bytes | Mapping[str, Any]) -> str:
        data = content if isinstance(content, bytes) else json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"
        path = self.run / f".new-{os.getpid()}"  # importing `tempfile` would take longer than all the rest
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)
        return str(path)
