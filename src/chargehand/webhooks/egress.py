"""The policy for URLs that callers give: which addresses the server may connect to.

A URL is checked twice. When a caller submits it, `EgressPolicy.check_url` checks its syntax and, if the host is an address
in whatever notation, that address. A name is not resolved then: its owner may change the address at any time. When a
connection is opened, `dialling.py` (for webhooks) or `make_connector` (for BMCs) checks every address that the name resolves
to and then, socket by socket, the address that is connected to.

| address                                                       | verdict                                     |
|---------------------------------------------------------------|---------------------------------------------|
| unspecified, link-local, cloud metadata, multicast, reserved  | refused, whatever is configured             |
| in `deny`                                                     | refused                                     |
| loopback, private, shared, documentation: not of the Internet | refused, unless `allow_local` or in `allow` |
| all others                                                    | allowed                                     |

An IPv6 address that contains an IPv4 address must be allowed as both.
"""

import asyncio
import errno
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from chargehand.config import Config
from chargehand.errors import EgressRefused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, socket.AddressFamily], Awaitable[Iterable[str]]]

MAX_URL_CHARACTERS = 2048


def networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


# Our own tables, because those in `ipaddress` change between patch releases of Python.
_NEVER = {
    "is unspecified": networks("0.0.0.0/8", "::/128"),
    "is link-local (where clouds keep their metadata)": networks("169.254.0.0/16", "fe80::/10"),
    "belongs to a cloud's metadata service": networks(
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "fd00:ec2::/32",  # Amazon: metadata is ::254, and ::23 hands out credentials as well
        "fd20:ce::254/128",  # Google
        "fd00:42::42/128",  # Scaleway
    ),
    "is multicast": networks("224.0.0.0/4", "ff00::/8"),
    "is reserved": networks("240.0.0.0/4"),
}
_LOCAL = networks(
    *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    *("::/3", "4000::/2", "8000::/1"),  # all but 2000::/3, the only part of IPv6 that is allocated
    *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
)
_PRIVATE = networks("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
# IPv4-mapped and NAT64: other notations of an IPv4 address, so local only if that is.
_SPELLINGS = networks("::ffff:0:0/96", "64:ff9b::/96")
_IPV4_IN_LOW_BITS = (*_SPELLINGS, *networks("::/96", "::ffff:0:0:0/96"))
_LOCAL_NAT64 = networks("64:ff9b:1::/48")
_LOOPBACK = IPv4Address("127.0.0.1")

_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)(#.*)?", re.ASCII | re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5}))?")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMERIC_END = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_DEFAULT_PORTS = {"http": 80, "https": 443}


class AddressRefused(OSError):
    """The policy forbids an address. An OSError, so that HTTP clients treat it as a failed connection; see `refusal`."""

    def __init__(self, subject: str, reason: str) -> None:
        self.message = f"{subject} {reason}"
        self.reason = reason
        super().__init__(errno.EACCES, self.message)

    def __str__(self) -> str:
        return self.message


def refusal(error: BaseException) -> str | None:
    """Return the text of the AddressRefused that caused this error, or None if there was another cause."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, AddressRefused):
        cause = cause.__cause__
    return None if cause is None else str(cause)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    allow_local: bool = False  # loopback and private networks, all of them
    allow: tuple[Network, ...] = ()
    deny: tuple[Network, ...] = ()

    @classmethod
    def of(cls, config: Config) -> "EgressPolicy":
        """Return the policy for URLs that callers give.

        Local addresses are allowed only if the server listens on loopback and has no authentication: its callers can reach
        them anyway. With authentication, callers may come through a proxy on this host and must not reach its services.
        """
        return cls(
            allow_local=config.server.is_loopback and not config.has_auth,
            allow=networks(*config.webhooks.allow_networks),
            deny=networks(*config.webhooks.deny_networks),
        )

    def for_bmcs(self) -> "EgressPolicy":
        """Return the policy for addresses of BMCs: private networks are allowed, this machine's own services are not."""
        return replace(self, allow=(*self.allow, *_PRIVATE))

    def check_address(self, address: str | Address) -> None:
        """Raise AddressRefused unless the policy allows connections to the address."""
        try:
            parsed = ip_address(address)
        except ValueError:
            raise AddressRefused(repr(address), "is not an IP address") from None
        if isinstance(parsed, IPv6Address) and parsed.scope_id:
            raise AddressRefused(str(address), "has a zone, which names an interface of this machine")
        for face in _faces(parsed):
            reason = self._objection(face)
            if reason:
                raise AddressRefused(str(address) if face == parsed else f"{address}, which leads to {face},", reason)

    def allows(self, address: str) -> bool:
        try:
            self.check_address(address)
        except AddressRefused:
            return False
        return True

    def check_url(self, field: str, url: str) -> str:
        """Return the URL in the normal form that is stored and called, or raise EgressRefused.

        In it scheme and host are in lower case, the host in ASCII, an address in its usual notation, a default port is
        left out; path and query are unchanged except that characters beyond ASCII are percent-encoded. A fragment is
        refused rather than cut off, because it would never be sent. Messages never repeat the URL, which may hold a secret.
        """
        try:
            scheme, host, port, rest = _parse(url)
            if isinstance(host, Address):
                self.check_address(host)
            elif host.removesuffix(".").rpartition(".")[2] == "localhost":
                self._check_localhost(host)
        except (AddressRefused, ValueError) as error:
            raise EgressRefused(field, str(error)) from None
        return f"{scheme}://{_authority(scheme, host, port)}{_target(rest)}"

    def _check_localhost(self, name: str) -> None:
        try:
            self.check_address(_LOOPBACK)
        except AddressRefused as error:
            raise AddressRefused(name, error.reason) from None

    def _objection(self, address: Address) -> str | None:
        for reason, refused in _NEVER.items():
            if _within(address, refused):
                return f"{reason} and is never called"
        if _within(address, self.deny):
            return "is refused by webhooks.deny_networks"
        if self.allow_local or not _is_local(address) or _within(address, self.allow):
            return None
        return "is loopback or private; to permit it, list its network in webhooks.allow_networks"


class Location(NamedTuple):
    """A URL, parsed: which host and port to connect to, and what to request there."""

    is_tls: bool
    host: str  # a name, or an address in its usual notation
    port: int
    authority: str  # for the header Host
    target: str  # path and query


def locate(url: str) -> Location:
    """Parse a URL as `EgressPolicy.check_url` does, raise ValueError for the same syntax; do not check the address."""
    scheme, host, port, rest = _parse(url)
    # Only the lookup uses a name's final dot: certificates and virtual hosts are named without it.
    authority = _authority(scheme, host.removesuffix(".") if isinstance(host, str) else host, port)
    return Location(scheme == "https", str(host), port or _DEFAULT_PORTS[scheme], authority, _target(rest))


class PinnedResolver(AbstractResolver):
    """Resolve a name to numeric addresses, or raise AddressRefused if the policy forbids any of them."""

    def __init__(self, policy: EgressPolicy, resolve: Resolve | None = None) -> None:
        self._policy = policy
        self._resolve = resolve or _system_resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = list(await self._resolve(host, family))
        if not addresses:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
        for address in addresses:
            try:
                self._policy.check_address(address)
            except AddressRefused as error:
                # Without the address itself: the caller sees this text and must not learn our network from our DNS.
                raise AddressRefused(f"{host} resolves to an address that", error.reason) from None
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """There is nothing to close."""


def make_connector(
    policy: EgressPolicy, *, limit: int, limit_per_host: int, resolve: Resolve | None = None
) -> aiohttp.TCPConnector:
    """Return a connector that connects only where the policy allows. Use no proxy: it would connect in our place."""

    def open_socket(info: aiohttp.AddrInfoType) -> socket.socket:
        # aiohttp does not resolve a literal address; this sees every address before the connection.
        family, kind, protocol, _, address = info
        policy.check_address(address[0])
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        resolver=PinnedResolver(policy, resolve),
        socket_factory=open_socket,
        limit=limit,
        limit_per_host=limit_per_host,
        # Cached addresses were checked, and each socket's is checked again. Without the cache, a burst to one name with a
        # slow name server would look it up once for each connection and use up all lookup threads.
        use_dns_cache=True,
        ttl_dns_cache=10,
    )


