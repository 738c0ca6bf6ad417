"""The state of a BMC's systems, which can be written to a file, and the Redfish resources made from it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.provisioning.bmc_habits import Habits

BASE = "/redfish/v1"


@dataclass
class Drive:
    media: tuple[str, ...]
    image: str = ""


@dataclass
class System:
    id: str
    serial: str | None
    uuid: str | None
    drives: dict[str, Drive]
    power: str = "Off"
    moving_until: float = 0.0
    enabled: str = "Disabled"
    target: str = "None"
    mode: str = "UEFI"
    last_reset: str = "2026-01-01T00:00:00Z"
    boots: int = 0
    attributes: dict[str, str] = field(
        default_factory=lambda: {"ServerBoot.1.BootOnce": "Disabled", "ServerBoot.1.FirstBootDevice": "Normal"}
    )

    @property
    def path(self) -> str:
        return f"{BASE}/Systems/{self.id}"

    @property
    def manager(self) -> str:
        return f"{BASE}/Managers/BMC{self.id}"


@dataclass
class State:
    systems: list[System]
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def new(cls, habits: Habits) -> "State":
        systems = []
        for number in range(1, habits.systems + 1):
            last = number == habits.systems
            drives = {name: Drive(media) for name, media in habits.slots}
            serial = habits.serial if last else f"OTHER-{number}"
            uuid = habits.uuid if last else f"00000000-0000-4000-8000-{number:012}"
            systems.append(System(str(number), serial, uuid, drives, habits.power))
        return cls(systems)

    @classmethod
    def read(cls, file: Path) -> "State":
        plain = json.loads(file.read_text())
        systems = [
            System(
                **{**each, "drives": {name: Drive(tuple(d["media"]), d["image"]) for name, d in each["drives"].items()}}
            )
            for each in plain["systems"]
        ]
        return cls(systems, plain["counts"])

    def write(self, file: Path) -> None:
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(file)

    def count(self, what: str) -> int:
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def collection(path: str, members: list[str]) -> dict[str, Any]:
    return {"@odata.id": path, "Members": [link(member) for member in members], "Members@odata.count": len(members)}


def error(message_id: str, message: str, *args: str) -> dict[str, Any]:
    info = {"MessageId": f"Base.1.8.{message_id}", "Message": message, "MessageArgs": list(args)}
    general = {
        "code": "Base.1.8.GeneralError",
        "message": "See @Message.ExtendedInfo.",
        "@Message.ExtendedInfo": [info],
    }
    return {"error": general}


class Pages:
    """The Redfish resources, with the habits applied."""

    def __init__(self, habits: Habits, state: State, clock: Callable[[], float]) -> None:
        self.habits = habits
        self.state = state
        self._clock = clock

    def root(self) -> dict[str, Any]:
        if self.habits.body == "stranger":
            return {"hello": "world"}
        page: dict[str, Any] = {
            "@odata.id": f"{BASE}/",
            "RedfishVersion": "1.15.0",
            "Systems": link(f"{BASE}/Systems"),
            "Managers": link(f"{BASE}/Managers"),
            "Links": {},
        }
        if self.habits.sessions != "no":
            page["SessionService"] = link(f"{BASE}/SessionService")
        if self.habits.sessions in ("yes", "full"):
            page["Links"] = {"Sessions": link(f"{BASE}/SessionService/Sessions")}
        return page

    def power(self, system: System) -> str:
        if self.habits.shows_power:
            return self.habits.shows_power
        if self._clock() < system.moving_until:
            return "PoweringOn" if system.power == "On" else "PoweringOff"
        return system.power

    def system(self, system: System) -> dict[str, Any]:
        habits = self.habits
        reset: dict[str, Any] = {"target": self.target(system, "", "Reset")}
        if habits.action_info:
            reset["@Redfish.ActionInfo"] = f"{system.path}/ResetActionInfo"
        elif habits.reset_list:
            reset["ResetType@Redfish.AllowableValues"] = list(habits.resets)
        page: dict[str, Any] = {
            "@odata.id": system.path,
            "Id": system.id,
            "Manufacturer": habits.manufacturer,
            "Model": habits.model,
            "PowerState": self.power(system),
            "BiosVersion": "2.1",
            "BootProgress": {"LastState": "OSRunning" if system.power == "On" else "None"},
            "Boot": {
                "BootSourceOverrideEnabled": system.enabled,
                "BootSourceOverrideTarget": system.target,
                "BootSourceOverrideTarget@Redfish.AllowableValues": list(habits.targets),
                "BootSourceOverrideMode": system.mode,
                "BootSourceOverrideMode@Redfish.AllowableValues": ["UEFI", "Legacy"],
            },
            "Links": {"ManagedBy": [link(system.manager)]} if habits.managed_by else {},
            "Actions": {"#ComputerSystem.Reset": reset} if habits.resets else {},
        }
        page |= {"LastResetTime": system.last_reset} if habits.tells_reset else {}
        page |= {"SerialNumber": system.serial} if system.serial is not None else {}
        page |= {"UUID": system.uuid} if system.uuid is not None else {}
        page |= {"SKU": habits.sku} if habits.sku is not None else {}
        if habits.media_under == "system":
            page["VirtualMedia"] = link(f"{system.path}/VirtualMedia")
        return page

    def manager(self, system: System) -> dict[str, Any]:
        page: dict[str, Any] = {"@odata.id": system.manager, "Links": {"ManagerForServers": [link(system.path)]}}
        if self.habits.media_under == "manager":
            page["VirtualMedia"] = link(f"{system.manager}/VirtualMedia")
        if self.habits.dell_attributes:
            page["Links"]["Oem"] = {"Dell": {"DellAttributes": [link(f"{system.manager}/Attributes")]}}
            page["Attributes"] = link(f"{system.manager}/Attributes")
        return page

    def owner(self, system: System) -> str:
        return system.path if self.habits.media_under == "system" else system.manager

    def drive(self, system: System, name: str) -> dict[str, Any]:
        drive = system.drives[name]
        shown = drive.image.rpartition("/")[2] if self.habits.abbreviates else drive.image
        page: dict[str, Any] = {
            "@odata.id": f"{self.owner(system)}/VirtualMedia/{name}",
            "Id": name,
            **({"MediaTypes": list(drive.media)} if drive.media else {}),
            "Image": shown or None,
            "Inserted": bool(drive.image),
        }
        if not self.habits.patch_only:
            page["Actions"] = {
                f"#VirtualMedia.{verb}Media": {"target": self.target(system, name, verb)}
                for verb in ("Insert", "Eject")
            }
        return page

    def target(self, system: System, name: str, verb: str) -> str:
        if self.habits.odd_targets:
            return f"{BASE}/Oem/Do/{system.id}-{name or 'all'}-{verb.lower()}"
        if verb == "Reset":
            return f"{system.path}/Actions/ComputerSystem.Reset"
        return f"{self.owner(system)}/VirtualMedia/{name}/Actions/VirtualMedia.{verb}Media"

    def page(self, path: str) -> dict[str, Any] | None:
        systems = self.state.systems
        if path == BASE:
            return self.root()
        if path == f"{BASE}/Systems":
            return collection(path, [each.path for each in systems])
        if path == f"{BASE}/Managers":
            return collection(path, [each.manager for each in systems])
        for each in systems:
            media = f"{self.owner(each)}/VirtualMedia"
            if path in (each.path, f"{each.path}-moved"):
                return self.system(each)
            if path == each.manager:
                return self.manager(each)
            if path == media:
                return collection(path, [f"{path}/{name}" for name in each.drives])
            if path.startswith(f"{media}/") and (name := path.removeprefix(f"{media}/")) in each.drives:
                return self.drive(each, name)
            if path == f"{each.path}/ResetActionInfo":
                allowed = {"Name": "ResetType", "Required": True, "AllowableValues": list(self.habits.resets)}
                return {"Parameters": [allowed]}
            if path == f"{each.manager}/Attributes" and self.habits.dell_attributes:
                return {"Attributes": each.attributes}
        return None
