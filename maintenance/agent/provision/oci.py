"""Resolve a reference to an image in an OCI registry to the one blob that is written to the disk.

The job's token is sent only to the controller's registry; other registries are used anonymously.
"""

import hashlib
import json
import platform
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from provision.errors import Exit, Trouble
from provision.wire import Answer, ask, fetch, host_of

MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
ATTEMPTS = 20  # three minutes

_REFERENCE = re.compile(r"(?P<host>[^/]+)/(?P<name>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class DigestMismatch(Trouble):
    def __init__(self, what: str, wanted: str, got: str) -> None:
        super().__init__(f"{what} is not what was asked for: its digest is {got}, not {wanted}", Exit.DIGEST)


@dataclass(frozen=True)
class Reference:
    host: str
    name: str
    tag: str
    digest: str

    @classmethod
    def read(cls, text: str) -> "Reference":
        found = _REFERENCE.fullmatch(text)
        if found is None:
            raise Trouble("oci_url is not host/name[:tag][@digest]", Exit.REGISTRY)
        return cls(found["host"], found["name"], found["tag"] or "latest", found["digest"] or "")

    def base(self, registry_url: str) -> str:
        """Return the base URL: the controller's registry with the scheme of its URL, any other with HTTPS."""
        scheme = urlsplit(registry_url).scheme or "https"
        own = registry_url and host_of(f"{scheme}://{self.host}") == host_of(registry_url)
        return f"{scheme if own else 'https'}://{self.host}/v2/{self.name}"

    def is_in(self, registry_url: str) -> bool:
        scheme = urlsplit(registry_url).scheme
        return bool(scheme) and host_of(f"{scheme}://{self.host}") == host_of(registry_url)


@dataclass(frozen=True)
class Blob:
    digest: str
    size: int
    media_type: str
    url: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Blob({self.digest}, {self.size}, {self.media_type})"


def resolve(oci_url: str, registry_url: str, token: str) -> Blob:
    """Return the only layer of an image, or the only file of an artifact."""
    reference = Reference.read(oci_url)
    base = reference.base(registry_url)
    token = token if reference.is_in(registry_url) else _anonymous(base, reference)
    manifest = _manifest(base, reference.digest or reference.tag, token)
    if "manifests" in manifest:
        manifest = _manifest(base, _for_this_machine(manifest), token)
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) != 1:
        count = len(layers) if isinstance(layers, list) else "no"
        raise Trouble(f"{oci_url} has {count} layers; an image for a disk has just one", Exit.REGISTRY)
    digest, size = layers[0].get("digest"), layers[0].get("size")
    if not _DIGEST.fullmatch(str(digest)) or type(size) is not int or size < 1:
        raise Trouble(f"the manifest of {oci_url} does not describe its layer", Exit.REGISTRY)
    return Blob(str(digest), size, str(layers[0].get("mediaType", "")), f"{base}/blobs/{digest}", token)


def stream(blob: Blob) -> Iterator[bytes]:
    """Yield the blob's bytes; at the end raise DigestMismatch if they have another digest."""
    digest, size = hashlib.sha256(), 0
    for piece in fetch(blob.url, token=blob.token, size=blob.size):
        digest.update(piece)
        size += len(piece)
        yield piece
    got = f"sha256:{digest.hexdigest()}"
    if got != blob.digest or size != blob.size:
        raise DigestMismatch(f"the blob of {size} bytes", blob.digest, got)


def _manifest(base: str, reference: str, token: str) -> dict[str, Any]:
    answer = _insist(f"{base}/manifests/{reference}", {"Accept": MANIFESTS}, token)
    if answer.status != 200:
        raise Trouble(f"{base}/manifests/{reference} answered {answer.status}", Exit.REGISTRY)
    if reference.startswith("sha256:"):
        got = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
        if got != reference:
            raise DigestMismatch("the manifest", reference, got)
    try:
        manifest = json.loads(answer.body)
        if not isinstance(manifest, dict):
            raise ValueError("not an object")
    except ValueError:
        raise Trouble(f"{base}/manifests/{reference} is no manifest", Exit.REGISTRY) from None
    return manifest


def _insist(url: str, headers: Mapping[str, str], token: str) -> Answer:
    for attempt in range(ATTEMPTS):
        try:
            answer = ask(url, headers, token)
            if answer.status < 500 and answer.status != 429:
                return answer
            reason = f"answered {answer.status}"
        except OSError as error:
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
            if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                break  # a retry would get the same certificate
        if attempt + 1 < ATTEMPTS:
            time.sleep(min(10.0, 0.3 * 3**attempt))
    raise Trouble(f"{url}: {reason}", Exit.REGISTRY)


def _for_this_machine(index: Mapping[str, Any]) -> str:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    entries = [each for each in index["manifests"] if isinstance(each, dict)]
    fitting = [each for each in entries if (each.get("platform") or {}).get("architecture") == machine]
    found = fitting or (entries if len(entries) == 1 else [])
    if not found or not _DIGEST.fullmatch(str(found[0].get("digest"))):
        raise Trouble(f"the image is not there for {machine}", Exit.REGISTRY)
    return str(found[0]["digest"])


def _anonymous(base: str, reference: Reference) -> str:
    """Return the anonymous token of a public registry, or "" if it needs none."""
    answer = _insist(f"{base}/manifests/{reference.digest or reference.tag}", {"Accept": MANIFESTS}, "")
    said = answer.headers.get("www-authenticate", "")
    if answer.status != 401 or not said.lower().startswith("bearer "):
        return ""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', said))
    if not fields.get("realm", "").startswith("https://"):
        return ""
    asked = {"service": fields.get("service", ""), "scope": fields.get("scope", f"repository:{reference.name}:pull")}
    answer = _insist(f"{fields['realm']}?{urlencode(asked)}", {}, "")
    try:
        document = json.loads(answer.body)
        return str(document.get("token") or document.get("access_token") or "")
    except (ValueError, AttributeError):
        return ""
