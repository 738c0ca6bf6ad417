"""Garbage collection: removes what no tag refers to, after a grace period.

It keeps every tagged manifest, every manifest pushed or untagged within the grace period, and all that those refer to (reach.py), in
every repository of every tenant. It runs beside pushes and on several nodes at once: it reads the clock under the exclusive lock, so
its scan sees every push before that time, and a push after it gives all that it refers to a later time, which keeps it. Each removal
checks the age again under the exclusive lock.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from chargehand.doors.provisioning.registry.layout import (
    LAYERS,
    MANIFESTS,
    REFERRERS,
    TAGS,
    UPLOADS,
    Layout,
    translated,
)
from chargehand.doors.provisioning.registry.reach import reach
from chargehand.doors.provisioning.registry.shelves import Shelf, Shelves
from chargehand.engine.job import SECOND
from chargehand.files.disk import ALONE, is_old, listed, remove_old
from chargehand.observability.logs import get_logger

PROGRESS_SECONDS = 30.0  # between two lines in the log

log = get_logger(__name__)


class Collected(msgspec.Struct, kw_only=True):
    """How many a collection has read, kept and removed."""

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

        async def in_use(digits: list[str]) -> set[str]:
            return kept.intersection(digits)

        counts.blobs, counts.bytes = await self._layout.blobs.sweep(in_use, now - self._grace)
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

    # one repository ---------------------------------------------------------------------------------------------------

    @translated()
    def _sweep_repository(self, shelf: Shelf, name: str, now: int, kept: set[str], counts: Collected) -> None:
        before, layout = now - self._grace, shelf.layout
        manifests = layout.digits_in(name, MANIFESTS)
        young = {entry.name for entry in manifests if not is_old(Path(entry.path), before)}
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
                if remove_old(Path(entry.path), before, self._layout.lock):
                    counts.links += 1
                else:
                    kept.add(entry.name)
        counts.uploads += shelf.uploads.expire(name, now - self._upload)
        self._prune(layout, layout.repository(name))

    def _remove_manifest(self, shelf: Shelf, name: str, digits: str, before: int) -> bool:
        with self._layout.locked(ALONE):
            if not is_old(shelf.layout.manifest(name, digits), before):
                return False
            shelf.manifests.forget(name, digits)
            return True

    def _prune(self, layout: Layout, directory: Path) -> None:
        """Remove empty directories, up to the first that is not empty. A writer makes its directory under the lock."""
        empty = [REFERRERS, *(f"{REFERRERS}/{each.name}" for each in listed(directory / REFERRERS))]
        with self._layout.locked(ALONE):
            for part in (LAYERS, MANIFESTS, TAGS, UPLOADS, *reversed(empty)):
                _remove_empty(directory / part)
            while directory != layout.repositories and _remove_empty(directory):
                directory = directory.parent

    @translated()
    def _sweep_drafts(self, before: int) -> None:
        """Remove the drafts of writers that died."""
        for entry in listed(self._layout.drafts):
            remove_old(Path(entry.path), before, self._layout.lock)


def _remove_empty(directory: Path) -> bool:
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True
