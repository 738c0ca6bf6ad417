"""Paths inside a tree that is the root of another system.

Its links mean its own root: an absolute one, followed by us, would lead to the maintenance system's files instead.
"""

import os
from pathlib import Path

from provision.errors import Exit, Trouble

MAX_LINKS = 40


def inside(root: Path, path: str) -> Path:
    """Where `path` lies when `root` is the root; what does not exist yet is no link."""
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
