"""Find all that is reachable from manifests of one repository: what they list, their subjects, and their referrers.

Garbage collection keeps this set, and a push gives all of it the current time. Both use the same set, so a collection that runs
during a push removes none of it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from chargehand.doors.provisioning.registry.documents import Manifest, parse
from chargehand.doors.provisioning.registry.layout import Layout
from chargehand.doors.provisioning.registry.names import digest_hex, is_hex
from chargehand.doors.provisioning.registry.refusals import RegistryRefused
from chargehand.errors import StoreCorrupt
from chargehand.files.disk import listed, stamp


class Reach(NamedTuple):
    manifests: set[str]
    blobs: set[str]


def reach(layout: Layout, name: str, roots: Iterable[str]) -> Reach:
    """Return the set; blocks. A missing manifest is skipped. An unreadable one is an error: its references must not be removed."""
    found = Reach(set(), set())
    waiting = [digits for digits in roots if layout.manifest(name, digits).exists()]
    while waiting:
        digits = waiting.pop()
        if digits in found.manifests:
            continue
        found.manifests.add(digits)
        document = read(layout, digits)
        found.blobs.update(digest_hex(each.digest) for each in document.content)
        others = [digest_hex(each.digest) for each in document.children]
        found.blobs.update(other for other in others if not layout.manifest(name, other).exists())
        if document.subject is not None:
            others.append(digest_hex(document.subject.digest))
        others += [entry.name for entry in listed(layout.referrers(name, digits)) if is_hex(entry.name)]
        waiting += [other for other in others if layout.manifest(name, other).exists()]
    return found


def read(layout: Layout, digits: str) -> Manifest:
    try:
        return parse(layout.blob(digits).read_bytes())
    except FileNotFoundError:
        return Manifest()
    except RegistryRefused as error:
        raise StoreCorrupt(f"the registry's manifest {layout.blob(digits)} is damaged: {error.message}") from None


def renew(layout: Layout, name: str, found: Reach, now: int) -> None:
    """Give all of it the time `now`. The caller holds the lock."""
    for digits in found.manifests:
        stamp(layout.manifest(name, digits), now)
    for digits in found.blobs:
        stamp(layout.layer(name, digits), now)
    for digits in found.manifests | found.blobs:
        stamp(layout.blob(digits), now)
