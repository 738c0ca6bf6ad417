"""Resolve paths inside a tree that is the root of another system.

Its links are relative to its own root: if we followed an absolute one, it would lead to the maintenance system's files.
"""

import os
from pathlib import Path

from provision.errors import Exit, Trouble

MAX_LINKS = 40


def inside(root: Path, path: str) -> Path:
    """Return where `path` is if `root` is the root directory; the path need not exist."""
    parts = [part for part in path.split("/") if part not in ("", ".")][::-1]
    here: list[str] = []
    links = 0
    while parts:
        part = parts.pop()
        if part == "..":
            here = here[:-1]
            continue
        try:
            link = os.readlink(root.joinpath(*here, part))
        except OSError:
            here.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            raise Trouble(f"{path} in the image goes round in links", Exit.IMAGE)
        if link.startswith("/"):
            here = []
        parts.extend(each for each in link.split("/")[::-1] if each not in ("", "."))
    return root.joinpath(*here)
