"""Open sockets to listen on: one for each address of a name, all with the same port."""

import asyncio
import errno
import socket
from typing import Any

from chargehand.errors import ConfigError

BACKLOG = 2048


async def bind(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"{host} cannot be listened on: {error.strerror}; choose another with --listen") from None
    bound: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        # With port 0 the system chooses a free port for the first address; the others must get the same.
        wanted = (address[0], port or (bound[0].getsockname()[1] if bound else 0), *address[2:])
        try:
            bound.append(_listen(family, kind, protocol, wanted))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and (bound or len(found) > 1):
                continue
            for other in bound:
                other.close()
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            why = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
            raise ConfigError(f"{where} {why}; choose another with --listen") from None
    if not bound:
        raise ConfigError(f"{host} is not an address of this machine; choose another with --listen")
    return bound


def url_of(bound: tuple[str, int], *, tls: bool) -> str:
    host, port = bound
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _listen(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        # With SO_REUSEADDR two sockets can be bound to one port; only the second listen() fails.
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