async def _system_resolve(host: str, family: socket.AddressFamily) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"{host} is not a valid name") from error
    return [str(info[4][0]) for info in infos]


def _parse(url: str) -> tuple[str, str | Address, int | None, str]:
    """Return scheme, host, port and the rest; stricter than URL parsers, so that no later one reads the URL differently."""
    if len(url) > MAX_URL_CHARACTERS:
        raise ValueError(f"the URL is over {MAX_URL_CHARACTERS} characters long")
    if not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("the URL holds white space, a backslash or a character that cannot be printed")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise ValueError("the URL must begin with http:// or https://")
    scheme, authority, rest, fragment = parts.groups()
    if fragment is not None:
        raise ValueError("the URL has a fragment (#), which is never sent")
    if "@" in authority:
        raise ValueError("the URL holds a user name or password; sign the webhooks with a secret instead")
    location = _AUTHORITY.fullmatch(authority)
    if location is None:
        raise ValueError("the URL has no valid host and port")
    host, port = _parse_host(location[1]), int(location[2]) if location[2] else None
    if port is not None and not 1 <= port <= 65535:
        raise ValueError("the port of the URL is not between 1 and 65535")
    return scheme.lower(), host, port, rest


def _authority(scheme: str, host: str | Address, port: int | None) -> str:
    named = f"[{host}]" if isinstance(host, IPv6Address) else str(host)
    return named if port is None or port == _DEFAULT_PORTS[scheme] else f"{named}:{port}"


