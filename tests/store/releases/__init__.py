"""Databases of every release, with live jobs of all doors. `make` adds those of a new release; they are never changed."""

import gzip
import shutil
from pathlib import Path

import asyncpg

HERE = Path(__file__).parent
RELEASES = sorted(folder.name for folder in HERE.iterdir() if (folder / "sqlite.db.gz").exists())


async def restore(release: str, store_url: str, data_dir: Path) -> None:
    """Restore the database of the release into an empty one, and the files that its jobs refer to."""
    shutil.copytree(HERE / release / "files", data_dir / "files")
    if store_url.startswith("sqlite:"):
        _write(store_url.removeprefix("sqlite:///"), _unpacked(release, "sqlite.db.gz"))
        return
    connection = await asyncpg.connect(store_url)
    try:
        await connection.execute(_unpacked(release, "postgres.sql.gz").decode())
    finally:
        await connection.close()


def _unpacked(release: str, name: str) -> bytes:
    return gzip.decompress((HERE / release / name).read_bytes())


def _write(file: str, content: bytes) -> None:
    Path(file).write_bytes(content)
