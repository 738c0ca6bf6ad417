"""Task media: how long a job waits for its medium, beside xorriso, which writes the same files as a process."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

from bench.bench import Bench
from bench.provisioning import RECIPE
from bench.report import Row, Sample, Target
from chargehand.commands.bench.load import quantiles
from chargehand.doors.provisioning.media.contents import recipe_files
from chargehand.doors.provisioning.media.iso import LABEL, MAX_BYTES, build_task_iso
from chargehand.doors.provisioning.recipe.recipe import Recipe

BUILDS = 10  # in one run
USER_DATA_BYTES = 20_000
OVERHEAD_BYTES = 512 << 10  # of the image, and of the recipe's files
EPOCH = 1_767_225_600
JOB_ID = "01JZZZZZZZZZZZZZZZZZZZZZZZ"
TARGET_MS = 1_000


async def task_iso(bench: Bench) -> AsyncIterator[Row]:
    user_data = "#cloud-config\n" + "# and what else a machine should have\n" * (USER_DATA_BYTES // 38)
    usual = recipe_files(Recipe.of({**RECIPE, "user_data": user_data}), JOB_ID)
    large = {**usual, "filler": os.urandom(MAX_BYTES - OVERHEAD_BYTES)}
    xorriso = shutil.which("xorriso")
    if xorriso is None:
        bench.say("  xorriso is not installed: no ratio")
    with tempfile.TemporaryDirectory(dir=bench.stores.folder) as folder:
        for name, files in ((f"{USER_DATA_BYTES // 1000} kB of user data", usual), ("near 10 MiB", large)):
            place = Path(folder) / name
            await asyncio.to_thread(_lay_out, place / "files", files)
            ours, theirs = [], []
            for number in range(bench.scale.rounds + 1):
                mine = await asyncio.to_thread(_timed, partial(_ours, place, files))
                other = await asyncio.to_thread(_timed, partial(_xorriso, xorriso, place)) if xorriso else None
                if number:  # the first run is the warm-up
                    ours.append(bench.said(f"chargehand, {name}", mine))
                    theirs += [bench.said(f"xorriso, {name}", other)] if other else []
            yield _row(f"task medium, {name}", ours, theirs)


def _row(label: str, ours: list[Sample], theirs: list[Sample]) -> Row:
    """The target is a time; the time of xorriso is shown beside it for comparison."""
    return Row(
        measurement=label,
        value=median(sample.p50 for sample in ours) * 1e3,
        unit="ms",
        baseline=median(sample.p50 for sample in theirs) * 1e3 if theirs else None,
        target=Target("≤", TARGET_MS),
        samples={"measured": ours, **({"baseline": theirs} if theirs else {})},
    )


def _timed(build: Callable[[], object]) -> Sample:
    taken = []
    cpu = time.thread_time()
    for _ in range(BUILDS):
        began = time.perf_counter()
        build()
        taken.append(time.perf_counter() - began)
    return Sample(BUILDS, sum(taken), *quantiles(taken), server_cpu=time.thread_time() - cpu)


def _ours(place: Path, files: Mapping[str, bytes]) -> object:
    return build_task_iso(place / "ours.iso", files, epoch=EPOCH)


def _xorriso(program: str, place: Path) -> object:
    """Durable, as ours is. It takes a tenth of a second whatever it writes, which is its own waiting."""
    image = place / "theirs.iso"
    image.unlink(missing_ok=True)
    wanted = ["-quiet", "-R", "-J", "-V", LABEL, "-o", str(image), str(place / "files")]
    done = subprocess.run([program, "-as", "mkisofs", *wanted], check=True, stderr=subprocess.DEVNULL)
    handle = os.open(image, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return done


def _lay_out(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
