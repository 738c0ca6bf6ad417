"""Resetting a machine once.

The intent to reset is stored first. An owner that finds an intent without its result asks the machine, the media server and the machine's
reports whether the reset happened, before it sends another: the machine may be at work on its disk.
"""

import asyncio

from msgspec.structs import replace

from chargehand.doors.provisioning.job.journey import Journey
from chargehand.doors.provisioning.job.run import ResetIntent
from chargehand.doors.provisioning.redfish.errors import RedfishError
from chargehand.doors.provisioning.redfish.facts import Glance
from chargehand.doors.provisioning.redfish.machine import Machine

TRIES = 3
LOOKS = 12  # for signs of a reset whose answer was lost, one every poll_seconds
SURE_LOOKS = 3  # after so many, a BMC that shows the time of the last reset is believed that there was none
UNKNOWN = "sent before, and nothing shows whether it happened: not sent again"


class ResetOnce:
    """The reset of a job's boot, or of its end: `intent` is the field of the run that stores which."""

    def __init__(self, poll_seconds: float, intent: str) -> None:
        self._poll_seconds = poll_seconds
        self._field = intent

    async def send(self, journey: Journey, machine: Machine) -> str:
        """Send the reset unless it was sent before. Return what was sent, or why nothing was."""
        intent = self._stored(journey)
        if intent is None:
            return await self._send(journey, machine, tries=1)
        if intent.sent:
            return intent.sent
        happened = await self._happened(journey, machine, intent)
        if happened is False:
            return await self._send(journey, machine, tries=intent.tries + 1)
        return await self._sent(journey, "sent before, and it happened" if happened else UNKNOWN)

    async def send_again(self, journey: Journey, machine: Machine) -> bool:
        """Send a reset again that the BMC accepted and did not carry out. False: it was sent too often already."""
        intent = self._stored(journey)
        if intent is None or intent.tries >= TRIES:
            return False
        await journey.save(**{self._field: replace(intent, sent="")})
        await self.send(journey, machine)
        return True

    async def confirmed(self, journey: Journey, machine: Machine) -> bool:
        """Return False if the BMC accepted the reset and still shows that there was none. A BMC that shows nothing is believed."""
        intent = self._stored(journey)
        for _ in range(LOOKS):
            if intent is None or was_reset(intent, await machine.glance()) is not False:
                return True
            await asyncio.sleep(self._poll_seconds)
        return False

    def _stored(self, journey: Journey) -> ResetIntent | None:
        intent: ResetIntent | None = getattr(journey.run, self._field)
        return intent

    async def _send(self, journey: Journey, machine: Machine, tries: int) -> str:
        if tries > TRIES:
            raise RedfishError(f"the reset was sent {TRIES} times and nothing shows that it happened")
        glance = await machine.glance()
        intent = ResetIntent(journey.engine.now(), glance.power, glance.last_reset_at, glance.override, tries=tries)
        await journey.save(**{self._field: intent})
        try:
            return await self._sent(journey, await machine.reset())
        except RedfishError as error:
            if not error.unclear:  # it was not sent, or refused: the next owner need not look for signs of it
                await journey.save(**{self._field: None})
                raise
            happened = await self._happened(journey, machine, intent)
            if happened is False:
                raise
            return await self._sent(journey, "the answer was lost, but the reset happened" if happened else UNKNOWN)

    async def _sent(self, journey: Journey, sent: str) -> str:
        await journey.save(**{self._field: replace(getattr(journey.run, self._field), sent=sent)})
        return sent

    async def _happened(self, journey: Journey, machine: Machine, intent: ResetIntent) -> bool | None:
        """Look for signs of the reset, at most LOOKS times. Return whether it happened; None: unknown."""
        happened = None
        for look in range(LOOKS):
            if (await journey.ledger()).shows_life_since(intent.asked_at):
                return True
            try:
                happened = was_reset(intent, await machine.glance(patience_seconds=0))
            except RedfishError:
                happened = None
            if happened or (happened is False and intent.last_reset_at and look + 1 >= SURE_LOOKS):
                return happened
            await asyncio.sleep(self._poll_seconds)
        return happened


def was_reset(intent: ResetIntent, glance: Glance) -> bool | None:
    """Whether the reset happened, by one look at the machine; None: unknown. A machine that is off does nothing, and may be reset again."""
    if glance.power == "Off":
        return False
    if glance.last_reset_at != intent.last_reset_at or _override_used(intent, glance):
        return True
    if glance.power not in (intent.power, "Unknown") and intent.power not in ("", "Unknown"):
        return True
    # The firmware takes the override before it boots from the medium: while the override is there, nothing has begun.
    return False if intent.last_reset_at or intent.override == glance.override == "Once" else None


def shows_earlier_reset(intent: ResetIntent, glance: Glance) -> bool:
    """The BMC shows the time of the last reset, and it is the one from before ours."""
    same = bool(intent.last_reset_at) and glance.last_reset_at == intent.last_reset_at
    return same and not _override_used(intent, glance)


def _override_used(intent: ResetIntent, glance: Glance) -> bool:
    return intent.override == "Once" and glance.override == "Disabled"
