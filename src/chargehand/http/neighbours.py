"""Which requests a page of somebody else's may have made a browser send.

A browser sends requests for every page that it shows, and adds by itself what it remembers: a password of HTTP Basic, a client
certificate, or, where there is no [auth], its place on this machine. It never adds a token in a header (`Authorization: Bearer`,
`x-api-key`): the script that asks has to know it. So a request without such a token is refused, whatever its method is,

- when a page of another site asks. `Sec-Fetch-Site`, which browsers send to loopback and over HTTPS, then says neither `same-origin`
  nor `none` (somebody typed the address); where it is missing, `Origin` is neither the Host nor a place that the operator says is ours;
- without [auth], when `Host` is a name that is not this machine's. Whoever owns a name can let it point here (DNS rebinding), and then
  their page and we are one site. With [auth] that gains nothing: browsers remember passwords and certificates by name.

What has neither header comes from a program, or is a GET over plain HTTP: a page cannot read its answer, and no GET changes anything.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from chargehand.http.request import Request

_PORTS = {
    "http": 80,
    "https": 443,
}  # other schemes are of programs (app://, tauri://, vscode-webview://): no page has them
_OWN = ("same-origin", "none")
NOWHERE: frozenset[str] = frozenset()


def asked_by_another_site(req: Request, places: frozenset[str] = NOWHERE) -> bool:
    get = req.get_header
    return is_foreign(get("host") or "", get("origin") or "", get("sec-fetch-site") or "", places)


@lru_cache(maxsize=1024)  # the same few come with every request
def is_foreign(host: str, origin: str, site: str, places: frozenset[str] = NOWHERE) -> bool:
    """Whether these headers say that a page of another site asks. `places`: of pages that are ours, beside the Host's."""
    scheme, _, place = origin.partition("://")
    if place and scheme.lower() not in _PORTS:
        return False
    if site:
        return site not in _OWN
    return bool(origin) and place != host and place not in places


@lru_cache(maxsize=1024)
def is_local_name(host: str, names: frozenset[str] = NOWHERE) -> bool:
    """Whether nobody else can let this Host point here: an address, `localhost`, or one of `names`. None: it is no browser's."""
    name = _name(f"//{host}")
    return not host or name == "localhost" or name.endswith(".localhost") or name in names or _is_address(name)


def names_of(urls: Iterable[str]) -> frozenset[str]:
    """The hosts of the URLs by which the operator says that we are reached."""
    return frozenset(_name(url) for url in urls if url)


def places_of(urls: Iterable[str]) -> frozenset[str]:
    """The same with their ports, as browsers write them in `Origin`."""
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
