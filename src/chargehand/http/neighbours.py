"""Who is at this machine. Without [auth] that is all that keeps others out, and a browser at this machine speaks for every page it shows.

A page of somebody else's cannot read our answers, but it can send requests; and with a name of its own that it lets point to 127.0.0.1
it could do both. Browsers say which page asks (`Origin`) and by which name we were reached (`Host`): both must be ours.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

_WEB = ("http", "https")  # other schemes are of programs (app://, tauri://, vscode-webview://): no page has them


@lru_cache(maxsize=1024)  # the same few come with every request
def is_neighbour(host: str, origin: str, names: frozenset[str] = frozenset()) -> bool:
    """Whether a request with these headers may be from here. No header: it was not sent by a browser. `names`: also ours."""
    called = _name(f"//{host}")
    # An address cannot be made to point to somebody else: only names can.
    if host and not (_is_local(called) or _is_address(called) or called in names):
        return False
    scheme, _, place = origin.partition("://")
    if not origin or (place and scheme.lower() not in _WEB):
        return True
    return _is_local(_name(origin)) or (bool(host) and place == host)


def names_of(urls: Iterable[str]) -> frozenset[str]:
    """The hosts of the URLs by which the operator says that we are reached."""
    return frozenset(_name(url) for url in urls if url)


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_local(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost") or (_is_address(name) and ip_address(name).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
