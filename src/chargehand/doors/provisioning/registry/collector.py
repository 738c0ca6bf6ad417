"""Garbage collection: whatever no tag leads to goes when its grace is over.

What is kept: every tagged manifest, every manifest pushed or untagged within the grace, and all that hangs on those (reach.py),
in every repository of every tenant, however deep its name. It runs beside pushes and on several nodes at once. The moment that counts is taken
while nobody writes: a push before it is seen by the look around, and one after it has made all that it refers to younger than
what is removed. Each removal looks at the age again, alone at the directory.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from chargehand.doors.provisioning.registry.disk import ALONE, listed, stamped_at, translated
from chargehand.doors.provisioning.registry.layout import LAYERS, MANIFESTS, REFERRERS, TAGS, UPLOADS, Layout
from chargehand.doors.provisioning.registry.names import is_hex
from chargehand.doors.provisioning.registry.reach import reach
from chargehand.doors.provisioning.registry.shelves import Shelf, Shelves
from chargehand.engine.job import SECOND
from chargehand.observability.logs import get_logger

PROGRESS_SECONDS = 30.0  # between two lines in the log

log = get_logger(__name__)


class Collected(msgspec.Struct, kw_only=True):
    """What a collection looked at, and what it removed."""

    repositories: int = 0
    kept_blobs: int = 0
    manifests: int = 0
    links: int = 0  # of blobs that a repository no longer has
    blobs: int = 0
    bytes: int = 0
    uploads: int = 0
    seconds: float = 0.0


class Collector:
    def __init__(
        self,
        layout: Layout,
        shelves: Shelves,
        *,
        grace_seconds: float,
        upload_seconds: float,
        now: Callable[[], int],
    ) -> None:
        self._layout = layout
        self._shelves = shelves
        self._grace = int(grace_seconds * SECOND)
        self._upload = int(upload_seconds * SECOND)
        self._now = now

    async def collect(self) -> Collected:
        began = told = time.monotonic()
        counts, kept = Collected(), set[str]()
        now = await asyncio.to_thread(self._moment)
        repositories = await asyncio.to_thread(self._repositories)
        for shelf, name in repositories:
            await asyncio.to_thread(self._sweep_repository, shelf, name, now, kept, counts)
            counts.repositories += 1
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                log.info("the registry is being tidied up", repositories=counts.repositories, of=len(repositories))
        for directory in await asyncio.to_thread(self._directories):
            await asyncio.to_thread(self._sweep_blobs, directory, now - self._grace, kept, counts)
        await asyncio.to_thread(self._sweep_drafts, now - self._upload)
        counts.kept_blobs = len(kept)
        counts.seconds = round(time.monotonic() - began, 3)
        tell = log.info if counts.manifests or counts.links or counts.blobs or counts.uploads else log.debug
        tell("the registry was tidied up", **msgspec.structs.asdict(counts))
        return counts

    @translated()
    def _moment(self) -> int:
        with self._layout.locked(ALONE):
            return self._now()

    @translated()
    def _repositories(self) -> list[tuple[Shelf, str]]:
        return [(shelf, name) for shelf in self._shelves.all() for name in shelf.layout.names()]

    @translated()
    def _directories(self) -> list[Path]:
        """Of blobs, one for each beginning of a digest."""
        return [Path(entry.path) for entry in listed(self._layout.blobs) if entry.is_dir()]

    # one repository ---------------------------------------------------------------------------------------------------

    @translated()
    def _sweep_repository(self, shelf: Shelf, name: str, now: int, kept: set[str], counts: Collected) -> None:
        before, layout = now - self._grace, shelf.layout
        manifests = layout.digits_in(name, MANIFESTS)
        young = {entry.name for entry in manifests if not _is_old(Path(entry.path), before)}
        marked = reach(layout, name, shelf.manifests.tagged(name) | young)
        kept |= marked.manifests | marked.blobs
        for entry in manifests:
            if entry.name not in marked.manifests:
                if self._remove_manifest(shelf, name, entry.name, before):
                    counts.manifests += 1
                else:
                    kept.add(entry.name)
        for entry in layout.digits_in(name, LAYERS):
            if entry.name not in marked.blobs:
                if self._remove(Path(entry.path), before):
                    counts.links += 1
                else:
                    kept.add(entry.name)
        counts.uploads += shelf.uploads.expire(name, now - self._upload)
        self._prune(layout, layout.repository(name))

    def _remove_manifest(self, shelf: Shelf, name: str, digits: str, before: int) -> bool:
        with self._layout.locked(ALONE):
            if not _is_old(shelf.layout.manifest(name, digits), before):
                return False
            shelf.manifests.forget(name, digits)
            return True

    def _prune(self, layout: Layout, directory: Path) -> None:
        """Removes what is empty now, up to the first directory that is not. A writer makes its directory under the lock."""
        empty = [REFERRERS, *(f"{REFERRERS}/{each.name}" for each in listed(directory / REFERRERS))]
        with self._layout.locked(ALONE):
            for part in (LAYERS, MANIFESTS, TAGS, UPLOADS, *reversed(empty)):
                _remove_empty(directory / part)
            while directory != layout.repositories and _remove_empty(directory):
                directory = directory.parent

    # bytes ------------------------------------------------------------------------------------------------------------

    @translated()
    def _sweep_blobs(self, directory: Path, before: int, kept: set[str], counts: Collected) -> None:
        for entry in listed(directory):
            if is_hex(entry.name) and entry.name not in kept:
                with contextlib.suppress(FileNotFoundError):
                    size = entry.stat().st_size
                    if self._remove(Path(entry.path), before):
                        counts.blobs += 1
                        counts.bytes += size

    @translated()
    def _sweep_drafts(self, before: int) -> None:
        """What writers that died left behind."""
        for entry in listed(self._layout.drafts):
            self._remove(Path(entry.path), before)

    def _remove(self, path: Path, before: int) -> bool:
        if not _is_old(path, before):
            return False
        with self._layout.locked(ALONE):
            if not _is_old(path, before):
                return False
            path.unlink(missing_ok=True)
            return True


def _is_old(path: Path, before: int) -> bool:
    """What is gone is not old: somebody else has removed it."""
    try:
        return stamped_at(path.stat()) <= before
    except FileNotFoundError:
        return False


def _remove_empty(directory: Path) -> bool:
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True
