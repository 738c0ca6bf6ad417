"""Machines that survive their controller: BMCs and guests run in the test's process, the controller in one that can be killed.

A machine can hold a request of the controller, or stop at a step, at a point that a test names: there the controller is killed.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp import web

from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_acts import OnBoot
from tests.provisioning.bmc_habits import PASSWORD, USER, Boot, Habits
from tests.provisioning.bmc_state import System
from tests.provisioning.guest import Guest, Script
from tests.provisioning.lab import MAINTENANCE, RECIPE, SECRET

from .receiver import Receiver
from .server import Server, eventually

# A held request must not time out, and a held machine must not be taken for dead.
SETTINGS: dict[str, Any] = {
    "provisioning_poll_seconds": 0.05,
    "provisioning_boot_seconds": 60,
    "provisioning_bmc_back_seconds": 30,
    "provisioning_fetch_seconds": 10,
    "provisioning_install_seconds": 60,
    "provisioning_silence_seconds": 30,
    "provisioning_cleanup_seconds": 30,
    "provisioning_redfish_timeout_seconds": 30,
    "provisioning_lease_seconds": 1.5,
    "provisioning_webhook_secret": SECRET,
    "provisioning_key": "a key for tests of more than thirty-two bytes",
    "engine_poll_seconds": 0.1,
    # The webhooks of a dead controller have a lease of 33 times the receiver's timeout.
    "webhooks_timeout_seconds": 0.1,
    "webhooks_backoff_base_seconds": 0.1,
    "webhooks_breaker_seconds": 0.1,
}
SOON = 90.0  # on a busy machine

# Patterns of requests, and kinds of machines.
INSERT, EJECT, RESET = r"\.InsertMedia$", r"\.EjectMedia$", r"\.Reset$"
SYSTEM, SESSION = r"/Systems/1$", "/Sessions/"
ON: dict[str, Any] = {"power": "On"}
REBOOTS: Mapping[str, Any] = {**RECIPE, "on_failure": "reboot"}
SCRIPTS = {
    "succeeds": (Script(), "succeeded"),
    "fails": (Script(fails_at="image-linux.service"), "workflow.image-linux"),
}


@dataclass(frozen=True)
class Point:
    """The request at which a BMC stops: the `nth` of its kind since an action ("override", "reset")."""

    method: str
    path: str  # a pattern
    nth: int = 1
    done: bool = False  # carried out before it is held
    since: str = ""


class HeldBmc(FakeBmc):
    """A BMC that never answers the request at its point, and restarts its machine at each reset."""

    def __init__(self, habits: Habits, on_boot: OnBoot, point: Point | None) -> None:
        super().__init__(habits, on_boot)
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.booting: asyncio.Task[None] | None = None
        self._point = point
        self._seen = 0

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.booting is not None:
            self.booting.cancel()
            await asyncio.gather(self.booting, return_exceptions=True)
        await super().__aexit__(kind, error, trace)

    @property
    def has_point(self) -> bool:
        return self._point is not None

    async def _answer(self, request: web.Request, body: Any, raw: bytes) -> web.StreamResponse:
        if not self._is_it(request):
            return await super()._answer(request, body, raw)
        assert self._point is not None
        answer = await super()._answer(request, body, raw) if self._point.done else None
        self.reached.set()
        await self.go_on.wait()  # until the connection ends because the controller dies
        return answer or await super()._answer(request, body, raw)

    def _is_it(self, request: web.Request) -> bool:
        point = self._point
        if point is None or request.method != point.method or not re.search(point.path, request.path):
            return False
        if point.since and not self.count(point.since):
            return False
        self._seen += 1
        return self._seen == point.nth

    async def _boot(self, system: System, kind: str) -> None:
        for task in self._running:
            task.cancel()
        # A BMC completes what it began, even if its caller is gone.
        booting = self.booting = asyncio.create_task(super()._boot(system, kind))
        await asyncio.shield(booting)


class HeldGuest(Guest):
    """A guest that stops at a step, at "boot" or before its "report", until it is released."""

    def __init__(self, script: Script, stops_before: str) -> None:
        super().__init__(script)
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stops_before = stops_before

    async def boot(self, boot: Boot) -> None:
        if boot.cd:
            await self.before("boot")
        await super().boot(boot)

    async def before(self, what: str) -> None:
        if what == self.stops_before:
            self.reached.set()
            await self.go_on.wait()


@dataclass(eq=False)
class Metal:
    """One machine, and the expected end of its job."""

    name: str
    bmc: HeldBmc
    guest: HeldGuest
    ends: str  # "succeeded", "cancelled", or the key at which it fails
    recipe: Mapping[str, Any] = field(default_factory=lambda: RECIPE)
    job_id: str = ""

    @property
    def serial(self) -> str:
        return cast(str, self.bmc.system.serial)

    @property
    def empty(self) -> bool:
        return not any(drive.image for drive in self.bmc.system.drives.values())

    @property
    def cd_boots(self) -> int:
        """How often the machine booted from CD for the job."""
        return sum(boot.cd and self.job_id in boot.image for boot in self.bmc.boots)

    @property
    def imaged(self) -> int:
        return self.guest.imaged.count(self.job_id)

    @property
    def override_is_off(self) -> bool:
        return self.bmc.system.enabled == "Disabled" or self.bmc.system.target in ("None", "Hdd")


class Fleet:
    """Many machines, with the actions and checks of the tests."""

    def __init__(self, metals: Sequence[Metal], receiver: Receiver, http: aiohttp.ClientSession) -> None:
        self.metals = metals
        self.receiver = receiver
        self._http = http

    async def call(self, server: Server, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self._http.request(method, f"{server.url}/api/v1{path}", json=body) as response:
            return response.status, await response.json()

    async def register(self, server: Server) -> None:
        for metal in self.metals:
            body = {"bmc_address": metal.bmc.url, "bmc_username": USER, "bmc_password": PASSWORD}
            status, said = await self.call(server, "PUT", f"/servers/{metal.serial}", body)
            assert status in (200, 201), said

    async def submit(self, server: Server, metals: Iterable[Metal] | None = None) -> None:
        for metal in self.metals if metals is None else metals:
            body = {
                "server_serial": metal.serial,
                "recipe": metal.recipe,
                "webhook": {"url": f"{self.receiver.url}/hook"},
            }
            status, said = await self.call(server, "POST", "/jobs", body)
            assert status == 202, said
            metal.job_id = said["job_id"]

    async def job(self, server: Server, metal: Metal) -> dict[str, Any]:
        return cast(dict[str, Any], (await self.call(server, "GET", f"/jobs/{metal.job_id}"))[1])

    async def events(self, server: Server, metal: Metal) -> list[dict[str, Any]]:
        said = (await self.call(server, "GET", f"/jobs/{metal.job_id}/events"))[1]
        return cast(list[dict[str, Any]], said["events"])

    async def waits(self, server: Server, metal: Metal) -> bool:
        """Does the controller wait for the machine, or is it done with it?"""
        job = await self.job(server, metal)
        return job["status"] not in ("queued", "provisioning") or not job["deadlines"].keys() & {"boot", "redfish.poll"}

    async def complete(self, server: Server) -> None:
        """Check that every job has its outcome, was imaged once or never, left nothing behind, and sent each webhook once."""
        left = list(self.metals)

        async def ended() -> bool:
            while left and (await self.job(server, left[-1]))["status"] == "complete":
                left.pop()
            return not left

        await eventually(ended, SOON, lambda: f"{left[-1].name}: complete")
        await eventually(
            lambda: all("complete" in self.told(metal) for metal in self.metals), SOON, "all ends are reported"
        )
        jobs = {metal.name: await self.job(server, metal) for metal in self.metals}
        wrong = [
            f"{metal.name}: {problem}"
            for metal in self.metals
            for problem in self.problems(metal, jobs[metal.name], await self.events(server, metal))
        ]
        assert not wrong, "\n".join(wrong)
        assert not self.receiver.forged

    def told(self, metal: Metal) -> list[str]:
        """Return the statuses in the caller's webhooks, with copies of a delivery counted once."""
        copies = {each.webhook_id: each for each in self.receiver.taken if each.job_id == metal.job_id}
        return [
            msgspec.json.decode(each.body)["status"] for each in sorted(copies.values(), key=lambda each: each.sequence)
        ]

    def problems(self, metal: Metal, job: dict[str, Any], events: list[dict[str, Any]]) -> list[str]:
        key = metal.ends if "." in metal.ends else None
        reached = "succeeded" if metal.ends == "succeeded" else "failed"
        told = ["queued", "provisioning", reached, "complete"]
        unsure = metal.ends == "cancelled" or key == "webhook.wait"  # the machine may have begun
        ran = key is None or key.startswith("workflow.")
        held = {
            "ended": (job["outcome"], job["failed_step"]) == ("failed" if key else metal.ends, key),
            "was imaged": metal.imaged <= 1 if unsure else metal.imaged == ran,
            "is empty": metal.empty,
            "has no override": metal.override_is_off,
            "booted once from CD": metal.cd_boots <= 1 if unsure else metal.cd_boots == ran,
            "is over": job["progress"]["step"] == "done" or job["progress"]["steps"] == [],
            "numbers": [event["sequence"] for event in events] == list(range(1, len(events) + 1)),
            "was told": self.told(metal) == told
            or (metal.ends == "cancelled" and self.told(metal) == [told[0], told[-1]]),
        }
        if all(held.values()):
            return []
        seen = {"job": (job["outcome"], job["failed_step"], job["error"], job["warnings"]), "imaged": metal.imaged}
        seen |= {"told": self.told(metal), "boots": metal.bmc.boots, "trouble": metal.guest.trouble}
        log = "\n    ".join(f"{event['sequence']} {event['step']} {event['message']}" for event in events)
        return [f"not so: {[name for name, so in held.items() if not so]}\n  {seen}\n    {log}"]


