"""A firmware update by the vendor's own tool, if the image holds it: it may not be passed on with this project."""

import hashlib
import os
from pathlib import Path

from provision.errors import Exit, Trouble
from provision.image import Moved
from provision.journal import say
from provision.places import Places
from provision.recipe import Recipe
from provision.run import run
from provision.wire import fetch

TOOLS = ("/opt/saa/saa", "/opt/sum/sum")  # Supermicro's, the newer first; a `sum` in PATH is another program
MAX_BYTES = 1 << 30
EXPECTED = "USER_FIRMWARE_SHA256"  # of the recipe's env
AN_HOUR = 3600.0


def firmware(places: Places, recipe: Recipe, moved: Moved) -> None:
    tool = next((path for path in TOOLS if os.access(places.at(path), os.X_OK)), None)
    if tool is None:
        raise Trouble(
            f"this image holds no tool that updates firmware ({' or '.join(TOOLS)}): add it when the image is built"
        )
    path = places.run / "firmware.bin"
    digest, size = download(recipe["firmware_url"], path, moved)
    say(f"the firmware has {size} bytes, sha256:{digest}")
    wanted = str(recipe.get("env", {}).get(EXPECTED, "")).lower().removeprefix("sha256:")
    if wanted and wanted != digest:
        path.unlink()
        raise Trouble(f"the firmware is not what was asked for: sha256:{digest}, not sha256:{wanted}", Exit.DIGEST)
    run(argv(str(places.at(tool)), path), timeout=AN_HOUR)


def argv(tool: str, path: Path) -> list[str]:
    return [tool, "-c", "UpdateBios", "--file", str(path)]


def download(url: str, path: Path, moved: Moved) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for piece in fetch(url):
            digest.update(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise Trouble(f"the firmware has more than {MAX_BYTES} bytes", Exit.FAILED)
            file.write(piece)
            moved(size, 0)
    return digest.hexdigest(), size
