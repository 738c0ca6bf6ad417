"""What a manifest says: of an image, of an index of images, of an artifact. It is stored as it came; only its references matter."""

import msgspec

from chargehand.doors.provisioning.registry.errors import Code, Refused
from chargehand.doors.provisioning.registry.names import digest_hex

MAX_BYTES = 4 << 20  # what the spec asks of every registry, and no more
MAX_REFERENCES = 10_000
MAX_MEDIA_TYPE = 255
IMAGE = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Descriptor(msgspec.Struct, rename="camel", omit_defaults=True):
    media_type: str
    digest: str
    size: int
    artifact_type: str | None = None
    annotations: dict[str, str] | None = None

    @property
    def elsewhere(self) -> bool:
        """Layers that may not be passed on lie where their maker has them."""
        return "nondistributable" in self.media_type or ".foreign." in self.media_type


class Manifest(msgspec.Struct, rename="camel"):
    schema_version: int = 2
    media_type: str | None = None
    artifact_type: str | None = None
    config: Descriptor | None = None
    layers: list[Descriptor] | None = None
    blobs: list[Descriptor] | None = None  # of artifacts before 1.1
    manifests: list[Descriptor] | None = None
    subject: Descriptor | None = None
    annotations: dict[str, str] | None = None

    @property
    def content(self) -> list[Descriptor]:
        """The blobs that belong to it."""
        config = [] if self.config is None else [self.config]
        return [each for each in (*config, *(self.layers or ()), *(self.blobs or ())) if not each.elsewhere]

    @property
    def children(self) -> list[Descriptor]:
        """Manifests as a rule; some builders list blobs there."""
        return self.manifests or []

    @property
    def kind(self) -> str | None:
        """By which referrers are told apart."""
        return self.artifact_type or (None if self.config is None else self.config.media_type)


_decoder = msgspec.json.Decoder(Manifest)


def parse(body: bytes) -> Manifest:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(f"the manifest cannot be read: {error}") from None
    except RecursionError:
        raise _invalid("the manifest is nested too deeply") from None


def check(body: bytes, content_type: str) -> tuple[Manifest, str]:
    """The manifest and its media type, or what is wrong with it."""
    document = parse(body)
    if document.schema_version != 2:
        raise _invalid("only manifests with schemaVersion 2 are served here")
    if document.manifests is not None and any(part is not None for part in (document.config, document.layers)):
        # One client would take it for an image and another for an index: what was checked is not what is run.
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
    if len(media_type) > MAX_MEDIA_TYPE or not (media_type.isascii() and media_type.isprintable()):
        raise _invalid(f"a media type has at most {MAX_MEDIA_TYPE} printable ASCII characters")
    return document, media_type


def _invalid(message: str) -> Refused:
    return Refused(400, Code.MANIFEST_INVALID, message)
