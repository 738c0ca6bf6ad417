"""The one-time boot override: boot from the virtual CD once."""

from collections.abc import Callable
from functools import partial

from chargehand.doors.provisioning.redfish.client import RedfishClient
from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused
from chargehand.doors.provisioning.redfish.facts import MachineFacts, VirtualDrive
from chargehand.doors.provisioning.redfish.quirks import Quirks
from chargehand.doors.provisioning.redfish.resources import link, links, part, text, texts
from chargehand.doors.provisioning.redfish.transport import RedfishAnswer

LOOK_SECONDS = 10.0
CLEAR_LOOK_SECONDS = 3.0

ENABLED = "BootSourceOverrideEnabled"
TARGET = "BootSourceOverrideTarget"
MODE = "BootSourceOverrideMode"
_OTHER_WORDS = (400, 409, 415, 422)
_LEGAL_MODES = ("UEFI", "Legacy")


class BootOverride:
    def __init__(self, client: RedfishClient, facts: MachineFacts, quirks: Quirks) -> None:
        self._client = client
        self._facts = facts
        self._quirks = quirks

    async def once_from(self, slot: VirtualDrive, mode: str | None) -> None:
        """Set the override and check that it is set. It is idempotent, so it is repeated on transient errors."""
        while True:
            try:
                if self._quirks.dell_attributes and await self._dell("VCD-DVD" if slot.kind == "cd" else "vFDD"):
                    return
                system = await self._client.get(self._facts.system)
                wanted = self._wanted(system, slot, mode)
                if _is_set(system, wanted) and (_often(system) == wanted[ENABLED] or self._quirks.only_continuous):
                    return
                await self._set(system, wanted)
                if await self._shows(partial(_is_set, wanted=wanted), LOOK_SECONDS):
                    return
                system = await self._client.get(self._facts.system)
                raise RedfishError(
                    f"the BMC accepted the boot override {wanted[TARGET]}, but shows {_describe(system)}",
                    transient=False,
                )
            except RedfishError as error:
                if not error.transient or not await self._client.patience.pause(error.retry_after_seconds):
                    raise

    async def clear(self) -> None:
        """Remove the override; if a BMC has only permanent ones, set it to the disk."""
        refused: RedfishError | None = None
        while True:
            try:
                if self._quirks.dell_attributes:
                    await self._dell("Normal")
                system = await self._client.get(self._facts.system)
                if _is_clear(system):
                    return
                for wanted in self._ways_to_clear(system):
                    try:
                        await self._client.patch(system, {"Boot": wanted})
                    except RedfishRefused as error:
                        if error.status not in _OTHER_WORDS:
                            raise
                        refused = refused or error
                        continue
                    if await self._shows(_is_clear, CLEAR_LOOK_SECONDS):
                        return
                raise refused or RedfishError(
                    "the boot override cannot be cleared: the BMC accepts the change, but still shows it",
                    transient=False,
                )
            except RedfishError as error:
                if not error.transient or not await self._client.patience.pause(error.retry_after_seconds):
                    raise

    # setting ----------------------------------------------------------------------------------------------------------

    def _wanted(self, system: RedfishAnswer, slot: VirtualDrive, mode: str | None) -> dict[str, str]:
        boot = part(system.data, "Boot")
        allowed = texts(boot.get(f"{TARGET}@Redfish.AllowableValues"))
        names = self._quirks.cd_targets if slot.kind == "cd" else self._quirks.usb_targets
        target = next((name for name in names if name in allowed), "" if allowed else names[0])
        if not target:
            raise RedfishRefused(
                f"the system offers no boot override to a {slot.kind} drive: it offers {', '.join(allowed)}"
            )
        often = texts(boot.get(f"{ENABLED}@Redfish.AllowableValues"))
        lasting = often and "Once" not in often
        wanted = {ENABLED: "Continuous" if lasting else "Once", TARGET: target}
        if mode or self._quirks.names_mode:
            shown = text(boot, MODE)
            wanted[MODE] = mode or (shown if shown in _LEGAL_MODES else "UEFI")
        return wanted

    async def _set(self, system: RedfishAnswer, wanted: dict[str, str]) -> None:
        try:
            await self._client.patch(system, {"Boot": wanted})
        except RedfishRefused as error:
            missing, unwanted = error.said.blames((MODE,))
            shown = text(part(system.data, "Boot"), MODE)
            if error.status not in _OTHER_WORDS or not (missing if MODE not in wanted else unwanted):
                raise
            wanted.pop(MODE, None)
            if missing:
                wanted[MODE] = shown if shown in _LEGAL_MODES else "UEFI"
            await self._client.patch(system, {"Boot": wanted})

    async def _shows(self, so: Callable[[RedfishAnswer], bool], seconds: float) -> bool:
        patience = self._client.patience.within(seconds)
        while not so(await self._client.get(self._facts.system)):
            if not await patience.pause():
                return False
        return True

    # clearing ---------------------------------------------------------------------------------------------------------

    def _ways_to_clear(self, system: RedfishAnswer) -> list[dict[str, str]]:
        boot = part(system.data, "Boot")
        allowed = texts(boot.get(f"{TARGET}@Redfish.AllowableValues"))
        to_disk = {TARGET: "Hdd", ENABLED: text(boot, ENABLED) or "Continuous"}
        ways = [] if self._quirks.only_continuous else [{ENABLED: "Disabled"}]
        if not self._quirks.only_continuous and (not allowed or "None" in allowed):
            ways.append({ENABLED: "Disabled", TARGET: "None"})
        if not allowed or "Hdd" in allowed:
            ways.append(to_disk)
        return ways

    # Dell -------------------------------------------------------------------------------------------------------------

    async def _dell(self, device: str) -> bool:
        """Set the boot device by attributes of the iDRAC. Return False if it has none, so that the standard way is used."""
        once = "Disabled" if device == "Normal" else "Enabled"
        wanted = {"ServerBoot.1.BootOnce": once, "ServerBoot.1.FirstBootDevice": device}
        for path in self._facts.managers:
            attributes = await self._dell_attributes(path)
            if attributes is None or "ServerBoot.1.FirstBootDevice" not in part(attributes.data, "Attributes"):
                continue
            await self._client.patch(attributes, {"Attributes": wanted})
            now = part((await self._client.get(attributes.path)).data, "Attributes")
            if now.get("ServerBoot.1.FirstBootDevice") != device:
                raise RedfishError(
                    f"the iDRAC accepted {device} as first boot device, but does not show it", transient=True
                )
            return True
        return False

    async def _dell_attributes(self, manager: str) -> RedfishAnswer | None:
        found = await self._client.find(manager)
        if found is None:
            return None
        named = links(part(found.data, "Links", "Oem", "Dell"), "DellAttributes")
        own = manager.rstrip("/").rpartition("/")[2]
        path = next((each for each in named if each.rstrip("/").endswith(own)), link(found.data, "Attributes"))
        return await self._client.find(path) if path else None


def _is_set(system: RedfishAnswer, wanted: dict[str, str]) -> bool:
    boot = part(system.data, "Boot")
    return text(boot, TARGET) == wanted[TARGET] and text(boot, ENABLED) in ("Once", "Continuous")


def _often(system: RedfishAnswer) -> str:
    return text(part(system.data, "Boot"), ENABLED)


def _is_clear(system: RedfishAnswer) -> bool:
    boot = part(system.data, "Boot")
    enabled, target = text(boot, ENABLED), text(boot, TARGET)
    return enabled in ("", "Disabled") or target in ("", "None") or (enabled == "Continuous" and target == "Hdd")


def _describe(system: RedfishAnswer) -> str:
    boot = part(system.data, "Boot")
    return f"{text(boot, TARGET) or 'nothing'} ({text(boot, ENABLED) or 'not enabled'})"
