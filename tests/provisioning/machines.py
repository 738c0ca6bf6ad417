"""A client for the BMC of the tests, with a clock that advances only while the client sleeps."""

import asyncio
from random import Random
from typing import Any

from chargehand.doors.provisioning.redfish.facts import Bmc, MachineFacts
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.webhooks.egress import EgressPolicy
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER

LOCAL = EgressPolicy(allow_local=True)
ISO = "http://media.example/job-1/maintenance.iso"


class Time:
    """The clock and the sleep of a test; records the sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def record(bmc: FakeBmc, **changes: Any) -> Bmc:
    return Bmc(**{"address": bmc.url, "username": USER, "password": PASSWORD, "serial": "SN-1", **changes})


def machine(
    bmc: FakeBmc,
    time: Time | None = None,
    *,
    timeout_seconds: float = 5.0,
    patience_seconds: float = 60.0,
    **changes: Any,
) -> Machine:
    time = time or Time()
    extras = {name: changes.pop(name) for name in ("observe", "permit") if name in changes}
    return Machine(
        record(bmc, **changes),
        policy=LOCAL,
        timeout_seconds=timeout_seconds,
        random=Random(7),
        sleep=time.sleep,
        clock=time,
        patience_seconds=patience_seconds,
        **extras,
    )


async def ready(it: Machine) -> MachineFacts:
    """Do all steps before the reset: the image is in the first drive, and the next boot is from it."""
    facts = await it.discover()
    await it.insert(facts.cds[0], ISO)
    await it.boot_from_cd(facts.cds[0])
    return facts
