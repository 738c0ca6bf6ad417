"""The repositories of each tenant. No tenant sees those of another, although equal bytes are stored once."""

from collections.abc import Callable
from typing import NamedTuple

from chargehand.doors.provisioning.registry.layers import Layers
from chargehand.doors.provisioning.registry.layout import Layout
from chargehand.doors.provisioning.registry.manifests import Manifests
from chargehand.doors.provisioning.registry.uploads import BlobUploads, Hashes


class Shelf(NamedTuple):
    """The repositories of one tenant."""

    layout: Layout
    blobs: Layers
    manifests: Manifests
    uploads: BlobUploads


class Shelves:
    def __init__(self, layout: Layout, max_blob_bytes: int, now: Callable[[], int]) -> None:
        self._layout = layout
        self._max_blob_bytes = max_blob_bytes
        self._now = now
        self._hashes = Hashes()

    def of(self, tenant: str) -> Shelf:
        return self._shelf(self._layout.of(tenant))

    def all(self) -> list[Shelf]:
        """Return those of all tenants. Blocks."""
        return [self._shelf(layout) for layout in self._layout.of_all()]

    def _shelf(self, layout: Layout) -> Shelf:
        uploads = BlobUploads(layout, self._max_blob_bytes, self._now, self._hashes)
        return Shelf(layout, Layers(layout, self._now), Manifests(layout, self._now), uploads)
