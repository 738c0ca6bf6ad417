"""Open connections to receivers, only to addresses that the egress policy allows.

A name is looked up once for a burst, and the policy checks every address that it has (`PinnedResolver`). Each new socket's
address is checked again, because an address given literally in the URL is not looked up.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import TypeVar

import aiohappyeyeballs
import aiohttp
from aiohttp.abc import ResolveResult

from chargehand.webhooks.egress import AddressRefused, EgressPolicy, Location, PinnedResolver, Resolve
from chargehand.webhooks.exchange import CallFailed

NAME_SECONDS = 10.0  # how long addresses are cached; each socket's address is checked again
MAX_NAMES = 1000
STAGGER_SECONDS = 0.25  # how long one address is tried before the next of the same name is tried in parallel

P = TypeVar("P", bound=asyncio.Protocol)
AddressInfo = aiohttp.AddrInfoType


class Dialler:
    def __init__(self, policy: EgressPolicy, resolve: Resolve | None = None) -> None:
        self._policy = policy
        self._resolver = PinnedResolver(policy, resolve)
        # Shared, because a burst of lookups of one name with a slow name server would use up all lookup threads.
        self._lookups: dict[str, asyncio.Task[list[ResolveResult]]] = {}
        self._tls: ssl.SSLContext | None = None

    async def connect(self, to: Location, protocol: Callable[[], P]) -> P:
        """Return a connection or raise CallFailed; `egress.refusal` finds out whether the policy refused it."""
        try:
            addresses = await self._addresses(to)
        except OSError as error:
            raise CallFailed(f"cannot look up {to.host}: {error.strerror or error}") from error
        try:
            return await self._connect(to, addresses, protocol)
        except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError for some failures of connect()
            raise CallFailed(f"cannot connect to {to.authority}: {_reason(error)}") from error

    async def _connect(self, to: Location, addresses: list[AddressInfo], protocol: Callable[[], P]) -> P:
        opened = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=STAGGER_SECONDS, socket_factory=self._open_socket
        )
        try:
            _, connected = await asyncio.get_running_loop().create_connection(
                protocol,
                sock=opened,
                ssl=self._context() if to.is_tls else None,
                server_hostname=to.host.rstrip(".") if to.is_tls else None,
            )
        except BaseException:
            with suppress(OSError, RuntimeError):  # a transport may have closed it already
                opened.close()
            raise
        return connected

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _open_socket(self, info: AddressInfo) -> socket.socket:
        family, kind, protocol, _, address = info
        self._policy.check_address(address[0])
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    async def _addresses(self, to: Location) -> list[AddressInfo]:
        try:
            addresses = [ip_address(to.host).compressed]
        except ValueError:
            addresses = [each["host"] for each in await self._look_up(to.host)]
        return [_info(address, to.port) for address in addresses]

    async def _look_up(self, name: str) -> list[ResolveResult]:
        lookup = self._lookups.get(name)
        if lookup is None:
            if len(self._lookups) >= MAX_NAMES:
                del self._lookups[next(iter(self._lookups))]
            lookup = self._lookups[name] = asyncio.create_task(self._resolver.resolve(name))
            lookup.add_done_callback(lambda done: self._looked_up(name, done))
        return await asyncio.shield(lookup)  # other callers may wait for the same lookup

    def _looked_up(self, name: str, lookup: "asyncio.Task[list[ResolveResult]]") -> None:
        if lookup.cancelled() or lookup.exception() is not None:
            self._forget(name, lookup)
        else:
            asyncio.get_running_loop().call_later(NAME_SECONDS, self._forget, name, lookup)

    def _forget(self, name: str, lookup: "asyncio.Task[list[ResolveResult]]") -> None:
        if self._lookups.get(name) is lookup:
            del self._lookups[name]


def _info(address: str, port: int) -> AddressInfo:
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)


def _reason(error: OSError | RuntimeError) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, AddressRefused | ssl.SSLError):
        return os.strerror(error.errno)  # the event loop's text would repeat the address
    return str(error) or type(error).__name__
