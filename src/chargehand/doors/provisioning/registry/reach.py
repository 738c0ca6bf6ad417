"""All that hangs on manifests of one repository: what they list, what lists them as a subject, what they are the subject of.

Collection keeps it, and whoever pushes a manifest makes all of it count as new: that is one and the same set, so a push beside
a collection cannot lose any of it.
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
    """Blocks. What is no longer there is skipped; what cannot be read is an error, so that no sweep removes what it leads to."""
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
    """Give all of it the time of now. The caller holds the lock."""
    for digits in found.manifests:
        stamp(layout.manifest(name, digits), now)
    for digits in found.blobs:
        stamp(layout.layer(name, digits), now)
    for digits in found.manifests | found.blobs:
        stamp(layout.blob(digits), now)
