"""Create tokens, passwords and webhook secrets, and the hashes that the configuration holds of them."""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass, field

TOKEN_HASH_FORM = "sha256:<64 lower-case hex digits>"  # noqa: S105 - a form, not a secret
PASSWORD_HASH_FORM = "scrypt:<n>:<r>:<p>:<salt in base64>:<hash in base64>"  # noqa: S105

_TOKEN_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_PASSWORD_HASH = re.compile(r"scrypt:(\d{1,8}):(\d{1,3}):(\d{1,3}):([A-Za-z0-9+/]+=*):([A-Za-z0-9+/]+=*)")

# Of the settings that OWASP rates equal, the one that needs the least memory: 16 MiB.
_N, _R, _P = 2**14, 8, 5
_MAX_MEMORY = 256 * 1024 * 1024


def new_token() -> str:
    return "ch_" + secrets.token_urlsafe(32)


def new_webhook_secret() -> str:
    return "whsec_" + base64.b64encode(os.urandom(32)).decode()


def hash_token(token: str) -> str:
    # No salt and no stretching: 256 random bits cannot be guessed from their digest, and every request computes this.
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def parse_token_hash(stored: str) -> bytes:
    """Return the digest in a stored token hash, or raise ValueError with the expected form, never with the value."""
    match = _TOKEN_HASH.fullmatch(stored)
    if match is None:
        raise ValueError(f"a token hash looks like {TOKEN_HASH_FORM}")
    return bytes.fromhex(match[1])


@dataclass(frozen=True, slots=True)
class PasswordHash:
    n: int
    r: int
    p: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def parse(cls, stored: str) -> "PasswordHash":
        """Parse a stored hash, or raise ValueError with the expected form, never with the value."""
        match = _PASSWORD_HASH.fullmatch(stored)
        try:
            if match is None:
                raise ValueError
            n, r, p = (int(part) for part in match.groups()[:3])
            salt, digest = (base64.b64decode(part, validate=True) for part in match.groups()[3:])
        except (ValueError, binascii.Error):
            raise ValueError(f"a password hash looks like {PASSWORD_HASH_FORM}") from None
        if n < 2 or n & (n - 1) or not r or not p or 128 * r * (n + p) > _MAX_MEMORY:
            raise ValueError("a password hash needs n as a power of two, r and p above zero, and at most 256 MiB")
        if len(salt) < 8 or len(digest) < 16:
            raise ValueError("a password hash needs a salt of 8 bytes and a hash of 16 bytes, or more")
        return cls(n, r, p, salt, digest)

    @classmethod
    def of(cls, password: str) -> "PasswordHash":
        salt = os.urandom(16)
        return cls(_N, _R, _P, salt, _scrypt(password, _N, _R, _P, salt, 32))

    @classmethod
    def of_nobody(cls) -> "PasswordHash":
        """Return a hash that matches no password, but takes as long to check, for unknown users."""
        return cls(_N, _R, _P, os.urandom(16), os.urandom(32))

    def matches(self, password: str) -> bool:
        """Does the password match? Slow by design: call it in a thread."""
        found = _scrypt(password, self.n, self.r, self.p, self.salt, len(self.digest))
        return hmac.compare_digest(found, self.digest)

    def stored(self) -> str:
        salt, digest = base64.b64encode(self.salt).decode(), base64.b64encode(self.digest).decode()
        return f"scrypt:{self.n}:{self.r}:{self.p}:{salt}:{digest}"


def hash_password(password: str) -> str:
    return PasswordHash.of(password).stored()


def _scrypt(password: str, n: int, r: int, p: int, salt: bytes, size: int) -> bytes:
    # OpenSSL counts some of its own blocks against maxmem, so the bound is twice what parse() accepts.
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, dklen=size, maxmem=2 * _MAX_MEMORY)
