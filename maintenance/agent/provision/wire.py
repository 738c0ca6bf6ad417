"""HTTP for the agent: no proxies, a token that is sent to one host only, downloads that resume after a dropped connection."""

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provision import VERSION
from provision.errors import Exit, Trouble
from provision.journal import say

TIMEOUT = 10.0  # seconds for a request, and for each pause within an answer
STALLED = 60.0  # seconds for a pause within a large body
PIECE = 1 << 20
MAX_DOCUMENT = 4 << 20
PATIENCE = 40  # attempts in a row without new data: six minutes, in which a controller can be restarted

_BROKEN = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


class _Openers:
    """An opener that follows redirects and one that does not, with the authorities that they trust."""

    def __init__(self, authorities: Path | None = None) -> None:
        common: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        # Without own authorities the public ones are loaded only when a connection needs them, because that is slow.
        if authorities is not None:
            context = ssl.create_default_context()
            context.load_verify_locations(authorities)
            common.append(urllib.request.HTTPSHandler(context=context))
        self.following = urllib.request.build_opener(*common)
        self.staying = urllib.request.build_opener(*common, _Stay())


_openers = _Openers()


def trust(authorities: Path) -> None:
    """Trust the authorities in this file, in addition to the public ones, from now on. Raise ValueError if it holds none."""
    global _openers
    try:
        _openers = _Openers(authorities)
    except OSError as error:  # an SSLError is one
        raise ValueError(f"{authorities.name} holds no certificate that can be used: {type(error).__name__}") from None


def host_of(url: str) -> str:
    """Return host and port of a URL, also if it is the default port."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def request(url: str, headers: Mapping[str, str], token: str = "", body: bytes | None = None) -> Any:
    made = urllib.request.Request(url, data=body, method="GET" if body is None else "POST")  # noqa: S310 - checked by the schema
    for name, value in {"User-Agent": f"provision/{VERSION}", **headers}.items():
        made.add_header(name, value)
    if token:
        # A redirect may lead to another host, which must not get it.
        made.add_unredirected_header("Authorization", f"Bearer {token}")
    return made


def ask(
    url: str, headers: Mapping[str, str] = {}, token: str = "", body: bytes | None = None, timeout: float = TIMEOUT
) -> Answer:
    """Send one request and return the answer, whatever its status; raise OSError if there was none."""
    opener = _openers.following if body is None else _openers.staying
    try:
        with opener.open(request(url, headers, token, body), timeout=timeout) as response:
            return Answer(response.status, _lower(response.headers), response.read(MAX_DOCUMENT))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _lower(error.headers), error.read(MAX_DOCUMENT))
    except http.client.HTTPException as error:
        raise ConnectionError(type(error).__name__) from None


def fetch(
    url: str,
    headers: Mapping[str, str] = {},
    token: str = "",
    size: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    *,
    verified: bool = False,
) -> Iterator[bytes]:
    """Yield a large body, piece by piece, and resume after a dropped connection. `verified`: the caller checks its digest, so a body
    without a length is accepted, because truncation would be noticed."""
    done, idle = 0, 0
    while size is None or done < size:
        before = done
        try:
            with _open(url, headers, token, done) as response:
                if size is None:
                    size = _size(response, done)
                    if size is None and not verified and not response.chunked:
                        raise Trouble(f"{_plain(url)} does not say how long it is", Exit.REGISTRY)
                skip = 0 if response.status == 206 else done
                while piece := response.read1(PIECE):
                    fresh = piece[skip:]
                    skip -= len(piece) - len(fresh)
                    done += len(fresh)
                    if fresh:
                        yield fresh
            if size is None or done >= size:
                return
            reason = "the connection ended early"
        except _BROKEN as error:
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        idle = 0 if done > before else idle + 1
        if idle >= PATIENCE:
            raise Trouble(f"{_plain(url)}: {reason}, {idle} times in a row", Exit.REGISTRY)
        say(f"{_plain(url)}: {reason} after {done} bytes; going on from there")
        sleep(min(10.0, 0.2 * 2**idle))


def _open(url: str, headers: Mapping[str, str], token: str, done: int) -> Any:
    ranged = {**headers, "Range": f"bytes={done}-"} if done else headers
    try:
        return _openers.following.open(request(url, ranged, token), timeout=STALLED)
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500 or error.code in (408, 429):
                raise ConnectionError(f"answered {error.code}") from None
            raise Trouble(f"{_plain(url)} answered {error.code}", Exit.REGISTRY) from None


def _size(response: Any, done: int) -> int | None:
    length = response.headers.get("Content-Length")
    return int(length) + (done if response.status == 206 else 0) if length and length.isdigit() else None


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _plain(url: str) -> str:
    """Return the URL without its query, which in a signed URL is a secret."""
    return url.partition("?")[0]
