"""Reset a system, once, and switch it off.

A reset cannot be undone and a BMC cannot recognise a repeated one, so it is sent once. If there is no answer, or an internal
error, it is unknown whether the reset happened: the error is `unclear`, and the caller must check.
"""

from collections.abc import Callable

from chargehand.doors.provisioning.redfish.client import RedfishClient
from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused, RedfishUnreachable
from chargehand.doors.provisioning.redfish.facts import MachineFacts, power_of
from chargehand.doors.provisioning.redfish.resources import RedfishAction, action
from chargehand.doors.provisioning.redfish.transport import RedfishAnswer
from chargehand.doors.provisioning.redfish.walk import RESET

SETTLE_SECONDS = 10.0  # how long a change of the power state may take
OFF_THEN_ON = "ForceOff+On"

_MOVING = ("PoweringOn", "PoweringOff", "Resetting")
_WAKE = ("On", "ForceOn", "PushPowerButton")
# The graceful restart comes last: an operating system that hangs or is missing does not react to it.
_AGAIN = ("ForceRestart", "PowerCycle", OFF_THEN_ON, "FullPowerCycle", "GracefulRestart")
_OFF = ("ForceOff", "GracefulShutdown")
_NEXT_ONE = (400, 405, 422, 501)


class Power:
    def __init__(self, client: RedfishClient, facts: MachineFacts) -> None:
        self._client = client
        self._facts = facts

    async def reset(self) -> str:
        system = await self._settled()
        reset = await self._action(system)
        off = power_of(system.data.get("PowerState")) == "Off"
        refused: RedfishRefused | None = None
        for kind in _offered(reset, _WAKE if off else _AGAIN):
            try:
                await self._send(reset, "ForceOff" if kind == OFF_THEN_ON else kind)
            except RedfishRefused as error:  # it was refused, so nothing happened and another kind may be tried
                if error.unclear or error.status not in _NEXT_ONE:
                    raise
                refused = refused or error
                continue
            if kind == OFF_THEN_ON:
                await self._on_after_off(reset)
            return kind
        raise refused or RedfishRefused(
            f"the system offers no reset that boots it; it has {', '.join(_allowed(reset)) or 'none'}"
        )

    async def _on_after_off(self, reset: RedfishAction) -> None:
        try:
            await self._until_off()
            await self._send(reset, "On")
        except RedfishError as error:
            error.unclear = True  # half of it was done
            raise

    async def off(self) -> None:
        system = await self._settled()
        if power_of(system.data.get("PowerState")) == "Off":
            return
        reset = await self._action(system)
        kind = next(iter(_offered(reset, _OFF)), "")
        if not kind:
            raise RedfishRefused(
                f"the system cannot be switched off; it has {', '.join(_allowed(reset)) or 'no reset'}"
            )
        try:
            await self._send(reset, kind)
        except RedfishUnreachable as error:
            if not error.unclear:
                raise
        await self._until_off()

    async def _action(self, system: RedfishAnswer) -> RedfishAction:
        reset = await action(self._client, system.data, RESET)
        if reset is None:
            raise RedfishRefused("the system offers no reset")
        return reset

    async def _send(self, reset: RedfishAction, kind: str) -> None:
        await self._client.post(reset.target, {"ResetType": kind})

    async def _settled(self) -> RedfishAnswer:
        """Return the system once its power state is no longer changing, or after SETTLE_SECONDS."""
        return await self._poll(lambda power: power not in _MOVING, SETTLE_SECONDS)

    async def _until_off(self) -> None:
        system = await self._poll(lambda power: power == "Off", self._client.patience.left)
        if power_of(system.data.get("PowerState")) != "Off":
            raise RedfishError("the system was switched off, but does not show it", transient=True, unclear=True)

    async def _poll(self, so: Callable[[str], bool], seconds: float) -> RedfishAnswer:
        patience = self._client.patience.within(seconds)
        while True:
            system = await self._client.get(self._facts.system)
            if so(power_of(system.data.get("PowerState"))) or not await patience.pause():
                return system


def _allowed(reset: RedfishAction) -> tuple[str, ...]:
    return reset.allowed.get("ResetType", ())


def _offered(reset: RedfishAction, wanted: tuple[str, ...]) -> list[str]:
    """Return the wanted kinds that the system offers, in our order; if it lists none, the first."""
    allowed = _allowed(reset)
    if not allowed:
        return list(wanted[:1])
    return [kind for kind in wanted if kind in allowed or (kind == OFF_THEN_ON and {"ForceOff", "On"} <= set(allowed))]
