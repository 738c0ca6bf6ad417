"""From nothing to a machine that boots our medium: build, discover, insert, override, reset, and see that it came back.

Each step may be taken again by another owner after a crash: what is inserted is looked at before it is inserted, and a reset is
never sent again before the machine, the media server and the agent were asked whether the last one happened.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import replace

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.journey import Journey, StepFailed, again_until
from chargehand.doors.provisioning.job.ledger import JobLedger
from chargehand.doors.provisioning.job.occupancy import Occupancy, Occupant, spot_of
from chargehand.doors.provisioning.job.run import AFTER, BOOTING, KEYS, ResetIntent, RunStep
from chargehand.doors.provisioning.machines import Machines
from chargehand.doors.provisioning.media.files import MediaFiles, MediaMissing, Medium
from chargehand.doors.provisioning.media.iso import IsoError
from chargehand.doors.provisioning.media.serving import MediaUrls
from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused
from chargehand.doors.provisioning.redfish.facts import Glance, MachineFacts, VirtualDrive
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.doors.provisioning.servers import Servers
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.errors import NotFound

RESET_TRIES = 3
LOOKS = 12  # for signs of a reset whose answer was not heard, one each poll_seconds
SURE_LOOKS = 3  # after which a BMC that tells the time of the last reset is believed that there was none
UNKNOWN = "sent before, and nothing shows whether it happened: not sent again"

T = TypeVar("T")


class BootSteps:
    def __init__(
        self,
        settings: ProvisioningConfig,
        servers: Servers,
        machines: Machines,
        occupancy: Occupancy,
        urls: MediaUrls,
        files: MediaFiles,
    ) -> None:
        self._settings = settings
        self._occupancy = occupancy
        self._servers = servers
        self._machines = machines
        self._urls = urls
        self._files = files

    async def go(self, journey: Journey) -> None:
        """From the step where the run is up to WAIT. StepFailed says which one could not be done."""
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
            await self._files.check(journey.job, journey.recipe)
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
        # Written down first: whatever happens now, cleaning up knows where to look.
        await journey.save(slots={**journey.run.slots, name: drive.path})
        url = self._urls.url(journey.job.id, name, self._url_seconds(journey))
        try:
            displaced = await self._persist(journey, step, lambda: machine.insert(drive, url, same=self._urls.same))
        except StepFailed as failure:
            if failure.refused:  # then there is nothing to look for
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
        sent = await self._persist(journey, RunStep.RESET, lambda: self.reset_once(journey, machine, "reset"))
        return f"reset: {sent}"

    async def reset_once(self, journey: Journey, machine: Machine, which: str) -> str:
        """Sends a reset unless one was sent already; `which` names the intent in the run."""
        intent: ResetIntent | None = getattr(journey.run, which)
        if intent is None:
            return await self._send(journey, machine, which, tries=1)
        if intent.sent:
            return intent.sent
        happened = await self._happened(journey, machine, intent)
        if happened is False:
            return await self._send(journey, machine, which, tries=intent.tries + 1)
        return await self._sent(journey, which, "sent before, and it happened" if happened else UNKNOWN)

    async def _send(self, journey: Journey, machine: Machine, which: str, tries: int) -> str:
        if tries > RESET_TRIES:
            raise RedfishError(f"the reset was sent {RESET_TRIES} times and nothing shows that it happened")
        glance = await machine.glance()
        intent = ResetIntent(journey.engine.now(), glance.power, glance.last_reset_at, glance.override, tries=tries)
        await journey.save(**{which: intent})
        try:
            return await self._sent(journey, which, await machine.reset())
        except RedfishError as error:
            if not error.unclear:  # it was not sent, or refused: whoever comes next need not look for signs
                await journey.save(**{which: None})
                raise
            happened = await self._happened(journey, machine, intent)
            if happened is False:
                raise
            return await self._sent(
                journey, which, "the answer was not heard, but it happened" if happened else UNKNOWN
            )

    async def _sent(self, journey: Journey, which: str, sent: str) -> str:
        await journey.save(**{which: replace(getattr(journey.run, which), sent=sent)})
        return sent

    async def _happened(self, journey: Journey, machine: Machine, intent: ResetIntent) -> bool | None:
        """Whether a reset that may have been sent was carried out. Looks for signs until it is sure or patience ends; None:
        nothing shows it either way. Then it must not be sent again: the machine may be at work on its disk.
        """
        happened = None
        for look in range(LOOKS):
            if signs_of_life(await journey.ledger(), intent.asked_at):
                return True
            try:
                happened = was_reset(intent, await machine.glance(patience_seconds=0))
            except RedfishError:
                happened = None
            if happened or (happened is False and intent.last_reset_at and look + 1 >= SURE_LOOKS):
                return happened
            await asyncio.sleep(self._settings.poll_seconds)
        return happened

    async def confirmed(self, journey: Journey, machine: Machine, which: str) -> bool:
        """False: the BMC took a reset, and goes on showing that there was none. One that shows nothing is believed."""
        intent: ResetIntent = getattr(journey.run, which)
        for _ in range(LOOKS):
            if was_reset(intent, await machine.glance()) is not False:
                return True
            await asyncio.sleep(self._settings.poll_seconds)
        return False

    async def _poll(self, journey: Journey, machine: Machine) -> str:
        """The BMC may go away with the machine. Over when the system is on, or the machine itself was heard of."""
        intent = journey.run.reset
        assert intent is not None  # noqa: S101 - there is no way here but through the reset
        seen = "the BMC did not answer"
        looks, turned = 0, intent.power != "On"  # a machine that was off and is on has booted, whatever else is shown
        while journey.left(max(intent.asked_at, journey.run.taken_at), self._settings.bmc_back_seconds) > 0:
            if signs_of_life(await journey.ledger(), intent.asked_at):
                return await self._is_back(journey, "the machine fetches its medium")
            try:
                # Without patience, so that neither the deadline nor the machine waits for it.
                glance = await machine.glance(patience_seconds=0)
                seen = f"the system's power is {glance.power}"
                looks += 1
                turned = turned or glance.power not in ("On", "Unknown")
                if glance.power == "On" and (turned or not _still_the_same(intent, glance)):
                    return await self._is_back(journey, seen)
                if glance.power == "On" and looks >= LOOKS:
                    # It never went off, and says that it was last reset before ours: one that was accepted and not done.
                    await journey.note(
                        "the BMC took the reset, but shows none; it is sent again",
                        level="warn",
                        step=str(Key.REDFISH_RESET),
                    )
                    await self._again(journey, machine)
                    intent, looks = journey.run.reset or intent, 0
            except RedfishError as error:
                seen = error.message
            await asyncio.sleep(self._settings.poll_seconds)
        raise StepFailed(
            Key.REDFISH_POLL, f"not back within {self._settings.bmc_back_seconds:g} s after the reset: {seen}"
        )

    async def _again(self, journey: Journey, machine: Machine) -> None:
        intent = journey.run.reset
        assert intent is not None  # noqa: S101
        if intent.tries >= RESET_TRIES:
            raise StepFailed(Key.REDFISH_RESET, f"the BMC accepted {RESET_TRIES} resets and carried out none")
        await journey.save(reset=replace(intent, sent=""))
        await self.reset_once(journey, machine, "reset")

    async def _is_back(self, journey: Journey, seen: str) -> str:
        await journey.save(booted_at=journey.engine.now())
        return seen

    # trying again -------------------------------------------------------------------------------------------------------

    async def _persist(self, journey: Journey, step: RunStep, do: Callable[[], Awaitable[T]]) -> T:
        """What is worth trying again is tried while the budget of the boot phase lasts."""
        key = KEYS[step]
        trouble = ""

        async def told(message: str, pause: float) -> None:
            nonlocal trouble
            trouble = f": {message}"
            await journey.save(trouble=message)
            await journey.note(f"{message}; again in {pause:g} s", level="warn", step=str(key))

        def left() -> float:
            return journey.left(journey.run.began_at, self._settings.boot_seconds)

        try:
            async with asyncio.timeout(left() + self._settings.redfish_timeout_seconds):
                return await again_until(do, transient, left, told, self._settings.poll_seconds)
        except TimeoutError:
            raise StepFailed(key, f"not done within {self._settings.boot_seconds:g} s{trouble}") from None
        except RedfishError as error:
            raise StepFailed(key, error.message, refused=_refused(error)) from None


def _refused(error: RedfishError) -> bool:
    """The BMC did not like the request, and so did nothing. A conflict may be with something that we did before."""
    return (
        isinstance(error, RedfishRefused) and not error.unclear and error.status in (400, 403, 404, 405, 415, 422, 501)
    )


def transient(error: BaseException) -> str | None:
    return error.message if isinstance(error, RedfishError) and error.transient else None


def second_drive(facts: MachineFacts) -> VirtualDrive | None:
    """For the task medium: another CD drive, else a USB one."""
    return next(iter((*facts.cds[1:], *facts.usbs)), None)


def signs_of_life(ledger: JobLedger, since: int) -> bool:
    return (ledger.heard_at or 0) >= since or ledger.fetched_since(since)


def was_reset(intent: ResetIntent, glance: Glance) -> bool | None:
    """What a look at the machine says of a reset; None: nothing. One that is off does nothing, and can be told again."""
    if glance.power == "Off":
        return False
    if glance.last_reset_at != intent.last_reset_at or _used_up(intent, glance):
        return True
    if glance.power not in (intent.power, "Unknown") and intent.power not in ("", "Unknown"):
        return True
    # The firmware takes the override before it boots from the medium: while that is there, nothing has begun.
    return False if intent.last_reset_at or intent.override == glance.override == "Once" else None


def _used_up(intent: ResetIntent, glance: Glance) -> bool:
    return intent.override == "Once" and glance.override == "Disabled"


def _still_the_same(intent: ResetIntent, glance: Glance) -> bool:
    """The BMC tells the time of the last reset, and it is the one from before ours."""
    same = bool(intent.last_reset_at) and glance.last_reset_at == intent.last_reset_at
    return same and not _used_up(intent, glance)


def _facts(journey: Journey) -> MachineFacts:
    if journey.run.facts is None:
        raise StepFailed(Key.REDFISH_DISCOVER, "nothing is known of the machine yet")
    return journey.run.facts
