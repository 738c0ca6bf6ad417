"""The paths of all files in the registry's directory.

    lock                                     between writers and the collection
    drafts/                                  small files before they are renamed to their path
    blobs/sha256/<2 digits>/<digits>         the bytes of blobs and manifests, each stored once
    tenants/<digits>/<name…>/                the repositories of a tenant, by the hash of its name
    repositories/<name…>/                    those of the tenant `default`; each repository has:
        _layers/<digits>                     empty: the repository has this blob
        _manifests/<digits>                  the media type under which this manifest was pushed
        _tags/<tag>                          the digits of a manifest
        _referrers/<digits>/<digits>         the descriptor of the second, whose subject is the first
        _uploads/<id>                        what has arrived of a blob

No part of a name begins with an underscore, so a repository may be inside another one. The time of a file is when it was last
pushed or referred to. Bytes are read only through a repository, so no tenant can read those of another.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from chargehand.doors.provisioning.registry.names import is_hex
from chargehand.files import Blobs
from chargehand.files.disk import listed, locked
from chargehand.files.disk import translated as translated_for

LAYERS, MANIFESTS, TAGS, REFERRERS, UPLOADS = "_layers", "_manifests", "_tags", "_referrers", "_uploads"
WHAT = "the registry"  # in errors

translated = partial(translated_for, WHAT)

DEFAULT = "default"  # the only tenant without auth


class Layout:
    def __init__(self, root: Path, repositories: Path | None = None) -> None:
        self.root = root
        self.drafts = root / "drafts"
        self.lock = root / "lock"
        self.blobs = Blobs(root / "blobs" / "sha256", lock=self.lock, fan_out=True, what=WHAT)
        self.repositories = repositories or root / "repositories"

    def of(self, tenant: str) -> "Layout":
        """Return the layout with the repositories of one tenant."""
        if tenant == DEFAULT:
            return Layout(self.root)
        return Layout(self.root, self.root / "tenants" / hashlib.sha256(tenant.encode()).hexdigest())

    def of_all(self) -> list["Layout"]:
        """Return one for each tenant that has or had repositories."""
        tenants = [Path(entry.path) for entry in listed(self.root / "tenants") if is_hex(entry.name)]
        return [Layout(self.root), *(Layout(self.root, tenant) for tenant in tenants)]

    def locked(self, how: int) -> contextlib.AbstractContextManager[None]:
        return locked(self.lock, how)

    def blob(self, digits: str) -> Path:
        return self.blobs.path(digits)

    def repository(self, name: str) -> Path:
        return self.repositories / name

    def layer(self, name: str, digits: str) -> Path:
        return self.repositories / name / LAYERS / digits

    def manifest(self, name: str, digits: str) -> Path:
        return self.repositories / name / MANIFESTS / digits

    def tag(self, name: str, tag: str) -> Path:
        return self.repositories / name / TAGS / tag

    def referrers(self, name: str, subject: str) -> Path:
        return self.repositories / name / REFERRERS / subject

    def upload(self, name: str, upload: str) -> Path:
        return self.repositories / name / UPLOADS / upload

    def names(self) -> Iterator[str]:
        """Return every repository, however deep, parents first; also empty ones."""
        waiting = [self.repositories]
        while waiting:
            directory = waiting.pop()
            entries = sorted(listed(directory), key=lambda entry: entry.name, reverse=True)
            if any(entry.name.startswith("_") for entry in entries):
                yield str(directory.relative_to(self.repositories))
            waiting += [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("_")]

    def digits_in(self, name: str, kind: str) -> list[os.DirEntry[str]]:
        return [entry for entry in listed(self.repositories / name / kind) if is_hex(entry.name)]
