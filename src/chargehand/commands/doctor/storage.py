"""Checks of the store and of the disks."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from chargehand.commands.doctor.finding import Finding, failed, ok, warning
from chargehand.config import Config
from chargehand.engine.ids import is_ulid, made_at
from chargehand.engine.job import SECOND
from chargehand.errors import StoreError
from chargehand.store.checkup import Checkup, look
from chargehand.store.sqlite.store import sqlite_path

SCARCE_BYTES = 1 << 30
NONE_LEFT_BYTES = 100 << 20
AHEAD_SECONDS = 60.0
APART_SECONDS = 5.0


async def store(config: Config) -> list[Finding]:
    url = config.store_url
    name = str(sqlite_path(url)) if url.startswith("sqlite:") else "PostgreSQL"
    try:
        found = await look(url)
    except StoreError as error:
        return [failed("store", error.message.partition(";")[0], _how_to_mend(url))]
    findings = [_place(name, url, found)]
    if found.schema is not None:
        findings.append(_schema(found))
    return [*findings, *_clock(found, time.time())]


def _how_to_mend(url: str) -> str:
    if url.startswith("sqlite:"):
        if not os.access(sqlite_path(url), os.R_OK):
            return "run the command as the user that runs the server"
        return "docs/operations.md shows how to restore a backup; store.url or --data chooses another file"
    return "check that the database runs, and user, password, host and database in store.url"


def _place(name: str, url: str, found: Checkup) -> Finding:
    if found.schema is None and url.startswith("sqlite:"):
        folder = _existing(Path(name))
        if not os.access(folder, os.W_OK | os.X_OK):
            return failed("store", f"{name} cannot be created: {folder} is not writable", "choose another --data")
        return ok("store", f"{name} will be created at the first start")
    return ok("store", f"{name} can be read" if found.schema is not None else f"{name} is there, and empty")


def _schema(found: Checkup) -> Finding:
    version, newest = found.schema or 0, found.newest_schema
    if version > newest >= found.oldest_schema:
        return ok("schema", f"version {version}; this Chargehand knows up to {newest} and can use it")
    if version > newest:
        text = f"version {version}; this Chargehand knows up to {newest}"
        return failed("schema", text, "start the newer Chargehand that made it, or name another store")
    if version < newest:
        text = f"version {version} of {newest}"
        return warning("schema", text, "the next start migrates it; make a backup before (docs/operations.md)")
    return ok("schema", f"version {version}, current")


def _clock(found: Checkup, now: float) -> Iterator[Finding]:
    if found.now is not None:
        apart = found.now / SECOND - now
        if abs(apart) > APART_SECONDS:
            text = f"the database's clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} this machine's"
            yield warning("clock", text, "synchronise both with NTP: signatures and dates are made with this machine's")
    if found.newest_job and is_ulid(found.newest_job) and made_at(found.newest_job) > now + AHEAD_SECONDS:
        ahead = made_at(found.newest_job) - now
        text = f"the newest job was made {ahead:.0f} s in the future: this machine's clock was set back"
        yield warning("clock", text, "synchronise it with NTP")


def disks(config: Config) -> list[Finding]:
    """One finding for each disk, however many of the directories are on it."""
    places = [Path(config.server.data_dir), config.files_directory]
    if config.store_url.startswith("sqlite:"):
        places.append(sqlite_path(config.store_url).parent)
    findings: dict[int, Finding] = {}
    for place in places:
        folder = _existing(place)
        findings.setdefault(folder.stat().st_dev, _space(folder))
    return list(findings.values())


def _space(folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.0f} GB free at {folder}"
    advice = "free space: a full disk stops every job; retention.finished_seconds says how long finished ones are kept"
    if usage.free < NONE_LEFT_BYTES:
        return failed("disk", text, advice)
    return warning("disk", text, advice) if usage.free < SCARCE_BYTES else ok("disk", text)


def _existing(path: Path) -> Path:
    """The nearest folder above it that is there already, and that we may see."""
    path = path.absolute()
    while not os.path.isdir(path):  # which is False, and no error, of what lies in a folder of somebody else's
        path = path.parent
    return path
