"""A server, its receivers and a hostile name server, alone in a network namespace.

Run under `unshare` (see test_rebinding.py): in that namespace there is nothing but loopback, so that public addresses can be
given to it and no packet can leave. The names are really resolved, by the system's resolver. Prints what came of each as JSON.
"""

import asyncio
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from aiohttp import web

from chargehand.app import Server
from chargehand.http.credentials import hash_token
from chargehand.observability.logs import configure_logs
from tests.api.serving import Api, serving, talking

PUBLIC, PUBLIC_6 = "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"
LISTENING = (PUBLIC, PUBLIC_6, "127.0.0.1", "::1")
A, CNAME, AAAA = 1, 5, 28
OF_THE_QUESTION = b"\xc0\x0c"
MS_BIND = 4096
SETTINGS: dict[str, Any] = {"auth.tokens": [{"name": "me", "hash": hash_token("me")}], "webhooks.allow_networks": []}
SETTINGS |= {"webhooks.max_attempts": 1, "webhooks.timeout_seconds": 5}
Records = list[str]


class Hostile:
    """A name server with a list of answers for each name, one per query; the last is repeated."""

    def __init__(self) -> None:
        self.answers: dict[str, Iterator[Records]] = {
            "good.test": iter(lambda: [PUBLIC, PUBLIC_6], None),
            "rebind.test": _then([PUBLIC], ["127.0.0.1"]),
            "rebind6.test": _then([PUBLIC_6], ["::1"]),
            "flip.test": _flipping([PUBLIC], ["127.0.0.1"]),
            "mixed.test": iter(lambda: [PUBLIC, "127.0.0.1"], None),
            "turned.test": iter(lambda: ["127.0.0.1", PUBLIC], None),
            "mixed6.test": iter(lambda: [PUBLIC, "::1"], None),
            "many.test": iter(lambda: [*([PUBLIC] * 20), "10.0.0.1"], None),
            "alias.test": iter(lambda: ["localhost", "127.0.0.1"], None),
            "bare-alias.test": iter(lambda: ["localhost"], None),
            "mapped.test": iter(lambda: ["::ffff:127.0.0.1"], None),
            "nat64.test": iter(lambda: ["64:ff9b::7f00:1"], None),
            "tunnel.test": iter(lambda: ["2002:7f00:1::"], None),
            "zero.test": iter(lambda: ["0.0.0.0"], None),
            "zero6.test": iter(lambda: ["::"], None),
            "private.test": iter(lambda: ["10.0.0.1"], None),
            "metadata.test": iter(lambda: ["169.254.169.254"], None),
            "gone.test": iter(list, None),
        }
        self.asked: list[str] = []

    def answer(self, packet: bytes) -> bytes:
        """Return the answer to one query, with a TTL of 0."""
        end = packet.index(b"\0", 12) + 5
        question, name = packet[12:end], _name(packet)
        (kind,) = struct.unpack("!H", packet[end - 4 : end - 2])
        records: list[bytes] = []
        if name in self.answers and kind in (A, AAAA):
            if kind == A:  # the system queries A and AAAA at once: both get the same answer
                self.asked.append(name)
                self._said = next(self.answers[name])
            alias = [each for each in self._said if _kind(each) == CNAME]
            owner = _labels(alias[0]) if alias else OF_THE_QUESTION
            records = [_record(OF_THE_QUESTION, each) for each in alias]
            records += [_record(owner, each) for each in self._said if _kind(each) == kind]
        head = packet[:2] + struct.pack("!HHHHH", 0x8180 if name in self.answers else 0x8183, 1, len(records), 0, 0)
        return head + question + b"".join(records)

    def serve(self) -> asyncio.DatagramProtocol:
        hostile = self

        class Protocol(asyncio.DatagramProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def datagram_received(self, data: bytes, addr: Any) -> None:
                self.transport.sendto(hostile.answer(data), addr)

        return Protocol()


def _then(*each: Records) -> Iterator[Records]:
    yield from each
    while True:
        yield each[-1]


def _flipping(*each: Records) -> Iterator[Records]:
    while True:
        yield from each


def _name(packet: bytes) -> str:
    labels, at = [], 12
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels).lower()


