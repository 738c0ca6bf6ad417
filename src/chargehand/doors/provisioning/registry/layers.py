"""The blobs of a repository. A blob that only another repository has cannot be read here."""

import os
from collections.abc import Callable
from io import FileIO

from chargehand.doors.provisioning.registry.layout import Layout, translated
from chargehand.doors.provisioning.registry.refusals import Code, RegistryRefused
from chargehand.doors.provisioning.registry.uploads import link
from chargehand.files.disk import SHARED, stamp, sync


class Layers:
    """All methods block: call them in a thread."""

    def __init__(self, layout: Layout, now: Callable[[], int]) -> None:
        self._layout = layout
        self._now = now

    @translated()
    def open(self, name: str, digits: str) -> tuple[FileIO, int]:
        """Return the open file and its size. The file stays readable if the blob is removed meanwhile."""
        try:
            self._layout.layer(name, digits).stat()
            file = FileIO(self._layout.blob(digits))
        except FileNotFoundError:
            raise _unknown() from None
        return file, os.fstat(file.fileno()).st_size

    @translated()
    def size(self, name: str, digits: str) -> int:
        try:
            self._layout.layer(name, digits).stat()
            return self._layout.blob(digits).stat().st_size
        except FileNotFoundError:
            raise _unknown() from None

    @translated()
    def mount(self, name: str, digits: str, source: str) -> bool:
        """Give the repository the blob too, if the other one has it; return whether it has."""
        with self._layout.locked(SHARED):
            if not self._layout.layer(source, digits).exists() or not stamp(self._layout.blob(digits), self._now()):
                return False
            link(self._layout, name, digits, self._now())
        sync(self._layout.layer(name, digits).parent)
        return True

    @translated()
    def delete(self, name: str, digits: str) -> None:
        """Remove the blob from this repository. Its bytes are removed after the grace period, unless something refers to them."""
        path = self._layout.layer(name, digits)
        with self._layout.locked(SHARED):
            try:
                path.unlink()
            except FileNotFoundError:
                raise _unknown() from None
            stamp(self._layout.blob(digits), self._now())
        sync(path.parent)


def _unknown() -> RegistryRefused:
    return RegistryRefused(404, Code.BLOB_UNKNOWN, "the repository has no such blob")
