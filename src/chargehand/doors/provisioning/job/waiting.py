"""Waiting for the machine's word, and noticing that it will not come.

Three clocks run: the whole wait; the first sign that anything booted; the silence of a machine that spoke before. Of an ESXi
installer nothing is heard at all: it is done when it has rebooted the machine by itself, which the power shows.
"""

import asyncio
import contextlib
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.boot import signs_of_life
from chargehand.doors.provisioning.job.journey import LOOK_SECONDS, Journey, StepFailed
from chargehand.doors.provisioning.job.ledger import JobLedger, Verdict
from chargehand.doors.provisioning.job.run import JobRun, RunStep
from chargehand.doors.provisioning.machines import Machines
from chargehand.doors.provisioning.redfish.errors import RedfishError
from chargehand.doors.provisioning.redfish.facts import Glance
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.doors.provisioning.servers import Servers
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.job import SECOND

_EARLY = ("PrimaryProcessorInitializationStarted", "BusInitializationStarted", "MemoryInitializationStarted",
          "SecondaryProcessorInitializationStarted", "PCIResourceConfigStarted", "SystemHardwareInitializationComplete",
          "SetupEntered")  # fmt: skip
_glances = msgspec.json.Decoder(Glance)


class Deadline(NamedTuple):
    at: int
    key: Key
    reason: str
    message: str


class ReportWait:
    def __init__(self, settings: ProvisioningConfig, servers: Servers, machines: Machines) -> None:
        self._settings = settings
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
                deadline = self.deadline(journey.run, journey.recipe.kind, journey.recipe.timeout_minutes, ledger)
                left = (deadline.at - journey.engine.now()) / SECOND
                if left <= 0:
                    raise StepFailed(deadline.key, deadline.message, deadline.reason)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_SECONDS)):
                        await news.wait()
        finally:
            stop()

    def deadline(self, run: JobRun, kind: str, timeout_minutes: int | None, ledger: JobLedger) -> Deadline:
        """The next moment at which something is amiss, and what that would be."""
        settings = self._settings
        reset_at = run.reset.asked_at if run.reset else run.began_at
        # While nobody owned the job nobody listened, perhaps: the machine gets the time to say it again.
        since = run.taken_at
        seconds = timeout_minutes * 60 if timeout_minutes else (
            settings.maintenance_seconds if kind == "maintenance" else settings.install_seconds
        )  # fmt: skip
        first = Deadline(
            max(
                (run.booted_at or reset_at) + int(seconds * SECOND),
                since + int(min(seconds, settings.silence_seconds) * SECOND),
            ),
            Key.WEBHOOK_WAIT,
            "no_report",
            f"no report of success or failure within {seconds:g} s",
        )
        others = []
        if ledger.heard_at is not None:
            doing = ledger.steps[-1].step if ledger.steps else "it started"
            others.append(
                Deadline(
                    max(ledger.heard_at, since) + int(settings.silence_seconds * SECOND),
                    Key.WEBHOOK_WAIT,
                    "agent_silent",
                    f"the machine was last heard of at {doing}, and then not for {settings.silence_seconds:g} s",
                )
            )
        elif not signs_of_life(ledger, reset_at) and not _cached(ledger):
            fetched = bool(ledger.fetches)
            others.append(
                Deadline(
                    max(reset_at, since) + int(settings.fetch_seconds * SECOND),
                    Key.WEBHOOK_WAIT if _turned(run) else Key.REDFISH_RESET,
                    "never_booted" if fetched else "never_fetched",
                    f"{'nobody read on in' if fetched else 'nobody fetched'} the medium within {settings.fetch_seconds:g} s after the reset"
                    + ("" if _turned(run) else ", and nothing shows that the machine was reset"),
                )
            )
        return min(first, *others, key=lambda deadline: deadline.at) if others else first

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
        """Returns when the machine has rebooted by itself. What was last seen is kept, so that a restart misses nothing."""
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
                    if error.message != trouble:  # not the same line each few seconds for two hours
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
    """A firmware's progress may be left from before our reset: it counts once it was seen where a boot begins."""
    left_over = not (before and before.boot_progress) and seen.boot_progress.startswith("OS")
    return replace(seen, boot_progress="") if left_over else seen


def rebooted(before: Glance, seen: Glance, unreset: str = "") -> bool:
    """Off and on again, a new time of the last reset, or the firmware's progress back at its beginning.

    `unreset` is the time of the last reset before ours: while that is shown, what comes new is our own reset, told late.
    """
    if seen.power == "On" and before.power in ("Off", "PoweringOn", "PoweringOff", "Resetting"):
        return True
    if unreset and before.last_reset_at == unreset:
        return False
    if before.last_reset_at and seen.last_reset_at and seen.last_reset_at != before.last_reset_at:
        return True
    return seen.boot_progress in _EARLY and before.boot_progress.startswith("OS")


def _cached(ledger: JobLedger) -> bool:
    """The BMC has read all of a medium when it was inserted: that it reads no more afterwards shows nothing."""
    return any(fetch.whole for fetch in ledger.fetches)


def _turned(run: JobRun) -> bool:
    """Whether anything showed that the machine was really reset."""
    intent = run.reset
    return intent is not None and (bool(intent.last_reset_at) or intent.power != "On")
