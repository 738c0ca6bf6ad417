"""Checks for files with secrets that others on this machine can read."""

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from chargehand.commands.doctor.finding import Finding, ok, warning
from chargehand.config import FILE_VARIABLES, SETTINGS, Config, Secret
from chargehand.doors.provisioning.vault import KEY_FILE
from chargehand.private import is_open_to_others, sqlite_files
from chargehand.store.sqlite.store import sqlite_path

MOST_FILES = 20_000  # of a directory: what is wrong with one is wrong with many
NAMED = 3
# Settings with secrets in their tables.
WITH_SECRETS = ("webhooks.tenants", "auth.users", "inference.targets")


def files(config: Config, file: Path | None, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Two findings: what the server wrote, and what it was given."""
    written = [path for path in _written(config) if is_open_to_others(path)]
    if written:
        advice = "`chmod -R go= DIRECTORY`; `serve` makes its files private, and at a start its database and key"
        yield warning("files", f"others on this machine can read {_named(written)}", advice)
    else:
        yield ok("files", f"nobody else on this machine can read what is kept in {config.server.data_dir}")
    given = [path for path in _given(config, file, environ) if is_open_to_others(path)]
    if given:
        text = f"others on this machine can read {_named(given)}, and there are secrets in it"
        yield warning(
            "secrets", text, "`chmod 600` what belongs to the user that serves, or 640 with a group of its own"
        )


def _written(config: Config) -> Iterator[Path]:
    settings, data = config.provisioning, Path(config.server.data_dir)
    if config.store_url.startswith("sqlite:"):
        yield from sqlite_files(sqlite_path(config.store_url))
    yield data / KEY_FILE
    # Not data/media: what lies there was put there by hand, and is handed out to machines.
    registry = Path(settings.registry_dir or data / "registry")
    for folder in (config.files_directory, registry, data / "provisioning"):
        found = (Path(where, name) for where, _, names in os.walk(folder) for name in names)
        yield from islice(found, MOST_FILES)


def _given(config: Config, file: Path | None, environ: Mapping[str, str]) -> Iterator[Path]:
    if file is not None and any(origin == str(file) and _is_secret(name) for name, origin in config.origins.items()):
        yield file
    for variable, name in FILE_VARIABLES.items():
        if variable in environ and _is_secret(name):
            yield Path(environ[variable])
    if config.server.tls_key:
        yield Path(config.server.tls_key)


def _is_secret(name: str) -> bool:
    return SETTINGS[name] is Secret or name in WITH_SECRETS


def _named(paths: list[Path]) -> str:
    named = ", ".join(map(str, paths[:NAMED]))
    return named if len(paths) <= NAMED else f"{named} and {len(paths) - NAMED} more"
