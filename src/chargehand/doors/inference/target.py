"""One Ollama target: whether it is there, which models it has, which are in its memory; load and unload them.

A cheap probe on a connection of its own tells whether it is there, also while requests are open: a laptop that falls asleep
sends no FIN, and no timeout on tokens could tell its silence from a long prompt.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import msgspec

from chargehand.config import InferenceConfig, TargetConfig
from chargehand.doors.inference.names import canonical
from chargehand.doors.inference.presence import TargetPresence
from chargehand.doors.inference.residency import LoadedModel, TargetLedger
from chargehand.doors.inference.target_http import (
    LIST_BYTES,
    NO_ANSWER,
    Gone,
    Small,
    TargetHttp,
    TargetUnreachable,
    describe,
    read_json,
    read_whole,
)
from chargehand.doors.inference.waking import wake
from chargehand.engine.wakeups import wait_within
from chargehand.observability.logs import get_logger

PS_TIMEOUT_SECONDS = 10.0  # a slow target is busy, not down
AWAY_PROBE_SECONDS = 1.0
UNLOAD_SECONDS = 30.0
UNLOAD_POLL_SECONDS = 0.1
UNLOAD_AGAIN_SECONDS = 2.0
LIST_SECONDS = 30.0  # how often the models of a target are listed
VERSION_BYTES = 65_536

log = get_logger(__name__)


class _TaggedModel(msgspec.Struct, gc=False):
    name: str = ""
    model: str = ""
    digest: str = ""
    expires_at: str = ""
    context_length: int | None = None
    size: int = 0
    size_vram: int = 0


class _Models(msgspec.Struct):
    models: list[_TaggedModel] | None = None


class _Shown(msgspec.Struct):
    modelfile: str = ""


class Version(msgspec.Struct):
    version: str = ""


_version = msgspec.json.Decoder(Version)
_models = msgspec.json.Decoder(_Models)
_shown = msgspec.json.Decoder(_Shown)


class Target:
    def __init__(
        self,
        config: TargetConfig,
        settings: InferenceConfig,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = config.url.rstrip("/")
        self.name = config.name or urlsplit(self.url).netloc
        self.config = config
        self.ledger = TargetLedger(self.name, config.slots, config.parallel, config.models)
        self.since = time.time()
        self.presence = TargetPresence()
        self.problem = "not reached yet"
        self.loading: set[str] = set()  # models that our open requests load
        self.version: bytes = b""  # as the target wrote it
        self.tags: bytes = b""  # as the target wrote them, for callers while it is away
        self._settings = settings
        self._changed = changed
        self._clock = clock
        self._failures = 0
        self._reached = False  # its state was logged once
        self._look = asyncio.Event()
        self._watches: set[Watch] = set()
        self._reading_ps: asyncio.Task[None] | None = None
        self._blobs: dict[str, str] = {}  # digest -> the file with the weights
        self._woken_at = float("-inf")
        self._listed_at = float("-inf")
        self._http = TargetHttp(self.url, config.api_key.reveal(), self.away)
        self.open = self._http.open
        self.ask = self._http.ask

    @property
    def up(self) -> bool:
        return self.ledger.up

    # liveness ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe for ever. A failure to connect counts at once, silence after inference.probe_failures."""
        while True:
            await self.check()
            if self.up and self._clock() - self._listed_at > LIST_SECONDS:
                await self._list()
            pause = self._settings.probe_seconds if self.up else min(AWAY_PROBE_SECONDS, self._settings.probe_seconds)
            self._look.clear()
            await wait_within(self._look, pause)

    async def check(self) -> bool:
        """Probe once; mark the target up or away. Return whether it answered."""
        problem, certain = await self._probe()
        if not problem:
            self._failures = 0
            if not self.up:
                await self._back()
        else:
            self._failures += 1
            if certain or self._failures >= self._settings.probe_failures:
                self.away(problem)
        return not problem

    async def _probe(self) -> tuple[str, bool]:
        """Return ("" if alive, else the problem; whether that is certain). Uses a connection of its own."""
        try:
            answer = await self.ask(
                "GET", "/api/version", timeout_seconds=self._settings.probe_seconds, headers={"Connection": "close"},
                max_bytes=VERSION_BYTES,
            )  # fmt: skip
            if answer.status == 200:
                read_json(_version, answer.body)
        except TargetUnreachable as error:
            return str(error), True
        except TimeoutError:
            return f"no answer within {self._settings.probe_seconds:g} s", False
        except (aiohttp.ClientError, OSError) as error:
            return describe(error), False
        if answer.status != 200:
            return f"GET /api/version answered {answer.status}", False
        self.version = answer.body
        return "", True

    async def _back(self) -> None:
        """Mark the target up after reading tags and ps."""
        if await self._list() and await self.read_ps():
            self.ledger.up, self.since, self.problem = True, time.time(), ""
            self.presence.note(True, self.since)
            log.info("a target is there", target=self.name, models=len(self.ledger.installed or ()))
            self._changed()

    def away(self, problem: str) -> None:
        """Mark the target away: end all open requests to it and forget what was in its memory."""
        was_up = self.up
        self.problem = problem
        self.ledger.lost()
        if was_up or not self._reached:
            self.since = time.time()
            self.presence.note(False, self.since)
            log.warning("a target is away", target=self.name, url=self.url, problem=problem)
        self._reached = True
        current = asyncio.current_task()
        for watch in list(self._watches):
            if watch.task is not current:  # the current task has found it away itself
                watch.lose()
        self._closing = asyncio.ensure_future(self._http.close())  # idle connections are dead too
        if was_up:
            self.look()  # it may be back before the next probe is due
            self._changed()

    def look(self) -> None:
        """Probe now."""
        self._look.set()

    async def close(self) -> None:
        """Close the connections. Call it when nothing runs: an attempt would take it for a failure of the target."""
        await self._http.close()

    # what it has ------------------------------------------------------------------------------------------------------

    async def _read_models(self, path: str) -> tuple[bytes, list[_TaggedModel]] | None:
        """Return a list of models as the target wrote it, and its entries; None: it did not answer, and `problem` says why."""
        try:
            answer = await self.ask("GET", path, timeout_seconds=PS_TIMEOUT_SECONDS)
            return answer.body, read_json(_models, answer.body).models or []
        except NO_ANSWER as error:
            self.problem = f"GET {path}: {describe(error)}"
            return None

    async def _list(self) -> bool:
        found = await self._read_models("/api/tags")
        if found is None:
            return False
        self.tags, listed = found
        self.ledger.installed = {canonical(each.model or each.name): each.digest for each in listed}
        self.ledger.missing.clear()
        self._listed_at = self._clock()
        return True

    async def relist(self) -> None:
        """List the models again: some were added or removed."""
        if self.up and await self._list():
            self._changed()

    async def read_ps(self) -> bool:
        found = await self._read_models("/api/ps")
        if found is not None:
            self.ledger.saw(await self._by_every_name([_resident(each) for each in found[1]]))
        return found is not None

    def refresh(self) -> None:
        """Read what is resident in the background, one read at a time, and signal the change."""
        if self._reading_ps is None or self._reading_ps.done():
            self._reading_ps = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        if not await self.read_ps():
            await asyncio.sleep(1)
        self._changed()

    async def _by_every_name(self, listed: list[LoadedModel]) -> dict[str, LoadedModel]:
        """Add names that share weights: the target lists a runner only under the name that loaded it."""
        resident = {each.name: each for each in listed}
        installed = self.ledger.installed or {}
        waiting = [name for name in self._names_in_use() if name in installed and name not in resident]
        for name in waiting:
            for each in listed:
                if installed[name] == each.digest or (
                    each.name in installed and await self._same_weights(installed[name], name, installed[each.name], each.name)
                ):  # fmt: skip
                    resident[name] = msgspec.structs.replace(each, name=name)
        return resident

    def _names_in_use(self) -> set[str]:
        return set(self.ledger.resident) | set(self.ledger.in_flight) | set(self.ledger.opening)

    async def _same_weights(self, digest: str, name: str, other_digest: str, other_name: str) -> bool:
        blob = await self._blob(digest, name)
        return bool(blob) and blob == await self._blob(other_digest, other_name)

    async def _blob(self, digest: str, name: str) -> str:
        if digest not in self._blobs:
            try:
                body = msgspec.json.encode({"model": name})
                answer = await self.ask("POST", "/api/show", body, timeout_seconds=PS_TIMEOUT_SECONDS)
                lines = read_json(_shown, answer.body).modelfile.splitlines() if answer.status == 200 else []
            except NO_ANSWER:
                return ""
            self._blobs[digest] = next((line for line in lines if line.startswith("FROM ")), "")
        return self._blobs[digest]

    async def shares_weights(self, model: str) -> bool:
        """Return whether the model is in memory under another name."""
        installed = self.ledger.installed or {}
        if model not in installed:
            return False
        for other in list(self.ledger.resident):
            if other in installed and await self._same_weights(installed[model], model, installed[other], other):
                return True
        return False

    def load(self, model: str, path: str, body: bytes, sent: Callable[[], None]) -> "asyncio.Task[Small]":
        """Load a model in a task of its own: Ollama aborts a load whose connection closes, so no caller may close it."""
        self.loading.add(model)
        return asyncio.create_task(self._load(model, path, body, sent))

    async def _load(self, model: str, path: str, body: bytes, sent: Callable[[], None]) -> Small:
        try:
            async with self.watch(), self.open("POST", path, body, sent=sent, timeout_seconds=self._settings.load_timeout_seconds) as response:  # fmt: skip
                answer = Small(response.status, response.headers, await read_whole(response, LIST_BYTES))
            if answer.status == 200:
                self.ledger.loaded(model)
            return answer
        finally:
            self.loading.discard(model)
            self.ledger.opening.pop(model, None)
            self._changed()

    async def unload(self, model: str) -> bool:
        """Unload a model and wait until it is gone: the target answers before the memory is free."""
        body = msgspec.json.encode({"model": model, "keep_alive": 0})
        until, again_at = self._clock() + UNLOAD_SECONDS, float("-inf")
        try:
            while self._clock() < until:
                # Asked again if it was refused, or if another client's request loaded the model again.
                if self._clock() >= again_at:
                    again_at = self._clock() + UNLOAD_AGAIN_SECONDS
                    with contextlib.suppress(TimeoutError):
                        await self.ask("POST", "/api/generate", body, timeout_seconds=PS_TIMEOUT_SECONDS)
                if await self.read_ps() and model not in self.ledger.resident:
                    self.ledger.unloaded(model)
                    return True
                await asyncio.sleep(UNLOAD_POLL_SECONDS)
        except asyncio.CancelledError:
            self.ledger.unloaded(model)  # it may be gone soon: the next user must check
            raise
        return False

    # waking it --------------------------------------------------------------------------------------------------------

    async def wake(self) -> None:
        """Wake the target, since work waits for it; not more often than inference.wake_seconds."""
        if self.up or self._clock() - self._woken_at < self._settings.wake_seconds:
            return
        self._woken_at = self._clock()
        await wake(self.name, self.config)
        self.look()

    def summary(self) -> str:
        """Return one line for the terminal."""
        if not self.up:
            return f"away ({self.problem}); jobs for it wait"
        models = sorted(self.ledger.installed or ())
        return ", ".join(models[:5]) + (f" and {len(models) - 5} more" if len(models) > 5 else "") or "no models"

    def watch(self) -> "Watch":
        return Watch(self, self._watches)


class Watch:
    """A context around a request: raises Gone in it when the target is found away."""

    def __init__(self, target: Target, open_ones: "set[Watch]") -> None:
        self._target = target
        self._open_ones = open_ones
        self._lost = False

    async def __aenter__(self) -> "Watch":
        self.task = cast("asyncio.Task[object]", asyncio.current_task())
        self._cancelling = self.task.cancelling()
        self._open_ones.add(self)
        return self

    def lose(self) -> None:
        if not self._lost:
            self._lost = True
            self.task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _frames: TracebackType | None
    ) -> None:
        self._open_ones.discard(self)
        if self._lost and self.task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise Gone(self._target.problem) from error


def _resident(each: _TaggedModel) -> LoadedModel:
    expires = None
    with contextlib.suppress(ValueError, OverflowError):
        expires = datetime.fromisoformat(each.expires_at).timestamp()
    return LoadedModel(
        canonical(each.model or each.name), each.digest, expires, each.context_length, each.size, each.size_vram
    )
