"""The models in memory: how long they stay, and how many requests use them. The rules are those of Ollama's scheduler.

Models are loaded one at a time, in order. `keep_alive` belongs to the resident model: the last request that set it counts. The
time runs from the end of the last request. A request with other load options waits until the model is idle and loads it again.
Unlike in Ollama there is no limit on the number of resident models: the server, which makes the requests, counts them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from chargehand.doors.inference.embedded.backend import Backend, LoadOptions, Running
from chargehand.doors.inference.embedded.catalogue import Model

KEEP_ALIVE_SECONDS: Final = 300.0
FOR_EVER: Final = (2**63 - 1) / 1e9  # Go's longest duration: 292 years


class Resident:
    """A model in memory, with a semaphore for its parallel requests."""

    def __init__(self, model: Model, options: LoadOptions, running: Running, keep_alive: float, parallel: int) -> None:
        self.model = model
        self.options = options
        self.running = running
        self.keep_alive = keep_alive
        self.places = asyncio.Semaphore(parallel)
        self.users = 0
        self.idle = asyncio.Event()
        self.expires_at: datetime | None = None  # None until the first request has ended
        self.timer: asyncio.TimerHandle | None = None
        self.leaving: asyncio.Task[None] | None = None

    def serves(self, options: LoadOptions) -> bool:
        return self.leaving is None and self.running.alive and self.options == options

    def shown_expiry(self) -> datetime:
        return self.expires_at or _from_now(self.keep_alive)


class Residents:
    def __init__(self, backend: Backend, parallel: int) -> None:
        self._backend = backend
        self._parallel = parallel
        self._resident: dict[str, Resident] = {}
        self._loading = asyncio.Lock()

    def __iter__(self) -> Iterator[Resident]:
        """Iterate over the models, the one with the latest expiry first."""
        alive = [resident for resident in self._resident.values() if resident.running.alive]
        return iter(sorted(alive, key=lambda one: one.shown_expiry(), reverse=True))

    @asynccontextmanager
    async def use(self, model: Model, options: LoadOptions, keep_alive: float | None) -> AsyncIterator[Resident]:
        """Provide the model, loaded if necessary. It stays in memory at least as long as the context."""
        resident = self._loaded(model, options) or await self._load(model, options, keep_alive)
        try:
            self._enter(resident, keep_alive)
            yield resident
        finally:
            self._leave(resident)

    def expire(self, model: Model) -> None:
        """Unload the model as soon as no request uses it."""
        if resident := self._resident.get(model.name):
            resident.keep_alive = 0
            resident.expires_at = datetime.now(UTC)
            if not resident.users:
                self._unload(resident)

    async def close(self) -> None:
        for resident in self._resident.values():
            await resident.running.close()

    def _loaded(self, model: Model, options: LoadOptions) -> Resident | None:
        resident = self._resident.get(model.name)
        return resident if resident and resident.serves(options) else None

    async def _load(self, model: Model, options: LoadOptions, keep_alive: float | None) -> Resident:
        async with self._loading:
            if resident := self._loaded(model, options):  # an earlier request loaded the same
                return resident
            if former := self._resident.get(model.name):
                await asyncio.shield(self._unload(former))
            running = await self._backend.load(model, options)
            wanted = KEEP_ALIVE_SECONDS if keep_alive is None else keep_alive
            resident = Resident(model, options, running, wanted, self._parallel)
            self._resident[model.name] = resident
            return resident

    def _enter(self, resident: Resident, keep_alive: float | None) -> None:
        resident.users += 1
        resident.idle.clear()
        if resident.timer:
            resident.timer.cancel()
            resident.timer = None
        if keep_alive is not None:
            resident.keep_alive = keep_alive

    def _leave(self, resident: Resident) -> None:
        resident.users -= 1
        if resident.users:
            return
        resident.idle.set()
        if resident.keep_alive <= 0:
            self._unload(resident)
            return
        resident.expires_at = _from_now(resident.keep_alive)
        resident.timer = asyncio.get_running_loop().call_later(resident.keep_alive, self._unload, resident)

    def _unload(self, resident: Resident) -> asyncio.Task[None]:
        """Give the model to no new request, and unload it when the running ones have ended."""
        if resident.leaving is None:
            if resident.timer:
                resident.timer.cancel()
            resident.leaving = asyncio.get_running_loop().create_task(self._drain(resident))
        return resident.leaving

    async def _drain(self, resident: Resident) -> None:
        if resident.users:
            await resident.idle.wait()
        await resident.running.close()
        if self._resident.get(resident.model.name) is resident:
            del self._resident[resident.model.name]


def _from_now(seconds: float) -> datetime:
    return datetime.fromtimestamp(time.time(), UTC) + timedelta(seconds=seconds)
