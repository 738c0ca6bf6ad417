"""Find the app that a worker is to work for: `shop.tasks:app`, or `shop`, the package that has one.

The modules called `tasks` of the package are imported, at every depth, so that all tasks are declared.
"""

import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any

from chargehand.client.declared.app import App

TASKS = "tasks"


class NotFoundHere(Exception):
    """There is nothing to work for under this name."""


def find(target: str) -> App:
    """NotFoundHere says what is missing. What a module of the application raises when it is imported is raised here."""
    name, _, attribute = target.partition(":")
    module = _imported(name)
    _import_tasks(module)
    return _named(module, attribute) if attribute else _only_one(module)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFoundHere(f"there is no module {error.name!r} here: {_places()}") from None
        raise


def _places() -> str:
    return f"Python looks in {sys.path[0] or '.'} and among what is installed"


def _import_tasks(module: ModuleType) -> None:
    """Import all modules called `tasks` in the package that this module is, or is in."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    if not package:
        return
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.", _reraise):
        if found.name.rpartition(".")[2] == TASKS:
            importlib.import_module(found.name)


def _reraise(name: str) -> None:
    """Raise what the import of a package raised: pkgutil would pass over the package."""
    raise


def _named(module: ModuleType, attribute: str) -> App:
    found: Any = module
    for name in attribute.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, App):
        raise NotFoundHere(f"{module.__name__}:{attribute} is no App")
    return found


def _only_one(module: ModuleType) -> App:
    inside = f"{module.__name__}."
    modules = [each for name, each in list(sys.modules.items()) if name == module.__name__ or name.startswith(inside)]
    found = {
        id(value): (f"{each.__name__}:{name}", value)
        for each in modules
        for name, value in list(vars(each).items())  # a module may still be filled by another thread
        if isinstance(value, App)
    }
    if not found:
        raise NotFoundHere(f"{module.__name__} has no App")
    if len(found) > 1:
        names = ", ".join(name for name, _ in found.values())
        raise NotFoundHere(f"{module.__name__} has several: say which of {names}")
    [(_, only)] = found.values()
    return only