def _kind(text: str) -> int:
    try:
        return A if isinstance(ip_address(text), IPv4Address) else AAAA
    except ValueError:
        return CNAME


def _labels(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def _record(owner: bytes, text: str) -> bytes:
    kind = _kind(text)
    data = _labels(text) if kind == CNAME else ip_address(text).packed
    return owner + struct.pack("!HHIH", kind, 1, 0, len(data)) + data


# the network ------------------------------------------------------------------------------------------------------------


def make_network() -> None:
    """Set up loopback, and add addresses to it that are public on the Internet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four:
        fcntl.ioctl(four, 0x8914, struct.pack("16sH14x", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running
        address = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, IPv4Address(PUBLIC).packed)
        fcntl.ioctl(four, 0x8916, address)  # SIOCSIFADDR
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six:
        fcntl.ioctl(six, 0x8916, struct.pack("16sIi", IPv6Address(PUBLIC_6).packed, 128, socket.if_nametoindex("lo")))
    _wait_for(PUBLIC_6)


def _wait_for(address: str) -> None:
    """Wait until the kernel lets a new IPv6 address be listened on."""
    until = time.monotonic() + 20
    while True:
        with socket.socket(socket.AF_INET6) as tried:
            try:
                return tried.bind((address, 0))
            except OSError:
                if time.monotonic() > until:
                    raise
        time.sleep(0.01)


def make_resolver(folder: Path) -> None:
    """Point the system's resolver at our name server. Only this namespace sees it."""
    libc = ctypes.CDLL(None, use_errno=True)
    files = {
        "/etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:2\n",
        "/etc/nsswitch.conf": "hosts: files dns\n",
    }
    for place, text in files.items():
        file = folder / Path(place).name
        file.write_text(text)
        if os.path.exists(place) and libc.mount(str(file).encode(), place.encode(), None, MS_BIND, None):
            raise OSError(ctypes.get_errno(), f"{place} cannot be covered")


# the scene --------------------------------------------------------------------------------------------------------------


async def main() -> dict[str, Any]:
    make_network()
    called: list[str] = []

    async def heard(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        called.append(request.transport.get_extra_info("sockname")[0])
        return web.Response(headers={"Connection": "close"})

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_resolver(folder)
        hostile, loop = Hostile(), asyncio.get_running_loop()
        await loop.create_datagram_endpoint(hostile.serve, ("127.0.0.1", 53))
        protocols = web.Server(heard, access_log=None)
        listener = await loop.create_server(lambda: protocols(), LISTENING, 8080)
        stack.callback(listener.close)
        server = await stack.enter_async_context(serving(f"sqlite:///{folder}/jobs.db", SETTINGS))
        api = await stack.enter_async_context(talking(server, "me"))
        found: dict[str, Any] = {}
        for name in hostile.answers:
            tries = 6 if name == "flip.test" else 3
            found[name] = [await deliver(server, api, name, called) for _ in range(tries)]
        return {"found": found, "asked": {name: hostile.asked.count(name) for name in hostile.answers}}


async def deliver(server: Server, api: Api, name: str, called: list[str]) -> dict[str, Any]:
    """Deliver one webhook, with an empty cache of names."""
    server.outbox._sender._pool._dialler._lookups.clear()
    called.clear()
    job_id = await api.submit(webhook={"url": f"http://{name}:8080/", "on": ["queued"]})
    [delivery] = await settled(api, job_id)
    return {"state": delivery["state"], "reason": delivery["reason"], "called": list(called)}


async def settled(api: Api, job_id: str) -> list[Any]:
    while True:
        found: list[Any] = (await api.get(f"/engine/deliveries?job={job_id}")).good()["deliveries"]
        if found and all(each["state"] != "pending" for each in found):
            return found
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    configure_logs("error", "json")
    json.dump(asyncio.run(main()), sys.stdout)
