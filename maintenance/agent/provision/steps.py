"""The steps by name; each is run by one unit."""

from collections.abc import Callable

from provision.bootloader import bootloader_linux
from provision.config_drive import config_drive
from provision.errors import Trouble
from provision.firmware import firmware
from provision.image import Moved, image_linux
from provision.journal import say
from provision.partition import partition
from provision.places import Places
from provision.progress import Progress
from provision.recipe import Recipe
from provision.windows import bootloader_windows, image_windows

Step = Callable[[Places, Recipe, Moved], None]

STEPS: dict[str, Step] = {
    "partition": lambda places, recipe, _moved: partition(places, recipe),
    "image-linux": image_linux,
    "bootloader-linux": lambda places, recipe, _moved: bootloader_linux(places, recipe),
    "config-drive": lambda places, recipe, _moved: config_drive(places, recipe),
    "image-windows": image_windows,
    "bootloader-windows": lambda places, recipe, _moved: bootloader_windows(places, recipe),
    "firmware": firmware,
}


def perform(places: Places, name: str) -> None:
    recipe = places.read("recipe.json")
    if recipe is None:
        raise Trouble("there is no recipe: the dispatcher has not run")
    progress = Progress(places, f"{name}.service")
    progress.begin()
    STEPS[name](places, recipe, progress.moved)
    progress.finish()
    say(f"{name} is done")
