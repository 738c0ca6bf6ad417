"""Secrets at rest: encrypts passwords of BMCs and whole recipes, and derives the keys of tokens and media URLs, all from one secret. It is
the setting `provisioning.key`, or, for a single server, a file beside its database.
"""

import contextlib
import hmac
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from chargehand.config import Config
from chargehand.doors.provisioning.refusals import ProvisioningRefused
from chargehand.errors import ConfigError
from chargehand.private import close_to_others

KEY_FILE = "provisioning.key"
NONCE_BYTES = 12
MISSING = (
    "set provisioning.key (32 or more random characters, the same on every node): without it nothing can be encrypted"
)


class Vault:
    def __init__(self, secret: bytes | None) -> None:
        self.is_open = secret is not None
        # A closed vault has a random key, so that it accepts nothing that was signed or sealed elsewhere.
        self._secret = secret or secrets.token_bytes(32)

    @classmethod
    def of(cls, config: Config) -> "Vault":
        given = config.provisioning.key.reveal()
        if given:
            return cls(given.encode())
        if not config.store_url.startswith("sqlite:"):
            return cls(None)  # nodes share the database: with a key of its own, none could decrypt for another
        return cls(_file_key(Path(config.server.data_dir) / KEY_FILE))

    def require_open(self) -> None:
        if not self.is_open:
            raise ProvisioningRefused(503, "config.missing", MISSING)

    def key(self, purpose: str) -> bytes:
        """Derive the key for a purpose. No key can be derived from another."""
        return hmac.digest(self._secret, f"chargehand/provisioning/{purpose}".encode(), "sha256")

    def seal(self, context: str, plain: bytes | memoryview, head: bytes = b"") -> bytes:
        """Encrypt for one `context`; it can be decrypted only with the same context. `head` is put before it, in clear."""
        self.require_open()
        nonce = os.urandom(NONCE_BYTES)
        sealed = AESGCM(self.key("seal")).encrypt(nonce, plain, context.encode())
        return b"".join((head, nonce, sealed))

    def open(self, context: str, sealed: bytes | memoryview) -> bytes:
        nonce, rest = memoryview(sealed)[:NONCE_BYTES], memoryview(sealed)[NONCE_BYTES:]
        try:
            return AESGCM(self.key("seal")).decrypt(nonce, rest, context.encode())
        except InvalidTag:
            raise ProvisioningRefused(
                503,
                "config.key",
                "what is stored was encrypted with another provisioning.key; give this server that key",
            ) from None


def _file_key(path: Path) -> bytes:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            _make(path)
        close_to_others([path])
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; it holds the encryption key") from None
    if len(key) < 32:
        raise ConfigError(f"{path} is damaged: it should hold at least 32 bytes; restore it from a backup")
    return key


def _make(path: Path) -> None:
    """Write the key file atomically: with half a key nothing could be decrypted again."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_urlsafe(32).encode())
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)  # unlike a rename, this does not replace what another process just made
    finally:
        draft.unlink()
