"""A BMC for tests, on real sockets: power, boot override, virtual drives, sessions, tasks, and the habits of bmc_habits.py.

In a test's own event loop: `async with FakeBmc(Habits(...)) as bmc`. As a process that can be killed and started again:

    python -m tests.provisioning.bmc --port 0 --state state.json --habits '{"slots": ...}' --boot-command program args…

which prints a line of JSON with its URL. `GET /_bmc` returns what happened; `POST /_bmc/guest` acts as the guest.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import secrets
import signal
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.provisioning.bmc_acts import HANG_SECONDS, Acts, OnBoot
from tests.provisioning.bmc_habits import PASSWORD, USER, Boot, Habits
from tests.provisioning.bmc_state import BASE, State, System, error, link


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    body: Any
    status: int
    headers: dict[str, str]


class FakeBmc(Acts):
    def __init__(
        self,
        habits: Habits | None = None,
        on_boot: OnBoot | None = None,
        *,
        port: int = 0,
        state_file: Path | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        chosen = habits or Habits()
        state = State.read(state_file) if state_file and state_file.exists() else State.new(chosen)
        super().__init__(chosen, state, on_boot, clock)
        self.sessions: dict[str, int] = {}  # token -> requests so far
        self.log: list[Call] = []
        self._port = port
        self._tls = tls
        self._file = state_file

    # life -------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def system(self) -> System:
        return self.state.systems[-1]

    def count(self, what: str) -> int:
        """Return how often an action was carried out: "reset", "insert", "eject", "session"."""
        return self.state.counts.get(what, 0)

    def calls(self, method: str, ending: str = "") -> list[Call]:
        return [call for call in self.log if call.method == method and call.path.endswith(ending)]

    def image(self, drive: str) -> str:
        return self.system.drives[drive].image

    async def guest_reboots(self, serial: str | None = None) -> None:
        """Restart as the operating system does: a one-time override that was used does not apply again."""
        await self._boot(self._by_serial(serial), "guest")

    def guest_powers_off(self, serial: str | None = None) -> None:
        self._by_serial(serial).power = "Off"

    def _by_serial(self, serial: str | None) -> System:
        return next(each for each in self.state.systems if serial is None or each.serial == serial)

    # requests ---------------------------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/_bmc"):
            return await self._control(request)
        if self.clock() < self._away_until:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        raw = await request.read()
        body = json.loads(raw) if raw else None
        if self.habits.slow_seconds:
            await asyncio.sleep(self.habits.slow_seconds)
        response = self._guard(request) or await self._answer(request, body, raw)
        self.log.append(Call(request.method, request.path, body, response.status, dict(request.headers)))
        if self._file is not None and request.method != "GET":
            self.state.write(self._file)
        return response

    def _guard(self, request: web.Request) -> web.Response | None:
        habits, root = self.habits, request.path.rstrip("/") == BASE
        if self._left["busy"] and request.method in habits.busy_methods and not root:
            self._left["busy"] -= 1
            busy = error("ServiceTemporarilyUnavailable", "The service is temporarily unavailable.")
            return web.json_response(busy, status=habits.busy_status, headers={"Retry-After": habits.retry_after})
        if self._left["errors"] and request.method == "GET":
            self._left["errors"] -= 1
            return web.json_response(error("InternalError", "Something broke."), status=500)
        logs_in = request.method == "POST" and request.path.endswith("/Sessions")
        if (root and not habits.closed_root) or logs_in or self._knows(request):
            return None
        return web.json_response(error("NoValidSession", "There is no valid session."), status=401)

    def _knows(self, request: web.Request) -> bool:
        token = request.headers.get("X-Auth-Token", "")
        if token in self.sessions:
            self.sessions[token] += 1
            if self.habits.session_requests and self.sessions[token] > self.habits.session_requests:
                del self.sessions[token]
                return False
            return True
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return request.headers.get("Authorization") == f"Basic {basic}"

    async def _answer(self, request: web.Request, body: Any, raw: bytes) -> web.StreamResponse:
        path, method = request.path.rstrip("/"), request.method
        if path.startswith(f"{BASE}/SessionService"):
            return await self._session(method, path, body)
        if path.startswith(f"{BASE}/TaskService"):
            return self._task(path)
        for system in self.state.systems:
            if path == self.pages.target(system, "", "Reset") and method == "POST":
                return await self._reset(system, body)
            for name in system.drives:
                if method == "POST" and not (self.habits.patch_only or self.habits.hollow_actions):
                    if path == self.pages.target(system, name, "Insert"):
                        return await self._insert(system, name, body)
                    if path == self.pages.target(system, name, "Eject"):
                        return self._eject(system, name, raw)
                if method == "PATCH" and path == f"{self.pages.owner(system)}/VirtualMedia/{name}":
                    return self._mismatch(request, path) or await self._patch_drive(system, name, body)
            if method == "PATCH" and path in (system.path, f"{system.path}-moved"):
                return self._mismatch(request, path) or self._patch_system(system, body)
            if method == "PATCH" and path == f"{system.manager}/Attributes" and self.habits.dell_attributes:
                system.attributes |= body["Attributes"]
                return web.Response(status=200)
        if method != "GET":
            return web.json_response(error("OperationNotAllowed", "No such action."), status=405)
        return self._odd(path) or self._get(path)

    def _odd(self, path: str) -> web.Response | None:
        habits = self.habits
        if path != self.system.path:
            return None
        if habits.redirect:
            where = f"{path}-moved" if habits.redirect == "same" else habits.redirect
            return web.Response(status=307, headers={"Location": where})
        if habits.body == "huge":
            return web.json_response({"SerialNumber": habits.serial, "Oem": "x" * (5 * 1024 * 1024)})
        if habits.body == "many":
            text = b'{"SerialNumber":"' + (habits.serial or "").encode() + b'","Oem":[' + b"[]," * 1_000_000 + b"0]}"
            return web.Response(body=text, content_type="application/json")
        if habits.body == "headers":
            return web.json_response({}, headers={f"X-{number}": "x" * 1000 for number in range(10_000)})
        if habits.body == "deep":
            return web.Response(body=b'{"a":' * 20_000 + b"1" + b"}" * 20_000, content_type="application/json")
        return (
            web.Response(text="<html>Please log in</html>", content_type="text/html") if habits.body == "html" else None
        )

    def _get(self, path: str) -> web.Response:
        page = self.pages.page(path)
        if page is None:
            return web.json_response(error("ResourceMissingAtURI", f"There is no resource at {path}."), status=404)
        headers = {"ETag": self._etag(path)} if self.habits.etag not in ("no", "hidden") else {}
        return web.json_response(page, headers=headers)

    # sessions and ETags -----------------------------------------------------------------------------------------------

    async def _session(self, method: str, path: str, body: Any) -> web.Response:
        if self.habits.sessions == "no":
            return web.json_response(error("ResourceMissingAtURI", "There are no sessions."), status=404)
        if method == "GET":
            return web.json_response({"Sessions": link(f"{BASE}/SessionService/Sessions")})
        if method == "DELETE":
            return web.Response(status=204 if self.sessions.pop(path.rpartition("/")[2], None) is not None else 404)
        if self.habits.sessions == "full":
            return web.json_response(error("SessionLimitExceeded", "Too many sessions."), status=503)
        if (body.get("UserName"), body.get("Password")) != (USER, PASSWORD):
            return web.json_response(error("ResourceAtUriUnauthorized", f"Denied: {json.dumps(body)}"), status=401)
        token = secrets.token_hex(8)
        self.sessions[token] = 0
        self.state.count("session")
        if self.habits.session_hangs:
            await asyncio.sleep(HANG_SECONDS)
        headers = {
            "X-Auth-Token": token,
            "Location": f"{self.habits.calls_itself or self.url}{BASE}/SessionService/Sessions/{token}",
        }
        return web.json_response({"@odata.id": f"{BASE}/SessionService/Sessions/{token}"}, status=201, headers=headers)

    def _etag(self, path: str) -> str:
        digest = hashlib.sha256(json.dumps(self.pages.page(path)).encode()).hexdigest()[:16]
        return f'W/"{digest}"' if self.habits.etag == "strong" else f'"{digest}"'

    def _mismatch(self, request: web.Request, path: str) -> web.Response | None:
        if self.habits.etag == "no":
            return None
        given = request.headers.get("If-Match")
        if self.habits.etag == "broken":
            return None if given is None else web.json_response(error("PreconditionFailed", "Another."), status=412)
        if given is None:
            return web.json_response(error("PreconditionRequired", "An ETag is required."), status=428)
        wanted = self._etag(path).removeprefix("W/") if self.habits.etag == "strong" else self._etag(path)
        if given not in ("*", wanted):
            return web.json_response(error("PreconditionFailed", "The ETag is another."), status=412)
        return None

    # from another process ---------------------------------------------------------------------------------------------

    async def _control(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            wish = await request.json()
            if wish.get("power") == "off":
                self.guest_powers_off(wish.get("serial"))
            elif wish.get("away"):
                self.go_away(float(wish["away"]))
            else:
                await self.guest_reboots(wish.get("serial"))
        seen = [{"method": call.method, "path": call.path, "status": call.status} for call in self.log[-500:]]
        boots = [asdict(boot) for boot in self.boots]
        return web.json_response({**asdict(self.state), "boots": boots, "sessions": len(self.sessions), "log": seen})


def _hook(command: list[str]) -> OnBoot | None:
    async def run(boot: Boot) -> None:
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        try:
            await process.communicate(json.dumps(asdict(boot)).encode())
        finally:
            if process.returncode is None:
                process.kill()

    return run if command else None


def _habits(text: str) -> Habits:
    plain = json.loads(text)
    names = {field.name for field in fields(Habits)}
    if unknown := set(plain) - names:
        raise SystemExit(f"no such habit: {', '.join(sorted(unknown))}")
    return Habits(**{key: _tuple(value) for key, value in plain.items()})


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value


async def _main(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    hook = _hook(arguments.boot_command)
    async with FakeBmc(_habits(arguments.habits), hook, port=arguments.port, state_file=arguments.state) as bmc:
        sys.stdout.write(json.dumps({"url": bmc.url}) + "\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A BMC for tests.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--habits", default="{}", help="JSON of the fields of Habits")
    parser.add_argument(
        "--boot-command", nargs=argparse.REMAINDER, default=[], help="run at each boot, with JSON on stdin"
    )
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
