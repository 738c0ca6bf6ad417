"""Keep a forked process from using or closing its parent's connections and event loop.

Using a connection would mix two streams of requests, and closing it reaches the peer: a TLS close ends it for the parent too. Python
closes what is garbage, at the latest when the process ends. So the child leaks what it inherited, and nothing of it is ever closed.
"""

import ctypes
import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def forked(self) -> None:
        """Called in the child after a fork: `leak` what belongs to the parent and start afresh."""


_watched: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def watch_forks(one: Forkable) -> None:
    _watched.add(one)


def leak(thing: object) -> None:
    """Leak a reference, so that `thing` is never finalised."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forked() -> None:
    for one in list(_watched):
        one.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
