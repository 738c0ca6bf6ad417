"""Manifests of a repository, the tags that name them, and the referrers that have one as their subject."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from chargehand.doors.provisioning.registry import reach
from chargehand.doors.provisioning.registry.documents import (
    MAX_REFERENCES,
    NULL,
    Descriptor,
    Manifest,
    Referrer,
    check,
    served_as,
)
from chargehand.doors.provisioning.registry.drafts import Drafts
from chargehand.doors.provisioning.registry.layout import MANIFESTS, TAGS, Layout, translated
from chargehand.doors.provisioning.registry.names import SHA256, digest_hex, is_hex, is_tag
from chargehand.doors.provisioning.registry.refusals import Code, RegistryRefused
from chargehand.files.disk import ALONE, SHARED, listed, stamp, sync


class Stored(NamedTuple):
    digits: str
    media_type: str
    body: bytes


class Put(NamedTuple):
    digits: str
    subject: str | None  # its digest, which the client expects in the answer


class Manifests:
    """All methods block: call them in a thread."""

    def __init__(self, layout: Layout, now: Callable[[], int]) -> None:
        self._layout = layout
        self._now = now

    @translated()
    def get(self, name: str, reference: str) -> Stored:
        digits = self._resolve(name, reference)
        try:
            media_type = self._layout.manifest(name, digits).read_bytes().decode("ascii", "replace")
            return Stored(digits, served_as(media_type), self._layout.blob(digits).read_bytes())
        except FileNotFoundError:
            raise _unknown() from None

    @translated()
    def put(self, name: str, reference: str, body: bytes, content_type: str) -> Put:
        """Store a manifest durably. No collection can remove what it refers to between the check and the write."""
        digits = hashlib.sha256(body).hexdigest()
        tag = _tag_for(reference, digits)
        document, media_type = check(body, content_type)
        layout = self._layout
        with Drafts(layout.drafts, self._now()) as drafts:
            content, link = drafts.write(body), drafts.write(media_type.encode())
            named = drafts.write(digits.encode()) if tag else None
            about = drafts.write(_described(document, digits, media_type, len(body))) if document.subject else None
            with layout.locked(SHARED):
                now = self._now()  # under the lock: a collection that began while we waited must find all of it newer
                self._check_references(name, document)
                drafts.place(content, layout.blob(digits))
                drafts.place(link, layout.manifest(name, digits))
                if document.subject and about:
                    drafts.place(about, layout.referrers(name, digest_hex(document.subject.digest)) / digits)
                reach.renew(layout, name, reach.reach(layout, name, [digits]), now)
                if tag and named:
                    drafts.sync()  # before the tag is moved: after a power loss it must not refer to a missing manifest
                    self._renew_tagged(name, tag, now)
                    drafts.place(named, layout.tag(name, tag))
            drafts.sync()
        return Put(digits, None if document.subject is None else document.subject.digest)

    @translated()
    def delete(self, name: str, reference: str) -> None:
        """Delete a tag, or a manifest with its tags. What it referred to is kept for the grace period from now on."""
        if is_tag(reference):
            with self._layout.locked(SHARED):
                self._renew_tagged(name, reference, self._now())
                try:
                    self._layout.tag(name, reference).unlink()
                except FileNotFoundError:
                    raise _unknown() from None
            sync(self._layout.tag(name, reference).parent)
            return
        digits = digest_hex(reference)
        with self._layout.locked(ALONE):
            if not self._layout.manifest(name, digits).exists():
                raise _unknown()
            reach.renew(self._layout, name, reach.reach(self._layout, name, [digits]), self._now())
            for tag, named in self._tagged(name):
                if named == digits:
                    self._layout.tag(name, tag).unlink(missing_ok=True)
            self.forget(name, digits)
        for kind in (TAGS, MANIFESTS):
            sync(self._layout.repository(name) / kind)

    def forget(self, name: str, digits: str) -> None:
        """Remove the manifest and its referrer entry. The caller holds the exclusive lock."""
        subject = reach.read(self._layout, digits).subject
        self._layout.manifest(name, digits).unlink(missing_ok=True)
        if subject is not None:
            (self._layout.referrers(name, digest_hex(subject.digest)) / digits).unlink(missing_ok=True)

    # lists ------------------------------------------------------------------------------------------------------------

    @translated()
    def tags(self, name: str) -> list[str]:
        found = sorted(entry.name for entry in listed(self._layout.repository(name) / TAGS) if is_tag(entry.name))
        if not found and not self.has_any(name):
            raise RegistryRefused(404, Code.NAME_UNKNOWN, "there is no such repository")
        return found

    def tagged(self, name: str) -> set[str]:
        """Return the manifests that have a tag."""
        return {digits for _, digits in self._tagged(name)}

    @translated()
    def catalog(self) -> list[str]:
        return sorted(name for name in self._layout.names() if self.has_any(name))

    def has_any(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._layout.repository(name) / MANIFESTS) as entries:
            return any(is_hex(entry.name) for entry in entries)
        return False

    @translated()
    def referrers(
        self, name: str, subject: str, kind: str | None, after: str, most_bytes: int
    ) -> tuple[list[msgspec.Raw], str]:
        """Return a page of descriptors, and the digest after which the next page begins; empty: there is no more."""
        found: list[msgspec.Raw] = []
        size = 0
        directory = self._layout.referrers(name, subject)
        names = sorted(entry.name for entry in listed(directory) if is_hex(entry.name) and entry.name > after)
        last = after
        for digits in names:
            with contextlib.suppress(FileNotFoundError):
                described = (directory / digits).read_bytes()
                if kind is not None and msgspec.json.decode(described, type=Descriptor).artifact_type != kind:
                    continue
                if found and size + len(described) > most_bytes:
                    return found, last
                found.append(msgspec.Raw(described))
                size += len(described)
                last = digits
        return found, ""

    # ------------------------------------------------------------------------------------------------------------------

    def _resolve(self, name: str, reference: str) -> str:
        if ":" in reference:
            return digest_hex(reference)
        digits = self._named(name, reference) if is_tag(reference) else ""
        if not digits:
            raise _unknown()
        return digits

    def _named(self, name: str, tag: str) -> str:
        """Return the manifest that has the tag; empty if there is none, or the file is damaged."""
        try:
            digits = self._layout.tag(name, tag).read_bytes().decode("ascii", "replace")
        except FileNotFoundError:
            return ""
        return digits if is_hex(digits) else ""

    def _tagged(self, name: str) -> Iterator[tuple[str, str]]:
        for entry in listed(self._layout.repository(name) / TAGS):
            if is_tag(entry.name) and (digits := self._named(name, entry.name)):
                yield entry.name, digits

    def _renew_tagged(self, name: str, tag: str, now: int) -> None:
        """Keep the manifest that loses this tag for the grace period from now on, not from its push."""
        if digits := self._named(name, tag):
            stamp(self._layout.manifest(name, digits), now)

    def _check_references(self, name: str, document: Manifest) -> None:
        """Check all references, down to the blobs: a collection may have removed a part of a nested index."""
        missing: list[Descriptor] = []
        waiting, seen, count = [document], set[str](), 0
        while waiting:
            current = waiting.pop()
            count += len(current.content) + len(current.children)
            if count > MAX_REFERENCES:
                message = f"the manifest and what it lists refer to more than {MAX_REFERENCES} others in all"
                raise RegistryRefused(400, Code.MANIFEST_INVALID, message)
            missing += [each for each in current.content if not self._has(name, each, self._layout.layer)]
            for child in current.children:
                if self._has(name, child, self._layout.manifest):
                    if child.digest not in seen:
                        seen.add(child.digest)
                        waiting.append(reach.read(self._layout, digest_hex(child.digest)))
                elif not self._has(name, child, self._layout.layer):
                    missing.append(child)
        if missing:
            message = "the manifest refers to blobs or manifests that the repository does not have"
            detail = [
                {"digest": each.digest, "mediaType": each.media_type, "size": each.size} for each in missing[:100]
            ]
            raise RegistryRefused(400, Code.MANIFEST_BLOB_UNKNOWN, message, detail)

    def _has(self, name: str, each: Descriptor, linked: Callable[[str, str], os.PathLike[str]]) -> bool:
        digits = digest_hex(each.digest)
        try:
            os.stat(linked(name, digits))
            size = self._layout.blob(digits).stat().st_size
        except FileNotFoundError:
            return False
        if size != each.size:
            message = f"the manifest says that {each.digest} has {each.size} bytes; it has {size}"
            raise RegistryRefused(400, Code.MANIFEST_INVALID, message)
        return True


def _described(document: Manifest, digits: str, media_type: str, size: int) -> bytes:
    annotations = msgspec.UNSET if document.annotations == NULL else document.annotations
    return msgspec.json.encode(Referrer(media_type, SHA256 + digits, size, document.kind, annotations))


def _tag_for(reference: str, digits: str) -> str:
    """Return the tag; "" if the manifest is put under its digest, which must be correct."""
    if ":" in reference:
        if digest_hex(reference) != digits:
            raise RegistryRefused(400, Code.DIGEST_INVALID, f"what arrived has the digest {SHA256}{digits}")
        return ""
    if not is_tag(reference):
        rule = "has 1 to 128 letters, digits, . _ or -, and begins with neither . nor -"
        raise RegistryRefused(400, Code.MANIFEST_INVALID, f"a tag {rule}")
    return reference


def _unknown() -> RegistryRefused:
    return RegistryRefused(404, Code.MANIFEST_UNKNOWN, "the repository has no such manifest")
