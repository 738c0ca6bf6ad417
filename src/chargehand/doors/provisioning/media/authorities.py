"""The operator's own certificate authorities, which machines must trust. The certificates go onto the task medium, but nothing else of
their file, since it may contain a private key too.
"""

import re
import ssl
from pathlib import Path

from chargehand.errors import ConfigError

NAME = "ca.pem"  # on the task medium
MAX_BYTES = 1 << 20

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\s]+?-----END CERTIFICATE-----")


def read_authorities(file: str) -> bytes:
    """Return the certificates of the file. Called once, at the start, so that all media of a job are alike."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"provisioning.ca_file: {file}: {error.strerror}") from None
    found = _CERTIFICATE.findall(content.decode("ascii", "replace").replace("\r\n", "\n"))
    if not found or len(content) > MAX_BYTES:
        raise ConfigError(f"provisioning.ca_file: {file} must hold certificates in PEM, at most {MAX_BYTES} bytes")
    text = "\n".join(found) + "\n"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except ssl.SSLError:
        raise ConfigError(f"provisioning.ca_file: {file} holds a certificate that cannot be read") from None
    return text.encode()
