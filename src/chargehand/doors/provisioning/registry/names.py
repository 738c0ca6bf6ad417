"""Valid names, tags and digests. They are safe in a path: none can leave the registry's directory."""

import re

from chargehand.doors.provisioning.registry.refusals import Code, RegistryRefused

MAX_NAME = 255
SHA256 = "sha256:"

_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_HEX = re.compile(r"[0-9a-f]{64}")
_OTHER_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[a-zA-Z0-9=_-]{1,256}")


def is_name(text: str) -> bool:
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def is_hex(text: str) -> bool:
    return _HEX.fullmatch(text) is not None


def checked_name(text: str) -> str:
    if not is_name(text):
        rule = "lower-case letters and digits, with . _ - between them, in parts between slashes"
        raise RegistryRefused(
            400, Code.NAME_INVALID, f"the name of a repository has {rule}, and at most {MAX_NAME} characters"
        )
    return text


def digest_hex(text: str) -> str:
    """Return the hexadecimal part of a digest, which is the name of its file."""
    value = text.removeprefix(SHA256)
    if value != text and is_hex(value):
        return value
    if _OTHER_DIGEST.fullmatch(text) and not text.startswith(SHA256):
        raise RegistryRefused(400, Code.UNSUPPORTED, "only sha256 digests are supported")
    raise RegistryRefused(400, Code.DIGEST_INVALID, "a digest is `sha256:` and 64 hexadecimal digits in lower case")
