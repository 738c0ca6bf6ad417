"""Update firmware by the vendor's own tool, if the image contains it: its licence does not let us distribute it.

The download has a timeout, the tool has none: while it runs, neither the controller nor systemd may stop it.
"""

import hashlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from provision.errors import Exit, Trouble
from provision.image import Moved
from provision.journal import say
from provision.places import Places
from provision.recipe import Recipe
from provision.run import run
from provision.wire import fetch

TOOLS = ("/opt/saa/saa", "/opt/sum/sum")  # Supermicro's, the newer first; a `sum` in PATH is a different program
MAX_BYTES = 1 << 30
EXPECTED = "USER_FIRMWARE_SHA256"  # a variable of the recipe's env
FLASHING = "flashing"  # marks that the tool is running
MOST = 1800.0  # seconds for the download


def firmware(places: Places, recipe: Recipe, moved: Moved) -> None:
    tool = next((path for path in TOOLS if os.access(places.at(path), os.X_OK)), None)
    if tool is None:
        raise Trouble(
            f"this image holds no tool that updates firmware ({' or '.join(TOOLS)}): add it when the image is built"
        )
    wanted = str(recipe.get("env", {}).get(EXPECTED, "")).lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", wanted):
        raise Trouble(f"no firmware without its digest: set {EXPECTED} in the recipe's env to its sha256", Exit.DIGEST)
    path = places.run / "firmware.bin"
    digest, size = download(recipe["firmware_url"], path, moved)
    say(f"the firmware has {size} bytes, sha256:{digest}")
    if wanted != digest:
        path.unlink()
        raise Trouble(f"the firmware is not what was asked for: sha256:{digest}, not sha256:{wanted}", Exit.DIGEST)
    flash(places, argv(str(places.at(tool)), path))


def flash(places: Places, command: list[str]) -> None:
    # Not SIG_IGN, which the tool would inherit.
    before = signal.signal(signal.SIGTERM, lambda *_: say("asked to stop: not while firmware is being written"))
    places.write(FLASHING, b"")
    try:
        run(command, timeout=None)
    finally:
        places.forget(FLASHING)
        signal.signal(signal.SIGTERM, before)


def argv(tool: str, path: Path) -> list[str]:
    return [tool, "-c", "UpdateBios", "--file", str(path)]


def download(url: str, path: Path, moved: Moved, clock: Callable[[], float] = time.monotonic) -> tuple[str, int]:
    digest, size, limit = hashlib.sha256(), 0, clock() + MOST
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for piece in fetch(url, verified=True):
            if clock() > limit:
                raise Trouble(f"the firmware did not come within {MOST:g} seconds")
            digest.update(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise Trouble(f"the firmware has more than {MAX_BYTES} bytes", Exit.FAILED)
            file.write(piece)
            moved(size, 0)
    return digest.hexdigest(), size
