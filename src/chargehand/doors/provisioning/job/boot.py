"""The steps up to a machine that boots our medium: build, discover, insert, override, reset, and see that it came back.

After a crash another owner may take each step again: it looks at a drive before it inserts a medium, and `reset.py` keeps it from resetting
a machine that was reset already.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.journey import Journey, StepFailed
from chargehand.doors.provisioning.job.occupancy import Occupancy, Occupant, spot_of
from chargehand.doors.provisioning.job.reset import LOOKS, TRIES, ResetOnce, shows_earlier_reset
from chargehand.doors.provisioning.job.retrying import retry_until
from chargehand.doors.provisioning.job.run import AFTER, BOOTING, KEYS, RunStep
from chargehand.doors.provisioning.machines import Machines
from chargehand.doors.provisioning.media.files import MediaFiles, MediaMissing, Medium
from chargehand.doors.provisioning.media.iso import IsoError
from chargehand.doors.provisioning.media.urls import MediaUrls
from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused
from chargehand.doors.provisioning.redfish.facts import MachineFacts, VirtualDrive
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.doors.provisioning.servers import Servers
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.errors import NotFound

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class BootSteps:
    _settings: ProvisioningConfig
    _servers: Servers
    _machines: Machines
    _occupancy: Occupancy
    _urls: MediaUrls
    _files: MediaFiles

    def __post_init__(self) -> None:
        self._reset_once = ResetOnce(self._settings.poll_seconds, "reset")

    async def go(self, journey: Journey) -> None:
        """Take the steps from where the run is up to WAIT. StepFailed names the one that could not be taken."""
        if journey.run.step is RunStep.BUILD:
            await self._build(journey)
        if journey.run.step not in BOOTING:
            return
        try:
            bmc = await self._servers.bmc(journey.job.tenant, journey.serial)
        except NotFound as error:
            raise StepFailed(Key.REDFISH_DISCOVER, error.message) from None
        async with self._machines.open(bmc, self._settings.boot_seconds, journey.require) as machine:
            facts = journey.run.facts
            if facts is not None and journey.run.step is not RunStep.DISCOVER:
                await self._persist(journey, journey.run.step, lambda: machine.resume(facts))
            for step in BOOTING[BOOTING.index(journey.run.step) :]:
                await self._take(journey, machine, step)

    async def _take(self, journey: Journey, machine: Machine, step: RunStep) -> None:
        await journey.enter(step)
        match step:
            case RunStep.DISCOVER:
                message = await self._discover(journey, machine)
            case RunStep.MOUNT_MAINTENANCE:
                message = await self._mount(journey, machine, step, self._first_medium(journey))
            case RunStep.MOUNT_TASK:
                message = await self._mount_task(journey, machine)
            case RunStep.BOOT_OVERRIDE:
                message = await self._override(journey, machine)
            case RunStep.RESET:
                message = await self._reset(journey, machine)
            case _:
                message = await self._poll(journey, machine)
        await journey.leave(message, to=AFTER[step])

    # media --------------------------------------------------------------------------------------------------------------

    async def _build(self, journey: Journey) -> None:
        await journey.enter(RunStep.BUILD)
        try:
            built = await self._files.build(journey.job, journey.recipe, journey.run.generation)
            await self._files.check(journey.recipe)
        except IsoError as error:
            raise StepFailed(Key.ISO_BUILD, str(error)) from None
        except MediaMissing as error:
            raise StepFailed(Key.ISO_SERVE, str(error)) from None
        message = f"built the task medium: {built.size} bytes, sha256 {built.sha256}, {built.path}"
        await journey.leave(message, to=RunStep.DISCOVER, iso_size=built.size, iso_sha256=built.sha256)

    def _first_medium(self, journey: Journey) -> str:
        if journey.recipe.kind == "esxi":
            return Medium.INSTALLER
        return Medium.BOOT if journey.run.combined else Medium.MAINTENANCE

    async def _discover(self, journey: Journey, machine: Machine) -> str:
        facts = await self._persist(journey, RunStep.DISCOVER, machine.discover)
        if not facts.cds:
            raise StepFailed(
                Key.REDFISH_DISCOVER, "the BMC offers no virtual CD drive that an image can be inserted into"
            )
        await self._occupy(journey, machine, facts)
        await journey.save(facts=facts, combined=second_drive(facts) is None and journey.recipe.kind != "esxi")
        drives = ", ".join(f"{slot.name} ({slot.kind})" for slot in facts.slots)
        return f"found {facts.vendor} {facts.model} at {facts.system}, power {facts.power}, drives {drives}"

    async def _occupy(self, journey: Journey, machine: Machine, facts: MachineFacts) -> None:
        spot = spot_of(machine.address, facts)
        taken = await self._occupancy.take(journey.job.tenant, spot, Occupant(journey.job.id, journey.serial))
        if taken:
            raise StepFailed(Key.CONFLICT_ACTIVE_JOB, taken)
        await journey.save(spot=spot)

    async def _mount_task(self, journey: Journey, machine: Machine) -> str:
        drive = second_drive(_facts(journey))
        if drive is None:
            return "the BMC has one drive: the task medium is part of the image in it"
        return await self._mount(journey, machine, RunStep.MOUNT_TASK, Medium.TASK, drive)

    async def _mount(
        self, journey: Journey, machine: Machine, step: RunStep, name: str, drive: VirtualDrive | None = None
    ) -> str:
        drive = drive or _facts(journey).cds[0]
        # Stored first: whatever happens now, cleaning up knows where to look.
        await journey.save(slots={**journey.run.slots, name: drive.path})
        url = self._urls.url(journey.job.id, name, self._url_seconds(journey))
        try:
            displaced = await self._persist(journey, step, lambda: machine.insert(drive, url, same=self._urls.same))
        except StepFailed as failure:
            if failure.refused:  # then cleaning up need not look for it
                await journey.save(slots={each: path for each, path in journey.run.slots.items() if each != name})
            raise
        if displaced:
            await journey.note(
                f"{drive.name} held another image, which was taken out: {displaced}", level="warn", step=str(KEYS[step])
            )
        return f"inserted {name} into {drive.name}"

    def _url_seconds(self, journey: Journey) -> float:
        settings = self._settings
        waiting = settings.install_seconds if journey.recipe.kind != "maintenance" else settings.maintenance_seconds
        asked = (journey.recipe.timeout_minutes or 0) * 60
        return settings.boot_seconds + settings.bmc_back_seconds + max(waiting, asked) + settings.cleanup_seconds

    async def _override(self, journey: Journey, machine: Machine) -> str:
        drive = _facts(journey).cds[0]
        await journey.save(override=True)
        await self._persist(journey, RunStep.BOOT_OVERRIDE, lambda: machine.boot_from_cd(drive))
        return f"the next boot is from {drive.name}, once"

    # the reset ----------------------------------------------------------------------------------------------------------

    async def _reset(self, journey: Journey, machine: Machine) -> str:
        sent = await self._persist(journey, RunStep.RESET, lambda: self._reset_once.send(journey, machine))
        return f"reset: {sent}"

    async def _poll(self, journey: Journey, machine: Machine) -> str:
        """Wait until the system is on, or the machine itself reports. The BMC may be away while the machine resets."""
        intent = journey.run.reset
        assert intent is not None  # noqa: S101 - there is no way here but through the reset
        seen = "the BMC did not answer"
        looks, turned = 0, intent.power != "On"  # a machine that was off and is now on has booted
        while journey.left(max(intent.asked_at, journey.run.taken_at), self._settings.bmc_back_seconds) > 0:
            if (await journey.ledger()).shows_life_since(intent.asked_at):
                return await self._is_back(journey, "the machine fetches its medium")
            try:
                # Without retries, so that neither the deadline nor the machine waits for it.
                glance = await machine.glance(patience_seconds=0)
                seen = f"the system's power is {glance.power}"
                looks += 1
                turned = turned or glance.power not in ("On", "Unknown")
                if glance.power == "On" and (turned or not shows_earlier_reset(intent, glance)):
                    return await self._is_back(journey, seen)
                if glance.power == "On" and looks >= LOOKS:
                    # It never went off, and shows a reset before ours as the last: ours was accepted and not carried out.
                    await journey.note(
                        "the BMC accepted the reset, but does not show it; it is sent again",
                        level="warn",
                        step=str(Key.REDFISH_RESET),
                    )
                    if not await self._reset_once.send_again(journey, machine):
                        raise StepFailed(Key.REDFISH_RESET, f"the BMC accepted {TRIES} resets and carried out none")
                    intent, looks = journey.run.reset or intent, 0
            except RedfishError as error:
                seen = error.message
            await asyncio.sleep(self._settings.poll_seconds)
        raise StepFailed(
            Key.REDFISH_POLL, f"not back within {self._settings.bmc_back_seconds:g} s after the reset: {seen}"
        )

    async def _is_back(self, journey: Journey, seen: str) -> str:
        await journey.save(booted_at=journey.engine.now())
        return seen

    # retrying -----------------------------------------------------------------------------------------------------------

    async def _persist(self, journey: Journey, step: RunStep, do: Callable[[], Awaitable[T]]) -> T:
        """Retry while the BMC is in trouble and the budget of the boot phase lasts."""
        key = KEYS[step]
        trouble = ""

        async def note(message: str, pause: float) -> None:
            nonlocal trouble
            trouble = f": {message}"
            await journey.save(trouble=message)
            await journey.note(f"{message}; again in {pause:g} s", level="warn", step=str(key))

        def left() -> float:
            return journey.left(journey.run.began_at, self._settings.boot_seconds)

        try:
            async with asyncio.timeout(left() + self._settings.redfish_timeout_seconds):
                return await retry_until(do, left, note, self._settings.poll_seconds)
        except TimeoutError:
            raise StepFailed(key, f"not done within {self._settings.boot_seconds:g} s{trouble}") from None
        except RedfishError as error:
            raise StepFailed(key, error.message, refused=_refused(error)) from None


def _refused(error: RedfishError) -> bool:
    """The BMC refused the request, and so did nothing. A conflict may be with something that we did before."""
    return (
        isinstance(error, RedfishRefused) and not error.unclear and error.status in (400, 403, 404, 405, 415, 422, 501)
    )


def second_drive(facts: MachineFacts) -> VirtualDrive | None:
    """Return the drive for the task medium: another CD drive, else a USB one."""
    return next(iter((*facts.cds[1:], *facts.usbs)), None)


def _facts(journey: Journey) -> MachineFacts:
    if journey.run.facts is None:
        raise StepFailed(Key.REDFISH_DISCOVER, "nothing is known of the machine yet")
    return journey.run.facts
