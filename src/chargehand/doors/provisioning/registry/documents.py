"""Decode and check manifests: of an image, of an index of images, of an artifact. They are stored unchanged; we read only references."""

import msgspec

from chargehand.doors.provisioning.registry.names import digest_hex
from chargehand.doors.provisioning.registry.refusals import Code, RegistryRefused

MAX_BYTES = 4 << 20  # the spec requires every registry to accept so much
MAX_REFERENCES = 10_000
MAX_OBJECTS = 4 * MAX_REFERENCES  # with a platform and annotations for each
MAX_ANNOTATIONS = 1000
IMAGE = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
NULL = msgspec.Raw(b"null")
UNKNOWN = "application/octet-stream"
# A manifest is served with the type with which it was pushed, so a type that a browser would run must not be accepted.
IMAGES = (
    IMAGE,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.artifact.manifest.v1+json",
)
INDEXES = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")


class Descriptor(msgspec.Struct, rename="camel", omit_defaults=True):
    media_type: str
    digest: str
    size: int
    artifact_type: str | None = None

    @property
    def elsewhere(self) -> bool:
        """Return whether the layer is at its vendor's own URL, because its licence forbids to distribute it."""
        return "nondistributable" in self.media_type or ".foreign." in self.media_type


class Referrer(Descriptor, rename="camel", omit_defaults=True):
    """The descriptor of a manifest in the list of its subject's referrers."""

    annotations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Manifest(msgspec.Struct, rename="camel"):
    schema_version: int = 2
    media_type: str | None = None
    artifact_type: str | None = None
    config: Descriptor | None = None
    layers: list[Descriptor] | None = None
    blobs: list[Descriptor] | None = None  # of artifacts before 1.1
    manifests: list[Descriptor] | None = None
    subject: Descriptor | None = None
    annotations: msgspec.Raw = NULL  # undecoded: a million of them would take many times their size

    @property
    def content(self) -> list[Descriptor]:
        """Return the blobs that belong to it."""
        config = [] if self.config is None else [self.config]
        return [each for each in (*config, *(self.layers or ()), *(self.blobs or ())) if not each.elsewhere]

    @property
    def children(self) -> list[Descriptor]:
        """Return what an index lists: manifests, but blobs too with some builders."""
        return self.manifests or []

    @property
    def kind(self) -> str | None:
        """Return the artifact type, by which clients filter referrers."""
        return self.artifact_type or (None if self.config is None else self.config.media_type)


_decoder = msgspec.json.Decoder(Manifest)
_annotations = msgspec.json.Decoder(dict[str, str] | None)


def parse(body: bytes) -> Manifest:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(f"the manifest cannot be read: {error}") from None
    except RecursionError:
        raise _invalid("the manifest is nested too deeply") from None


def check(body: bytes, content_type: str) -> tuple[Manifest, str]:
    """Return the manifest and its media type, or raise RegistryRefused."""
    if body.count(b"{") > MAX_OBJECTS:  # before decoding: small objects take many times their size
        raise _invalid(f"a manifest refers to at most {MAX_REFERENCES} others")
    document = parse(body)
    _check_annotations(document)
    if document.schema_version != 2:
        raise _invalid("only manifests with schemaVersion 2 are served here")
    if document.manifests is not None and any(part is not None for part in (document.config, document.layers)):
        # One client would read it as an image and another as an index, so it could be checked as one and run as the other.
        raise _invalid("a manifest is an image or an index, not both")
    every = [*document.content, *document.children, *([document.subject] if document.subject else [])]
    if len(every) > MAX_REFERENCES:
        raise _invalid(f"a manifest refers to at most {MAX_REFERENCES} others")
    for each in every:
        digest_hex(each.digest)
    media_type = content_type.partition(";")[0].strip() or document.media_type or ""
    if document.media_type is not None and media_type != document.media_type:
        raise _invalid("Content-Type and the manifest's own mediaType differ")
    if not media_type:
        media_type = IMAGE if document.manifests is None else INDEX
    _check_type(media_type, document)
    return document, media_type


def _check_annotations(document: Manifest) -> None:
    raw = bytes(document.annotations)
    if raw.count(b'":') > MAX_ANNOTATIONS:
        raise _invalid(f"a manifest has at most {MAX_ANNOTATIONS} annotations")
    try:
        _annotations.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(f"the manifest's annotations cannot be read: {error}") from None


def _check_type(media_type: str, document: Manifest) -> None:
    if media_type not in IMAGES + INDEXES:
        raise _invalid(f"the media type of a manifest is one of {', '.join(IMAGES + INDEXES)}")
    if (document.manifests is None) is (media_type in INDEXES):
        raise _invalid(f"an index lists `manifests`, and an image does not: this is not a valid {media_type}")


def served_as(media_type: str) -> str:
    """Return the type to serve a stored manifest with. Earlier releases accepted any."""
    return media_type if media_type in IMAGES + INDEXES else UNKNOWN


def _invalid(message: str) -> RegistryRefused:
    return RegistryRefused(400, Code.MANIFEST_INVALID, message)
