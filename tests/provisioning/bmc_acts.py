"""The actions of the BMC for tests: drives, override, power, and the tasks that an action may become."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

from tests.provisioning.bmc_habits import PASSWORD, USER, Boot, Habits
from tests.provisioning.bmc_state import BASE, Pages, State, System, error

OnBoot = Callable[[Boot], Awaitable[None]]
HANG_SECONDS = 30.0


class Acts:
    def __init__(self, habits: Habits, state: State, on_boot: OnBoot | None, clock: Callable[[], float]) -> None:
        self.habits = habits
        self.state = state
        self.clock = clock
        self.pages = Pages(habits, state, clock)
        self.boots: list[Boot] = []
        self.tasks: dict[str, int] = {}  # task -> how often it was read
        self._on_boot = on_boot
        self._left = {"busy": habits.busy, "errors": habits.errors, "inserts": habits.insert_failures}
        self._away_until = 0.0
        self._running: set[asyncio.Task[None]] = set()

    def go_away(self, seconds: float) -> None:
        self._away_until = self.clock() + seconds

    # tasks ---------------------------------------------------------------------------------------------------------

    def _done(self, status: int = 204) -> web.Response:
        """Return the answer to an action: done, or a task to follow."""
        if self.habits.chatty:
            return web.Response(body=b'"' + b"x" * (5 * 1024 * 1024), content_type="application/json")
        if not self.habits.task:
            return web.Response(status=status)
        if self.habits.task == "nameless":
            return web.Response(status=202)
        name = secrets.token_hex(4)
        self.tasks[name] = 0
        where = f"{self.habits.calls_itself}{BASE}/TaskService/{'Tasks' if self.habits.task == 'state-succeeds' else 'Monitors'}/{name}"
        return web.json_response(
            {"@odata.type": "#Task.v1_4_3.Task", "TaskState": "New"}, status=202, headers={"Location": where}
        )

    def _task(self, path: str) -> web.Response:
        name, habit = path.rpartition("/")[2], self.habits.task
        self.tasks[name] += 1
        if (
            self.tasks[name] < 3 or habit == "endless"
        ):  # the task itself answers 200 at once, its monitor 202 until it has ended
            status = 200 if habit == "state-succeeds" else 202
            return web.json_response({"@odata.type": "#Task.v1_4_3.Task", "TaskState": "Running"}, status=status)
        if habit == "refused":
            return web.json_response(error("QueryNotSupported", "Not like this."), status=400)
        if habit == "vanishes":
            return web.json_response(error("ResourceMissingAtURI", "No such task."), status=404)
        if habit == "fails":
            messages = [{"MessageId": "Base.1.8.InternalError", "Message": "The share could not be mounted."}]
            return web.json_response({"TaskState": "Exception", "TaskStatus": "Critical", "Messages": messages})
        return web.json_response({"TaskState": "Completed", "TaskStatus": "OK"})

    # media ------------------------------------------------------------------------------------------------------------

    async def _insert(self, system: System, name: str, body: dict[str, Any]) -> web.Response:
        if self._left["inserts"]:
            self._left["inserts"] -= 1
            return web.json_response(error("InternalError", "The last eject is still under way."), status=500)
        if (refused := self._parameters(body)) is not None:
            return refused
        if system.drives[name].image:
            return web.json_response(error("ResourceInUse", "There is an image in the drive."), status=409)
        url = body["Image"]
        if self.habits.fetches and (problem := await self._fetch(url)):
            return self._refusal("ActionParameterValueError", f"Could not fetch {url}: {problem}.")
        if not (self.habits.insert_silent or self.habits.task == "fails"):
            system.drives[name].image = url
        self.state.count("insert")
        if self.habits.insert_hangs:
            await asyncio.sleep(HANG_SECONDS)
        if "insert" in self.habits.away_after:
            self.go_away(self.habits.away_seconds)
        return self._done()

    def _parameters(self, body: dict[str, Any]) -> web.Response | None:
        action = "#VirtualMedia.InsertMedia"
        for name in self.habits.wants:
            if name not in body:
                text = f"The action {action} requires the parameter {name} to be present in the request body."
                return self._refusal("ActionParameterMissing", text, action, name)
        for name in self.habits.refuses:
            if name in body:
                text = f"The parameter {name} for the action {action} is not supported on the target resource."
                return self._refusal("ActionParameterNotSupported", text, name, action)
        return None

    def _refusal(self, message_id: str, message: str, *args: str) -> web.Response:
        if self.habits.mute:
            return web.Response(status=400, text="Bad Request")
        if self.habits.echoes:
            message += f" Sent by {USER}:{PASSWORD}."
        return web.json_response(error(message_id, message, *args), status=400)

    def _eject(self, system: System, name: str, raw: bytes) -> web.Response:
        wanted = self.habits.eject_body
        if (wanted == "empty" and raw) or (wanted == "object" and raw != b"{}"):
            return web.json_response(
                error("MalformedJSON", "The body is not as it should be."), status=400 if raw else 415
            )
        if not self.habits.eject_silent:
            system.drives[name].image = ""
        self.state.count("eject")
        return self._done()

    async def _patch_drive(self, system: System, name: str, body: dict[str, Any]) -> web.Response:
        if not (self.habits.patch_only or self.habits.hollow_actions):
            return web.json_response(error("PropertyNotWritable", "The property Image is read only."), status=405)
        if body.get("Image") is None:
            system.drives[name].image = ""
            self.state.count("eject")
            return self._done(200)
        return await self._insert(system, name, body)

    async def _fetch(self, url: str) -> str:
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
                async with http.head(url) as head:
                    if head.status >= 400:
                        return f"HEAD answered {head.status}"
                async with http.get(url, headers={"Range": "bytes=0-32767"}) as first:
                    await first.content.read(32768)
                    return "" if first.status < 400 else f"GET answered {first.status}"
        except (aiohttp.ClientError, TimeoutError) as problem:
            return type(problem).__name__

    # boot and power ---------------------------------------------------------------------------------------------------

    def _patch_system(self, system: System, body: dict[str, Any]) -> web.Response:
        boot = body.get("Boot", {})
        mode = "BootSourceOverrideMode"
        if self.habits.wants_mode and mode not in boot and boot.get("BootSourceOverrideEnabled") != "Disabled":
            return self._refusal("PropertyMissing", f"The property {mode} is a required property.", mode)
        if self.habits.refuses_mode and mode in boot:
            return self._refusal(
                "PropertyValueNotInList", f"The value for the property {mode} is not in the list.", mode
            )
        if self._clearing(boot) and not self._clears(boot):
            return self._refusal("PropertyValueNotInList", "The override cannot be cleared like this.")
        if self.habits.override != "ignored":
            system.target = boot.get("BootSourceOverrideTarget", system.target)
            system.enabled = boot.get("BootSourceOverrideEnabled", system.enabled)
            system.mode = boot.get(mode, system.mode)
            if self.habits.override == "continuous":
                system.enabled = "Continuous"
            elif system.enabled == "Disabled":
                system.target = "None"
        self.state.count("override")
        return web.Response(status=204)

    def _clearing(self, boot: dict[str, Any]) -> bool:
        return boot.get("BootSourceOverrideEnabled") == "Disabled" or boot.get("BootSourceOverrideTarget") == "Hdd"

    def _clears(self, boot: dict[str, Any]) -> bool:
        enabled, target = boot.get("BootSourceOverrideEnabled"), boot.get("BootSourceOverrideTarget")
        match self.habits.clears:
            case "disabled":
                return True
            case "none":
                return enabled == "Disabled" and target == "None"
            case "hdd":
                return target == "Hdd"
            case _:
                return False

    async def _reset(self, system: System, body: dict[str, Any]) -> web.Response:
        habit, kind = self.habits.reset, body.get("ResetType", "")
        if kind not in self.habits.resets:
            return web.json_response(
                error("ActionParameterNotSupported", f"ResetType {kind} is not supported."), status=400
            )
        if kind in self.habits.resets_refused:
            return web.json_response(error("ActionNotSupported", f"{kind} cannot be done now."), status=400)
        self.state.count("reset")
        if habit in ("works", "hangs", "error-done"):
            await self._act(system, kind)
        if "reset" in self.habits.away_after:
            self.go_away(self.habits.away_seconds)
        if habit == "hangs":
            await asyncio.sleep(HANG_SECONDS)
        if habit in ("error", "error-done"):
            return web.json_response(error("InternalError", "Something broke while resetting."), status=500)
        return self._done()

    async def _act(self, system: System, kind: str) -> None:
        if kind in ("ForceOff", "GracefulShutdown"):
            system.power = "Off"
            system.moving_until = self.clock() + self.habits.power_seconds
        elif system.power == (
            "Off" if "On" in kind else "On"
        ):  # a restart does not switch on a system that is off, as with real BMCs
            await self._boot(system, kind)

    async def _boot(self, system: System, kind: str) -> None:
        system.power = "On"
        system.moving_until = self.clock() + self.habits.power_seconds
        system.boots += 1
        system.last_reset = f"2026-01-01T00:00:00.{system.boots:06}Z"
        by_dell = system.attributes["ServerBoot.1.FirstBootDevice"] == "VCD-DVD"
        by_standard = system.enabled != "Disabled" and system.target in ("Cd", "UsbCd", "Usb")
        images = {name: drive.image for name, drive in system.drives.items() if drive.image}
        cd = bool(images) and (by_dell if self.habits.dell_attributes else by_standard)
        if system.enabled == "Once":
            system.enabled, system.target = "Disabled", "None"
        system.attributes["ServerBoot.1.FirstBootDevice"] = "Normal"
        if cd and self.habits.fetches:
            await self._fetch(next(iter(images.values())))
        boot = Boot(system.boots, system.serial or "", kind, images, cd)
        self.boots.append(boot)
        if self._on_boot is not None:
            task = asyncio.create_task(_call(self._on_boot, boot))
            self._running.add(task)
            task.add_done_callback(self._running.discard)


async def _call(hook: OnBoot, boot: Boot) -> None:
    await hook(boot)
