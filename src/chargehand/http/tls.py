"""HTTPS: load the certificate files, load them again when they change, and read the names in clients' certificates."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from chargehand.config import ServerConfig
from chargehand.errors import ConfigError
from chargehand.http.neighbours import asked_by_another_site
from chargehand.http.request import Request
from chargehand.observability.logs import get_logger

log = get_logger(__name__)


class Tls:
    """The TLS context to listen with. Each handshake uses the newest valid certificate, so a renewal needs no restart."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._stamps = self._file_stamps()
        self.context = self._newest = self._load()
        # Loading into a context in use could leave it with a certificate and another's key; so a new context replaces it.
        self.context.sni_callback = self._take_newest

    @classmethod
    def of(cls, server: ServerConfig) -> "Tls | None":
        if not server.tls_certificate:
            return None
        client_ca = Path(server.tls_client_ca) if server.tls_client_ca else None
        return cls(Path(server.tls_certificate), Path(server.tls_key), client_ca)

    def refresh(self) -> None:
        """Load the files if they changed; if that fails, log it and keep the old certificate."""
        stamps = self._file_stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._newest = self._load()
        except ConfigError as error:
            log.error("the new TLS files are not used", reason=error.message)
        else:
            log.info("the TLS files were read again")

    def _take_newest(self, handshake: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _old: ssl.SSLContext) -> None:
        handshake.context = self._newest

    def _file_stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in (self._certificate, self._key, self._client_ca) if path is not None]

    def _load(self) -> ssl.SSLContext:
        _read("tls_certificate", self._certificate, "is not a certificate in PEM", x509.load_pem_x509_certificates)
        _read("tls_key", self._key, "is not a private key in PEM without a passphrase", _load_key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = "is not the key of server.tls_certificate" if "MISMATCH" in str(error) else f"cannot be used: {error}"
            raise ConfigError(f"server.tls_key: {self._key} {why}") from None
        if self._client_ca is not None:
            _read("tls_client_ca", self._client_ca, "is not a certificate in PEM", x509.load_pem_x509_certificates)
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                raise ConfigError(f"server.tls_client_ca: {self._client_ca} cannot be used: {error}") from None
            context.verify_mode = ssl.CERT_OPTIONAL
            # A resumed session would keep a client certificate whose authority is no longer trusted.
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        return context


def client_names(req: Request) -> tuple[str, ...]:
    """Return the common name and DNS names of the caller's certificate if a trusted authority signed it, else nothing.

    A browser presents its certificate for every page, so it does not count for requests by pages of other sites.
    """
    names = req.client_names
    return () if names and asked_by_another_site(req) else names


def names_of(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    connection: Any = transport.get_extra_info("ssl_object")
    certificate: dict[str, Any] = (connection.getpeercert() or {}) if connection is not None else {}
    subject = (pair for pairs in certificate.get("subject", ()) for pair in pairs)
    common = [name for kind, name in subject if kind == "commonName"]
    others = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return tuple(dict.fromkeys([*common, *others]))


def _read(setting: str, path: Path, otherwise: str, load: Callable[[bytes], Any]) -> None:
    """Raise ConfigError that names the file and the problem, which OpenSSL's errors do not."""
    try:
        load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"server.{setting}: {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"server.{setting}: {path} {otherwise}") from None


def _load_key(content: bytes) -> Any:
    return load_pem_private_key(content, None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
