"""The steps after the outcome: eject the media, clear the override, and reset or power off as the recipe asks. A step that fails becomes a
warning; the outcome stands. Only media that we inserted are ejected.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.journey import Journey
from chargehand.doors.provisioning.job.ledger import Verdict
from chargehand.doors.provisioning.job.reset import LOOKS, UNKNOWN, ResetOnce
from chargehand.doors.provisioning.job.retrying import retry_until
from chargehand.doors.provisioning.job.run import AFTER, KEYS, RunStep
from chargehand.doors.provisioning.machines import Machines
from chargehand.doors.provisioning.media.files import MediaFiles
from chargehand.doors.provisioning.media.urls import MediaUrls
from chargehand.doors.provisioning.redfish.errors import RedfishError
from chargehand.doors.provisioning.redfish.facts import VirtualDrive
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.doors.provisioning.servers import Servers
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.errors import ChargehandError, StoreError

MOUNTS = (RunStep.MOUNT_MAINTENANCE, RunStep.MOUNT_TASK)


@dataclass(eq=False, repr=False)
class CleanupSteps:
    _settings: ProvisioningConfig
    _servers: Servers
    _machines: Machines
    _urls: MediaUrls
    _files: MediaFiles

    def __post_init__(self) -> None:
        self._last_reset = ResetOnce(self._settings.poll_seconds, "final_reset")

    async def run(self, journey: Journey, verdict: Verdict) -> None:
        if journey.run.cleanup_at is None:
            await journey.save(step=RunStep.EJECT, cleanup_at=journey.engine.now())
        if not (journey.run.slots or journey.run.override or journey.run.reset):
            return  # nothing was done to the machine
        try:
            bmc = await self._servers.bmc(journey.job.tenant, journey.serial)
        except StoreError:
            raise
        except ChargehandError as error:
            await journey.warn(Key.CLEANUP_UNMOUNT, f"the machine is left as it is: {error.message}")
            return
        async with self._machines.open(bmc, self._settings.cleanup_seconds, journey.require) as machine:
            while journey.run.step is not RunStep.DONE:
                await self._take(journey, machine, verdict)

    async def tidy(self, journey: Journey) -> None:
        """Remove the task medium, unless it is to be kept: it holds secrets, and could be built again."""
        if not self._settings.media_keep_seconds:
            await self._files.remove(journey.job.id)

    async def _take(self, journey: Journey, machine: Machine, verdict: Verdict) -> None:
        step = journey.run.step
        await journey.enter(step)
        try:
            async with asyncio.timeout(self._left(journey) + self._settings.redfish_timeout_seconds):
                message = await retry_until(
                    lambda: self._do(journey, machine, verdict, step),
                    lambda: self._left(journey),
                    lambda text, pause: journey.note(
                        f"{text}; again in {pause:g} s", level="warn", step=str(KEYS[step])
                    ),
                    self._settings.poll_seconds,
                )
            await journey.leave(message, to=AFTER[step])
        except (RedfishError, TimeoutError) as error:
            problem = getattr(error, "message", "") or f"not done within {self._settings.cleanup_seconds:g} s"
            await journey.warn(KEYS[step], f"{step}: {problem}")
            await journey.leave("", ok=False, to=AFTER[step])

    async def _do(self, journey: Journey, machine: Machine, verdict: Verdict, step: RunStep) -> str:
        facts = journey.run.facts
        if facts is not None and not machine.is_known:
            await machine.resume(facts)
        match step:
            case RunStep.EJECT:
                return await self._eject(journey, machine)
            case RunStep.CLEAR_OVERRIDE:
                if not journey.run.override:
                    return "no boot override was set"
                await machine.clear_override()
                return "the boot override is off"
            case _:
                return await self._reset(journey, machine, verdict)

    async def _eject(self, journey: Journey, machine: Machine) -> str:
        drives = {slot.path: slot for slot in (journey.run.facts.slots if journey.run.facts else ())}
        ejected = []
        problems = []
        for name, path in journey.run.slots.items():
            try:
                if await self._out(journey, machine, drives.get(path) or VirtualDrive(path, path, "cd"), name):
                    ejected.append(name)
            except RedfishError as error:
                problems.append(error)
        if problems:
            raise problems[0]
        return f"ejected {', '.join(ejected)}" if ejected else "there was nothing of ours to eject"

    async def _out(self, journey: Journey, machine: Machine, drive: VirtualDrive, name: str) -> bool:
        """Eject a medium. A BMC may still carry out an insert that was cut short: then look for the medium again."""
        marks = [mark for mark in journey.run.marks if mark.step in MOUNTS]
        cut_short = bool(marks) and (marks[-1].ended_at is None or not marks[-1].ok)
        for look in range(LOOKS if cut_short else 1):
            if look:
                await asyncio.sleep(self._settings.poll_seconds)
            if await machine.eject(drive, only=self._ours(journey, name)):
                return True
        return False

    def _ours(self, journey: Journey, name: str) -> Callable[[str], bool]:
        # Some BMCs show only the name of the file. In the drive that we inserted it into, that is enough.
        return lambda image: image == name or self._urls.is_ours(image, journey.job.id)

    async def _reset(self, journey: Journey, machine: Machine, verdict: Verdict) -> str:
        wish = journey.recipe.on_success if verdict.outcome == "succeeded" else journey.recipe.on_failure
        if journey.run.reset is None or (journey.recipe.kind == "esxi" and verdict.outcome == "succeeded"):
            return "the machine is left as it is"
        if wish == "reboot":
            sent = await self._last_reset.send(journey, machine)
            if sent == UNKNOWN:
                await journey.warn(Key.CLEANUP_RESET, f"last reset: {sent}")
            elif not await self._last_reset.confirmed(journey, machine):
                await journey.warn(Key.CLEANUP_RESET, f"last reset: {sent}, and the BMC shows none")
            return f"last reset: {sent}"
        if wish == "power-off":
            await machine.power_off()
            return "powered off"
        return "the machine is left as it is, for whoever looks at it"

    def _left(self, journey: Journey) -> float:
        return journey.left(journey.run.cleanup_at or journey.engine.now(), self._settings.cleanup_seconds)
