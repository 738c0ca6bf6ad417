"""Detect requests that a page of another site may have made a browser send (CSRF, DNS rebinding).

A browser sends requests for every page that it shows, and adds credentials by itself: a password of HTTP Basic, a client
certificate, or, without [auth], the fact that it runs on this machine. It never adds a token in a header (`Authorization: Bearer`,
`x-api-key`): the page's script has to know it. So a request without such a token is refused, whatever its method is,

- if a page of another site sent it. `Sec-Fetch-Site`, which browsers send to loopback and over HTTPS, is then neither `same-origin`
  nor `none` (a typed address); if it is missing, `Origin` is neither the Host nor in a `public_url` of the configuration;
- without [auth], if `Host` is a name that is not this machine's. The owner of a name can let it resolve to us (DNS rebinding), and
  then their page and we are one site. With [auth] that gains nothing: browsers store passwords and certificates by name.

A request with neither header comes from a program, or is a GET over plain HTTP: a page cannot read its answer, and no GET changes anything.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from chargehand.http.request import Request

_PORTS = {
    "http": 80,
    "https": 443,
}  # only programs have other schemes (app://, tauri://, vscode-webview://), no web page
_OWN = ("same-origin", "none")
NOWHERE: frozenset[str] = frozenset()


def asked_by_another_site(req: Request, places: frozenset[str] = NOWHERE) -> bool:
    get = req.get_header
    return is_foreign(get("host") or "", get("origin") or "", get("sec-fetch-site") or "", places)


@lru_cache(maxsize=1024)  # most requests have the same few values
def is_foreign(host: str, origin: str, site: str, places: frozenset[str] = NOWHERE) -> bool:
    """Do these headers show that a page of another site sent the request? `places`: host:port of our pages, beside the Host's."""
    scheme, _, place = origin.partition("://")
    if place and scheme.lower() not in _PORTS:
        return False
    if site:
        return site not in _OWN
    return bool(origin) and place != host and place not in places


@lru_cache(maxsize=1024)
def is_local_name(host: str, names: frozenset[str] = NOWHERE) -> bool:
    """Is this Host one that no attacker can own: an address, `localhost`, one of `names`, or missing (so not from a browser)?"""
    name = _name(f"//{host}")
    return not host or name == "localhost" or name.endswith(".localhost") or name in names or _is_address(name)


def names_of(urls: Iterable[str]) -> frozenset[str]:
    """Return the host names of the URLs that the operator configured for this server."""
    return frozenset(_name(url) for url in urls if url)


def places_of(urls: Iterable[str]) -> frozenset[str]:
    """Return host and port of the URLs, as browsers write them in `Origin`."""
    return frozenset(_place(url) for url in urls if url)


def _place(url: str) -> str:
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2].lower()
    return place.removesuffix(f":{_PORTS.get(parts.scheme)}")


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
