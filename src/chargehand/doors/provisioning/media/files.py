"""The files of a job's media. A task medium that is missing here, because another node built it, is built again: the same recipe
gives the same bytes.
"""

import asyncio
import hashlib
import shutil
import time
from enum import StrEnum
from pathlib import Path

from chargehand.config import Config
from chargehand.doors.provisioning.job.orders import Orders
from chargehand.doors.provisioning.job.run import JobRuns
from chargehand.doors.provisioning.media.authorities import NAME as AUTHORITIES
from chargehand.doors.provisioning.media.authorities import read_authorities
from chargehand.doors.provisioning.media.combined import combined
from chargehand.doors.provisioning.media.contents import REPORT, recipe_files, report_file
from chargehand.doors.provisioning.media.iso import Built, IsoError, build_task_iso
from chargehand.doors.provisioning.media.source import MediaSource
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.names import KIND
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.tokens import JobTokens
from chargehand.engine.ids import is_ulid
from chargehand.engine.job import SECOND, Job
from chargehand.engine.reads import JobReads

REMEMBERED = 1000


class Medium(StrEnum):
    MAINTENANCE = "maintenance.iso"
    TASK = "task.iso"
    BOOT = "boot.iso"  # both in one, for a BMC with a single drive
    INSTALLER = "installer.iso"


class MediaMissing(Exception):
    """A medium cannot be served."""


class MediaFiles:
    def __init__(
        self,
        config: Config,
        jobs: JobReads,
        orders: Orders,
        runs: JobRuns,
        tokens: JobTokens,
        metrics: ProvisioningMetrics,
    ) -> None:
        data = Path(config.server.data_dir)
        self._settings = config.provisioning
        self._tasks = data / "provisioning"
        self._media = Path(config.provisioning.media_dir or data / "media")
        self._jobs = jobs
        self._orders = orders
        self._runs = runs
        self._tokens = tokens
        self._metrics = metrics
        own = config.provisioning.ca_file
        self._authorities = {AUTHORITIES: read_authorities(own)} if own else {}
        self._built: dict[str, Built] = {}  # by job: the medium of its last start
        self.base_url = ""  # how machines reach this server; known once it listens

    # building -----------------------------------------------------------------------------------------------------------

    async def build(self, job: Job, recipe: Recipe, generation: int) -> Built:
        began = time.perf_counter()
        report = report_file(job, self.base_url, self._tokens.make(job.id, generation))
        files = {**recipe_files(recipe, job.id), REPORT: report, **self._authorities}
        path = self._path(job.id, generation)
        built = await asyncio.to_thread(_build, path, files, job.created_at // SECOND)
        self._metrics.iso_seconds.at()(time.perf_counter() - began)
        self._metrics.iso_bytes.at()(built.size)
        return self._remember(job.id, built)

    async def check(self, recipe: Recipe) -> None:
        """Raise MediaMissing if the image that the machine will boot cannot be read."""
        path = self._installer(recipe) if recipe.kind == "esxi" else self._maintenance()
        if path is None:
            raise MediaMissing("there is no maintenance image: set provisioning.maintenance_iso to the file of one")
        await asyncio.to_thread(_readable, path)

    # serving ------------------------------------------------------------------------------------------------------------

    async def find(self, job_id: str, name: str) -> MediaSource | None:
        """Return the medium; None if there is no such medium, or the job is finished."""
        job = await self._jobs.get_job(job_id) if is_ulid(job_id) else None
        if job is None or job.kind != KIND or job.finished:
            return None
        match name:
            case Medium.TASK:
                task = await self._task(job)
                return None if task is None else await self._whole(task.path)
            case Medium.MAINTENANCE:
                return await self._whole(self._maintenance())
            case Medium.BOOT:
                return await self._both(self._maintenance(), await self._task(job))
            case Medium.INSTALLER:
                return await self._whole(self._installer(self._orders.open(job)))
        return None

    async def _task(self, job: Job) -> Built | None:
        """Return the task medium of this start: that of an earlier one holds a token that is no longer valid."""
        found = await self._runs.get(job.tenant, job.id)
        if found is None:
            return None
        path = self._path(job.id, found[0].generation)
        built = self._built.get(job.id)
        if built is None or built.path != path:
            built = await asyncio.to_thread(_find, path)
        if built is None:
            built = await self.build(job, self._orders.open(job), found[0].generation)
        return self._remember(job.id, built)

    def _remember(self, job_id: str, built: Built) -> Built:
        """Cache it: a BMC asks for a medium in a thousand small ranges."""
        if job_id not in self._built and len(self._built) >= REMEMBERED:
            self._built.pop(next(iter(self._built)))
        self._built[job_id] = built
        return built

    async def _whole(self, path: Path | None) -> MediaSource | None:
        size, changed = await asyncio.to_thread(_stat, path)
        if path is None or size is None:
            return None
        return MediaSource(size, f'"{size:x}-{changed:x}"', [(path, 0, size)])

    async def _both(self, maintenance: Path | None, task: Built | None) -> MediaSource | None:
        if maintenance is None or task is None:
            return None
        try:
            return await asyncio.to_thread(combined, maintenance, task)
        except IsoError:
            return None

    # retention ----------------------------------------------------------------------------------------------------------

    async def kept(self) -> list[str]:
        """Return the jobs of which this node has files."""
        return await asyncio.to_thread(_names, self._tasks)

    async def remove(self, job_id: str) -> None:
        self._built.pop(job_id, None)
        await asyncio.to_thread(shutil.rmtree, self._tasks / job_id, ignore_errors=True)

    # where --------------------------------------------------------------------------------------------------------------

    def _path(self, job_id: str, generation: int) -> Path:
        return self._tasks / job_id / f"task-{generation}.iso"

    def _maintenance(self) -> Path | None:
        return Path(self._settings.maintenance_iso) if self._settings.maintenance_iso else None

    def _installer(self, recipe: Recipe) -> Path:
        """The schema allows only a plain file name."""
        return self._media / str(recipe.plain["installer_iso"])


def _build(path: Path, files: dict[str, bytes], epoch: int) -> Built:
    """Build it in a directory that only this user may read."""
    try:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise IsoError(f"{path.parent} cannot be made: {error.strerror}") from None
    return build_task_iso(path, files, epoch=epoch)


def _readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise MediaMissing(f"{path} is empty")
    except OSError as error:
        raise MediaMissing(f"{path} cannot be served: {error.strerror}") from None


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if is_ulid(path.name)]
    except OSError:
        return []


def _stat(path: Path | None) -> tuple[int | None, int]:
    if path is None:
        return None, 0
    try:
        found = path.stat()
    except OSError:
        return None, 0
    return found.st_size, found.st_mtime_ns


def _find(path: Path) -> Built | None:
    try:
        content = path.read_bytes()  # at most 10 MiB
    except OSError:
        return None
    return Built(path, len(content), hashlib.sha256(content).hexdigest())
