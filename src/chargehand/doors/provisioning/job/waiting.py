"""Waiting for the machine's report, until a deadline passes.

An ESXi installer does not report: it is done when it has rebooted the machine by itself, which the power shows.
"""

import asyncio

import msgspec
from msgspec.structs import replace

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.deadlines import Deadlines
from chargehand.doors.provisioning.job.journey import LOOK_SECONDS, Journey, StepFailed
from chargehand.doors.provisioning.job.ledger import Verdict
from chargehand.doors.provisioning.job.run import RunStep
from chargehand.doors.provisioning.machines import Machines
from chargehand.doors.provisioning.redfish.errors import RedfishError
from chargehand.doors.provisioning.redfish.facts import Glance
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.doors.provisioning.servers import Servers
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.job import SECOND
from chargehand.engine.wakeups import wait_within

_EARLY = ("PrimaryProcessorInitializationStarted", "BusInitializationStarted", "MemoryInitializationStarted",
          "SecondaryProcessorInitializationStarted", "PCIResourceConfigStarted", "SystemHardwareInitializationComplete",
          "SetupEntered")  # fmt: skip
_glances = msgspec.json.Decoder(Glance)


class ReportWait:
    def __init__(
        self, settings: ProvisioningConfig, servers: Servers, machines: Machines, deadlines: Deadlines
    ) -> None:
        self._settings = settings
        self._deadlines = deadlines
        self._servers = servers
        self._machines = machines

    async def wait(self, journey: Journey) -> Verdict:
        await journey.enter(RunStep.WAIT)
        verdict = await (self._for_installer(journey) if journey.recipe.kind == "esxi" else self._for_report(journey))
        await journey.leave(
            f"the outcome is known: {verdict.outcome}", ok=verdict.outcome != "failed", to=RunStep.EJECT
        )
        return verdict

    async def _for_report(self, journey: Journey) -> Verdict:
        news = asyncio.Event()
        stop = journey.engine.watching(journey.job.id, news)
        try:
            while True:
                news.clear()
                ledger = await journey.ledger()
                if ledger.verdict is not None:
                    return ledger.verdict
                deadline = self._deadlines.for_report(journey.run, journey.recipe, ledger)
                left = (deadline.at - journey.engine.now()) / SECOND
                if left <= 0:
                    raise StepFailed(deadline.key, deadline.message, deadline.reason)
                await wait_within(news, min(left, LOOK_SECONDS))
        finally:
            stop()

    # ESXi ---------------------------------------------------------------------------------------------------------------

    async def _for_installer(self, journey: Journey) -> Verdict:
        waiting = asyncio.ensure_future(self._for_report(journey))  # a kickstart may report, and deadlines hold
        watching = asyncio.ensure_future(self._watch_power(journey))
        try:
            await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            watching.result()
            return await journey.judge("succeeded", reason="installer_rebooted")
        finally:
            for each in (waiting, watching):
                each.cancel()
            await asyncio.gather(waiting, watching, return_exceptions=True)

    async def _watch_power(self, journey: Journey) -> None:
        """Return when the machine has rebooted by itself. The last state is stored, so that a restart misses nothing."""
        facts, trouble = journey.run.facts, ""
        bmc = await self._servers.bmc(journey.job.tenant, journey.serial)
        async with self._machines.open(bmc) as machine:
            while True:
                try:
                    if facts is not None:
                        await machine.resume(facts)
                    await self._until_rebooted(journey, machine)
                    return
                except RedfishError as error:
                    if error.message != trouble:  # the same error is not logged every few seconds
                        trouble = error.message
                        await journey.note(
                            f"cannot look at the power: {trouble}", level="warn", step=str(Key.REDFISH_POLL)
                        )
                await asyncio.sleep(self._settings.poll_seconds)

    async def _until_rebooted(self, journey: Journey, machine: Machine) -> None:
        unreset = journey.run.reset.last_reset_at if journey.run.reset else ""
        while True:
            before = _glances.decode(journey.run.installer) if journey.run.installer else None
            seen = since_reset(before, await machine.glance())
            if before is None or (seen.power, seen.last_reset_at, seen.boot_progress) != (
                before.power, before.last_reset_at, before.boot_progress
            ):  # fmt: skip
                await journey.save(installer=msgspec.json.encode(seen).decode())
            if before is not None and rebooted(before, seen, unreset):
                await journey.note("the installer rebooted the machine", step=str(Key.REDFISH_POLL))
                return
            await asyncio.sleep(self._settings.poll_seconds)


def since_reset(before: Glance | None, seen: Glance) -> Glance:
    """Drop the firmware's progress if it may be from before our reset: it counts once it was seen at the beginning of a boot."""
    left_over = not (before and before.boot_progress) and seen.boot_progress.startswith("OS")
    return replace(seen, boot_progress="") if left_over else seen


def rebooted(before: Glance, seen: Glance, unreset: str = "") -> bool:
    """Return whether the machine was off and on again, shows a new time of the last reset, or its firmware begins again.

    `unreset` is the time of the last reset before ours: if that was shown, a new time is that of our own reset.
    """
    if seen.power == "On" and before.power in ("Off", "PoweringOn", "PoweringOff", "Resetting"):
        return True
    if unreset and before.last_reset_at == unreset:
        return False
    if before.last_reset_at and seen.last_reset_at and seen.last_reset_at != before.last_reset_at:
        return True
    return seen.boot_progress in _EARLY and before.boot_progress.startswith("OS")
