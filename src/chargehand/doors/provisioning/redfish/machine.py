"""One BMC and one system of it: everything that a job does to a machine goes through here.

transport.py      one request: bounded, to one host only, checked by the egress policy
login.py          sessions, or Basic
client.py         safe retries, ETags, tasks, error messages
resources.py      links, lists and actions as the BMC gives them
identity.py       finds the registered machine among the BMC's systems
walk.py           discovers the facts about a machine, from the root
virtual_media.py  inserts and ejects images
boot_override.py  the one-time boot override
power.py          resets and switches off
quirks.py         deviations of hardware from the standard
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from types import TracebackType
from typing import Self

from chargehand.doors.provisioning.redfish.boot_override import BootOverride
from chargehand.doors.provisioning.redfish.client import Permit, RedfishClient, Turn
from chargehand.doors.provisioning.redfish.errors import RedfishError
from chargehand.doors.provisioning.redfish.facts import Bmc, Glance, MachineFacts, VirtualDrive, power_of
from chargehand.doors.provisioning.redfish.identity import check
from chargehand.doors.provisioning.redfish.power import Power
from chargehand.doors.provisioning.redfish.quirks import quirks_named
from chargehand.doors.provisioning.redfish.resources import part, text
from chargehand.doors.provisioning.redfish.transport import Observe, RedfishTransport
from chargehand.doors.provisioning.redfish.virtual_media import Same, VirtualMedia
from chargehand.doors.provisioning.redfish.walk import walk
from chargehand.webhooks.egress import EgressPolicy


def _unobserved(operation: str, vendor: str, seconds: float, ok: bool) -> None:
    """Record nothing."""


def _equal(there: str, wanted: str) -> bool:
    return there == wanted


class Machine:
    """Makes one call at a time, because a BMC is a small computer. Use it in `async with`, which closes the session."""

    def __init__(
        self,
        bmc: Bmc,
        *,
        policy: EgressPolicy,
        timeout_seconds: float,
        random: Random,
        observe: Observe = _unobserved,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        patience_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        permit: Permit | None = None,
        turn: Turn | None = None,
    ) -> None:
        self._bmc = bmc
        transport = RedfishTransport(bmc, policy, timeout_seconds)
        self._client = RedfishClient(bmc, transport, observe, random, sleep, patience_seconds, clock, permit, turn)
        self._media = VirtualMedia(self._client)
        self._facts: MachineFacts | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    @property
    def address(self) -> str:
        return self._bmc.address

    @property
    def is_known(self) -> bool:
        """Was it discovered, or resumed?"""
        return self._facts is not None

    async def discover(self) -> MachineFacts:
        """Find out the machine's identity and abilities; raise Mismatch if it is not the registered machine."""
        async with self._operation("discover"):
            self._facts = await walk(self._client, self._bmc)
            return self._facts

    async def resume(self, facts: MachineFacts) -> None:
        """Use facts that were discovered before, after a check that it is still that machine."""
        async with self._operation("resume"):
            self._client.vendor = facts.vendor
            system = await self._client.get(facts.system)
            check(self._bmc, system.data)
            self._facts = facts

    async def insert(self, slot: VirtualDrive, url: str, same: Same = _equal) -> str:
        """Make sure that the image is in the drive; return the image that had to be ejected, or "". `same(there, wanted)` says
        whether the image in the drive is the wanted one.
        """
        async with self._operation("insert"):
            return await self._media.insert(slot, url, same)

    async def eject(self, slot: VirtualDrive, only: Callable[[str], bool] | None = None) -> bool:
        """Make sure that the drive is empty, or holds no image for which `only` is true. Return False if it was so already."""
        async with self._operation("eject"):
            return await self._media.eject(slot, only)

    async def boot_from_cd(self, slot: VirtualDrive, mode: str | None = None) -> None:
        """Boot from the CD once, at the next boot. `mode` is "UEFI" or "Legacy"; None keeps it if the BMC allows that."""
        async with self._operation("boot-override"):
            await self._boot().once_from(slot, mode)

    async def clear_override(self) -> None:
        async with self._operation("clear-override"):
            await self._boot().clear()

    async def glance(self, patience_seconds: float | None = None) -> Glance:
        """Return the system's current state. With a patience of 0 there are no retries."""
        async with self._operation("glance", patience_seconds):
            data = (await self._client.get(self._known().system)).data
            return Glance(
                power=power_of(data.get("PowerState")),
                last_reset_at=text(data, "LastResetTime"),
                boot_progress=text(part(data, "BootProgress"), "LastState"),
                override=text(part(data, "Boot"), "BootSourceOverrideEnabled"),
            )

    async def reset(self) -> str:
        """Reset the system and return the kind of reset. It is sent once: after an `unclear` error it may have happened."""
        async with self._operation("reset"):
            return await Power(self._client, self._known()).reset()

    async def power_off(self) -> None:
        async with self._operation("power-off"):
            await Power(self._client, self._known()).off()

    @asynccontextmanager
    async def _operation(self, name: str, patience_seconds: float | None = None) -> AsyncIterator[None]:
        async with self._one_at_a_time:
            self._client.begin(name, patience_seconds)
            yield

    def _boot(self) -> BootOverride:
        facts = self._known()
        return BootOverride(self._client, facts, quirks_named(facts.quirks))

    def _known(self) -> MachineFacts:
        if self._facts is None:
            raise RedfishError("the machine has not been discovered yet")
        return self._facts
