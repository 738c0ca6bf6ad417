"""What a forked process has from its parent and must not touch: connections, and the loop that looks after them.

They are the parent's. Using one would mix up two conversations, and letting go of one may be heard by the other side: a farewell over TLS
ends the connection for both. And what is not let go of now is when the
process ends. So they live for ever: the child forgets them, and nothing of them is ever cleaned up.
"""

import ctypes
import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def forked(self) -> None:
        """In the child, before anything else: `keep` what is the parent's, and begin anew."""


_watched: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def watch_forks(one: Forkable) -> None:
    _watched.add(one)


def keep(thing: object) -> None:
    """For ever: one reference to it is counted that nobody holds."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forked() -> None:
    for one in list(_watched):
        one.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
