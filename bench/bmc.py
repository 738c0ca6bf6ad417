"""Hundreds of BMCs in one process, each at its own address: they do what is requested at once, and little else.

`python -m bench.bmc COUNT` prints their URLs and ends with its standard input. BMC number n has the system BENCH-n. `GET /count`
at any of them tells how often any system was reset.
"""

import asyncio
import socket
import sys
from functools import partial
from typing import Any, cast

import msgspec
import uvloop

ROOT = "/redfish/v1"
SYSTEM = f"{ROOT}/Systems/1"
MEDIA = f"{SYSTEM}/VirtualMedia"
SESSIONS = f"{ROOT}/SessionService/Sessions"
DRIVES = ("CD1", "CD2")
RESETS = ("On", "ForceOff", "ForceRestart")
IN_A_ROW = 250  # addresses of a network that are used
_REASONS = {200: "OK", 201: "Created", 204: "No Content", 404: "Not Found"}


def address(number: int) -> str:
    """Return the address of a BMC: all of 127/8 is this machine."""
    return f"127.77.{number // IN_A_ROW}.{number % IN_A_ROW + 1}"


def serial(number: int) -> str:
    return f"BENCH-{number}"


class Machine:
    resets = 0  # resets of all systems

    def __init__(self, number: int) -> None:
        self._serial = serial(number)
        self._power = "Off"
        self._boots = 0
        self._override = {"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"}
        self._images: dict[str, str | None] = dict.fromkeys(DRIVES)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "GET":
            page = self._page(path.rstrip("/"))
            return (200, page) if page is not None else (404, {})
        if method == "POST" and path == SESSIONS:
            return 201, {"@odata.id": f"{SESSIONS}/1"}
        if method == "PATCH" and path == SYSTEM:
            self._override |= body["Boot"]
        elif path.endswith("/VirtualMedia.InsertMedia"):
            self._images[path.split("/")[-3]] = body["Image"]
        elif path.endswith("/VirtualMedia.EjectMedia"):
            self._images[path.split("/")[-3]] = None
        elif path.endswith("/ComputerSystem.Reset"):
            self._reset(body["ResetType"])
        return 204, None

    def _reset(self, kind: str) -> None:
        Machine.resets += 1
        self._power = "Off" if kind == "ForceOff" else "On"
        self._boots += 1
        if self._override["BootSourceOverrideEnabled"] == "Once":
            self._override["BootSourceOverrideEnabled"] = "Disabled"

    def _page(self, path: str) -> Any:
        if path == ROOT:
            return {
                "RedfishVersion": "1.15.0",
                "Systems": _link(f"{ROOT}/Systems"),
                "Links": {"Sessions": _link(SESSIONS)},
            }
        if path == f"{ROOT}/Systems":
            return {"Members": [_link(SYSTEM)]}
        if path == SYSTEM:
            return self._system()
        if path == MEDIA:
            return {"Members": [_link(f"{MEDIA}/{name}") for name in DRIVES]}
        name = path.rpartition("/")[2]
        if path == "/count":
            return Machine.resets
        return self._drive(name) if name in DRIVES else None

    def _system(self) -> Any:
        return {
            "Id": "1",
            "SerialNumber": self._serial,
            "Manufacturer": "Bench",
            "Model": "Fast",
            "PowerState": self._power,
            "LastResetTime": f"2026-01-01T00:00:{self._boots:02}Z",
            "Boot": {**self._override, "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Cd", "Hdd"]},
            "VirtualMedia": _link(MEDIA),
            "Actions": {
                "#ComputerSystem.Reset": {
                    "target": f"{SYSTEM}/Actions/ComputerSystem.Reset",
                    "ResetType@Redfish.AllowableValues": RESETS,
                }
            },
        }

    def _drive(self, name: str) -> Any:
        image, path = self._images[name], f"{MEDIA}/{name}"
        verbs = ("VirtualMedia.InsertMedia", "VirtualMedia.EjectMedia")
        return {
            "Id": name,
            "MediaTypes": ["CD"],
            "Image": image,
            "Inserted": image is not None,
            "Actions": {f"#{verb}": {"target": f"{path}/Actions/{verb}"} for verb in verbs},
        }


def _link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


class Talk(asyncio.Protocol):
    """One connection, with one request at a time."""

    _transport: asyncio.Transport

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data, self._pending = self._pending + data, b""
        end = data.find(b"\r\n\r\n") + 4
        head = data[:end].lower()
        at = head.find(b"content-length: ") + 16
        length = int(head[at : head.find(b"\r", at)]) if at > 15 else 0
        if end < 4 or len(data) < end + length:
            self._pending = data
            return
        method, path, _ = data[: data.find(b"\r")].decode().split(" ")
        body = msgspec.json.decode(data[end : end + length]) if length else None
        self._transport.write(_answer(*self._machine.answer(method, path, body)))


def _answer(status: int, page: Any) -> bytes:
    body = b"" if page is None else msgspec.json.encode(page)
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
    if status == 201:
        head += f"x-auth-token: bench\r\nlocation: {SESSIONS}/1\r\n"
    if status != 204:
        head += f"content-length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


async def main(count: int) -> None:
    loop, port, urls = asyncio.get_running_loop(), 0, []
    for number in range(count):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address(number), port))
        port = listener.getsockname()[1]  # the same for all BMCs, so that only their addresses distinguish them
        await loop.create_server(partial(Talk, Machine(number)), sock=listener)
        urls.append(f"http://{address(number)}:{port}")
    print(*urls, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
