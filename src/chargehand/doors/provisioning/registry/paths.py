"""The operation of each URL, in one table.

| path under /v2/                        | methods              | operation |
| -------------------------------------- | -------------------- | --------- |
| (nothing)                              | GET HEAD             | is this a registry, and may I? |
| `_catalog`                             | GET                  | repositories, `?n=&last=` |
| `<name>/tags/list`                     | GET                  | tags, `?n=&last=` |
| `<name>/referrers/<digest>`            | GET                  | manifests with this subject, `?artifactType=` |
| `<name>/manifests/<tag or digest>`     | GET HEAD PUT DELETE  | a manifest |
| `<name>/blobs/uploads/`                | POST                 | begin an upload; `?digest=` with all of it; `?mount=&from=` |
| `<name>/blobs/uploads/<id>`            | GET PATCH PUT DELETE | status; append; finish with `?digest=`; cancel |
| `<name>/blobs/<digest>`                | GET HEAD DELETE      | a blob, with ranges |
"""

import re
from enum import StrEnum
from typing import NamedTuple

from chargehand.doors.provisioning.names import PULL, PUSH
from chargehand.doors.provisioning.registry.refusals import Code, RegistryRefused


class Thing(StrEnum):
    ROOT = "root"
    CATALOG = "catalog"
    TAGS = "tags"
    REFERRERS = "referrers"
    MANIFEST = "manifest"
    UPLOADS = "uploads"
    UPLOAD = "upload"
    BLOB = "blob"


class RegistryCall(NamedTuple):
    thing: Thing
    name: str = ""
    item: str = ""


# The name is matched greedily, because a repository may be called a/manifests/b. It is checked when it is used.
_TABLE = (
    (Thing.ROOT, re.compile(r"()()"), ("GET", "HEAD")),
    (Thing.CATALOG, re.compile(r"(_catalog)()"), ("GET",)),
    (Thing.TAGS, re.compile(r"(.+)/tags/list()"), ("GET",)),
    (Thing.REFERRERS, re.compile(r"(.+)/referrers/([^/]+)"), ("GET",)),
    (Thing.MANIFEST, re.compile(r"(.+)/manifests/([^/]+)"), ("GET", "HEAD", "PUT", "DELETE")),
    (Thing.UPLOADS, re.compile(r"(.+)/blobs/uploads/?()"), ("POST",)),
    (Thing.UPLOAD, re.compile(r"(.+)/blobs/uploads/([^/]+)"), ("GET", "PATCH", "PUT", "DELETE")),
    (Thing.BLOB, re.compile(r"(.+)/blobs/([^/]+)"), ("GET", "HEAD", "DELETE")),
)


def parse(rest: str, method: str) -> RegistryCall:
    """Return the operation that the part of the path after /v2/ names."""
    for thing, pattern, methods in _TABLE:
        if match := pattern.fullmatch(rest):
            if method not in methods:
                refusal = f"{method} is not allowed here; allowed: {', '.join(methods)}"
                raise RegistryRefused(405, Code.UNSUPPORTED, refusal, headers={"allow": ", ".join(methods)})
            return RegistryCall(thing, match[1], match[2])
    raise RegistryRefused(404, Code.NAME_UNKNOWN, "this is not a path of the registry API")


def scope(asked: RegistryCall, method: str) -> str:
    """Return the scope that the operation needs. Reading the status of an upload needs the scope to push."""
    return PULL if method in ("GET", "HEAD") and asked.thing is not Thing.UPLOAD else PUSH