@dataclass(frozen=True)
class Wish:
    """The machine that a test needs."""

    name: str
    point: Point | None = None
    stops_before: str = ""
    habits: Mapping[str, Any] = field(default_factory=dict)
    script: Script = field(default_factory=Script)
    ends: str = "succeeded"
    recipe: Mapping[str, Any] = field(default_factory=lambda: RECIPE)


@asynccontextmanager
async def fleet(wishes: Sequence[Wish], receiver: Receiver) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        metals = []
        for number, wish in enumerate(wishes):
            guest = HeldGuest(wish.script, wish.stops_before)
            habits = Habits(**{"serial": f"SN-{number}", **wish.habits})
            bmc = await stack.enter_async_context(HeldBmc(habits, guest.boot, wish.point))
            metals.append(Metal(wish.name, bmc, guest, wish.ends, wish.recipe))
        connector = aiohttp.TCPConnector(limit=20)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        yield Fleet(metals, receiver, http)


def controller(store_url: str, folder: Path, name: str = "server", **settings: Any) -> Server:
    image = folder / "maintenance.iso"
    if not image.exists():
        image.write_bytes(MAINTENANCE)
    data = folder / f"data-{name}"
    given = {**SETTINGS, "server_data_dir": data, "provisioning_maintenance_iso": image, **settings}
    return Server(store_url, folder, name, **given)


async def all_held(metals: Sequence[Metal]) -> None:
    for metal in metals:
        await eventually(partial(_held, metal), SOON, f"{metal.name}: is reached; {metal.guest.trouble}")


def _held(metal: Metal) -> bool:
    return metal.bmc.reached.is_set() if metal.bmc.has_point else metal.guest.reached.is_set()


async def go_on(room: Fleet, server: Server) -> None:
    """Release the machines: those held while booting after the controller has decided, the others at once."""
    left = [metal for metal in room.metals if metal.guest.stops_before == "boot"]
    for metal in room.metals:
        if metal not in left:
            metal.guest.go_on.set()

    async def booted() -> bool:
        for metal in list(left):
            if await room.waits(server, metal):
                metal.guest.go_on.set()
                left.remove(metal)
        return not left

    await eventually(booted, SOON, lambda: f"{left[0].name}: the controller waits for the machine")
