"""A bound for the total bytes of large bodies in memory. A single body is always admitted, whatever its size."""

from chargehand.errors import Overloaded
from chargehand.http.request import Request


class Room:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: dict[Request, int] = {}
        self._sum = 0

    def take(self, req: Request, size: int) -> None:
        """Reserve so many bytes in all for this request, or raise Overloaded."""
        held = self._held.get(req, 0)
        if self._sum + size - held > self._max_bytes and len(self._held) > (req in self._held):
            raise Overloaded(
                f"large bodies of other requests use {self._sum - held} of {self._max_bytes} bytes; try again later",
                retry_after_seconds=1,
            )
        self._held[req] = size
        self._sum += size - held

    def release(self, req: Request) -> None:
        if self._held:
            self._sum -= self._held.pop(req, 0)