def _target(rest: str) -> str:
    rest = rest if rest.isascii() else quote(rest, safe=_PRINTABLE)
    return rest if rest.startswith("/") else "/" + rest


def _parse_host(text: str) -> str | Address:
    try:
        if text.startswith("["):
            address = IPv6Address(text[1:-1])
            return address.ipv4_mapped or address
        # As aiohttp does it. Digits and dots of other scripts become ASCII here, before the address is checked.
        name = text.lower() if text.isascii() else str(URL.build(scheme="http", host=text).raw_host)
        bare = name.removesuffix(".")
        if len(bare) > 253 or not _NAME.fullmatch(bare):
            raise ValueError
        # inet_aton knows every spelling that resolvers take for an address: 127.1, 0x7f.1, 0177.0.0.1, 2130706433.
        return IPv4Address(socket.inet_aton(bare)) if _NUMERIC_END.search(bare) else name
    except (ValueError, OSError):
        raise ValueError("the host of the URL is neither a name nor an address") from None


def _faces(address: Address) -> Iterator[Address]:
    """Yield the address and each IPv4 address in it, to which a tunnel or translator would forward the packets."""
    yield address
    if isinstance(address, IPv4Address):
        return
    octets = address.packed
    if _within(address, _IPV4_IN_LOW_BITS) and int(address) > 1:
        yield IPv4Address(octets[12:])
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    elif _within(address, _LOCAL_NAT64):
        # RFC 6052: the position of the IPv4 address depends on the length of the translator's prefix (48, 56, 64 or 96
        # bits), which only its operator knows. Octet 8 is always skipped; no IPv4 address begins with 0.
        readings = (octets[6:8] + octets[9:11], octets[7:8] + octets[9:12], octets[9:13], octets[12:])
        yield from (IPv4Address(reading) for reading in readings if reading[0])


def _is_local(address: Address) -> bool:
    return _within(address, _LOCAL) and not _within(address, _SPELLINGS)


def _within(address: Address, ranges: Iterable[Network]) -> bool:
    return any(address in network for network in ranges)
