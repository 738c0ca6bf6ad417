"""HTTPS with real certificates: who is served, who is refused and with which message, and renewal without a restart."""

import asyncio
import datetime
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chargehand.app import Server
from chargehand.config import load_config
from chargehand.errors import ConfigError
from chargehand.http.connection import Bounds
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import reply
from chargehand.http.server import HttpServer
from chargehand.http.tls import Tls, client_names
from tests.api.serving import on_sqlite, serving

T = TypeVar("T")
WIDE = Bounds(
    max_header_bytes=8192,
    header_timeout_seconds=30,
    body_timeout_seconds=30,
    keep_alive_seconds=30,
    max_connections=100,
    drain_seconds=5,
)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as objects and as files."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    certificate_path: Path
    key_path: Path


def pair(
    folder: Path,
    name: str,
    issuer: Pair | None = None,
    *,
    dns: tuple[str, ...] = (),
    days: tuple[int, int] = (-1, 1),
) -> Pair:
    """Make a certificate: of an authority if it has no issuer, of the server localhost, else of a client; valid for these days."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_uses(authority=issuer is None), critical=True)
    )
    if dns:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, dns))), critical=False)
    if issuer:
        use = ExtendedKeyUsageOID.SERVER_AUTH if "localhost" in dns else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    certificate = builder.sign(signer, hashes.SHA256())
    stem = f"{name}-{certificate.serial_number}"
    made = Pair(certificate, key, folder / f"{stem}.pem", folder / f"{stem}.key")
    made.certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


def _uses(authority: bool) -> x509.KeyUsage:
    """Return the key usage of a certificate; since Python 3.13 an authority must have it."""
    uses = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    never = dict.fromkeys((*uses, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, **never)


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = pair(folder, "authority")
        self.server = self.renewed()
        self.client = pair(folder, "SERIAL-1", self.authority, dns=("one.example", "two.example"))
        self.stranger = pair(folder, "SERIAL-1", pair(folder, "elsewhere"))

    def renewed(self) -> Pair:
        return pair(self.folder, "server", self.authority, dns=("localhost",))

    def trusting(self, client: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.certificate_path))
        if client:
            context.load_cert_chain(client.certificate_path, client.key_path)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def names_or_body(req: Request) -> Response:
    """Answer with the names in the caller's certificate, or with its body."""
    resp = Response()
    if req.method == "GET":
        reply(resp, client_names(req))
    else:
        resp.data = b"".join([piece async for piece in req.pieces()])
    return resp


class Endless:
    """A body that goes on for as long as the client reads."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def answer(self, req: Request) -> Response:
        resp = Response()
        resp.stream = self.pieces(req)
        return resp

    async def pieces(self, req: Request) -> AsyncGenerator[bytes, None]:
        leaving = req.leaving()
        while not leaving.done():
            yield bytes(256 << 10)
            await asyncio.sleep(0)
        self.ended.set()


class Running:
    """A server on its own loop in its own thread, so that the tests can use any client."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop], certificates: Certificates) -> None:
        self.certificates = certificates
        self.loop = loop_factory()
        self.troubles: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, trouble: self.troubles.append(trouble))
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.servers: list[HttpServer] = []
        self.endless = Endless()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=20)

    def start(self, tls: Tls | None = None, bounds: Bounds = WIDE) -> int:
        server = HttpServer(bounds)
        self.call(server.start(self.serve, "127.0.0.1", 0, tls or self.tls()))
        self.servers.append(server)
        return server.addresses[0][1]

    async def serve(self, req: Request) -> Response:
        return await (self.endless.answer(req) if req.path == "/endless" else names_or_body(req))

    def tls(self) -> Tls:
        own = self.certificates.server
        return Tls(own.certificate_path, own.key_path, self.certificates.authority.certificate_path)

    def stop(self) -> None:
        for server in self.servers:
            self.call(server.drain())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def running(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Running]:
    running = Running(request.param, certificates)
    yield running
    running.stop()
    assert not running.troubles


async def names(port: int, context: ssl.SSLContext, headers: dict[str, str] | None = None) -> list[str]:
    url = f"https://localhost:{port}/names"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context, headers=headers) as got:
        assert got.status == 200
        told: list[str] = await got.json()
        return told


def connected(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=10), server_hostname="localhost")


def shown(port: int, context: ssl.SSLContext) -> int:
    """Return the serial number of the certificate that the server uses now."""
    with connected(port, context) as secured:
        certificate = secured.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)


async def test_a_caller_without_a_certificate_is_served_and_has_no_name(
    running: Running, certificates: Certificates
) -> None:
    assert await names(running.start(), certificates.trusting()) == []


async def test_a_callers_certificate_gives_its_names(running: Running, certificates: Certificates) -> None:
    told = await names(running.start(), certificates.trusting(certificates.client))
    assert told == ["SERIAL-1", "one.example", "two.example"]


async def test_a_certificate_does_not_count_for_requests_by_pages_of_other_sites(
    running: Running, certificates: Certificates
) -> None:
    port, context = running.start(), certificates.trusting(certificates.client)
    for page in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        assert await names(port, context, page) == []
    for page in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": f"https://localhost:{port}"}):
        assert len(await names(port, context, page)) == 3


async def test_a_client_certificate_of_an_unknown_authority_is_refused(
    running: Running, certificates: Certificates
) -> None:
    port = running.start()
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await names(port, certificates.trusting(certificates.stranger))
    assert await names(port, certificates.trusting()) == []


async def test_a_server_certificate_is_refused_as_a_client_certificate(
    running: Running, certificates: Certificates
) -> None:
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await names(running.start(), certificates.trusting(certificates.server))


async def test_without_a_client_ca_no_client_certificate_is_requested_or_trusted(
    running: Running, certificates: Certificates
) -> None:
    own = certificates.server
    port = running.start(Tls(own.certificate_path, own.key_path, None))
    assert await names(port, certificates.trusting(certificates.client)) == []


def test_curl_is_served_with_and_without_a_certificate(running: Running, certificates: Certificates, curl: str) -> None:
    port, client = running.start(), certificates.client
    known = ["--cert", str(client.certificate_path), "--key", str(client.key_path)]
    for arguments, told in ([], []), (known, ["SERIAL-1", "one.example", "two.example"]):
        command = [curl, "-sS", "--cacert", str(certificates.authority.certificate_path), *arguments]
        printed = subprocess.run(
            [*command, f"https://localhost:{port}/names"], check=True, capture_output=True, timeout=20
        ).stdout
        assert json.loads(printed) == told


def test_plain_http_on_the_https_port_is_closed_and_disturbs_no_one_else(
    running: Running, certificates: Certificates
) -> None:
    port = running.start()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(b"GET /names HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = b""
        while piece := plain.recv(1000):
            answer += piece
    assert not answer.startswith(b"HTTP")
    assert shown(port, certificates.trusting()) == certificates.server.certificate.serial_number


def test_old_versions_of_tls_are_refused(running: Running, certificates: Certificates) -> None:
    port = running.start()
    old = certificates.trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with connected(port, old) as secured:
        assert secured.version() == "TLSv1.2"
    older = certificates.trusting()
    older.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connected(port, older)


def test_a_missing_handshake_times_out(running: Running) -> None:
    port = running.start(bounds=replace(WIDE, header_timeout_seconds=0.3))
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as half:
        half.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert half.recv(1) == b""
    assert time.monotonic() - began < 5


def test_a_missing_header_over_tls_times_out(running: Running, certificates: Certificates) -> None:
    port = running.start(bounds=replace(WIDE, header_timeout_seconds=0.3))
    began = time.monotonic()
    with connected(port, certificates.trusting()) as slow:
        slow.sendall(b"GET /names HTTP/1.1\r\nX: ")
        assert slow.recv(12) == b"HTTP/1.1 408"
    assert time.monotonic() - began < 5


def test_a_caller_that_stops_reading_is_cut_off(running: Running, certificates: Certificates) -> None:
    port = running.start(bounds=replace(WIDE, stall_seconds=0.5))
    with connected(port, certificates.trusting()) as stalled:
        stalled.sendall(b"GET /endless HTTP/1.1\r\nHost: here\r\n\r\n")
        assert stalled.recv(12) == b"HTTP/1.1 200"
        assert running.endless.ended.wait(10)


def test_a_refused_request_gets_the_reason_and_is_cut_off(running: Running, certificates: Certificates) -> None:
    port = running.start(bounds=replace(WIDE, keep_alive_seconds=0.2))
    with connected(port, certificates.trusting()) as wrong:
        wrong.sendall(b"no HTTP\r\n\r\n")
        reader = wrong.makefile("rb")
        assert reader.readline().startswith(b"HTTP/1.1 400")
        assert b"not a valid HTTP/1.1 request" in reader.read()
        reader.close()


async def test_a_large_body_is_received_and_sent_over_tls(running: Running, certificates: Certificates) -> None:
    body = os.urandom(3 << 20)
    async with aiohttp.ClientSession() as session:
        url = f"https://localhost:{running.start()}/names"
        async with session.post(url, data=io.BytesIO(body), ssl=certificates.trusting()) as got:
            assert await got.read() == body


# A renewal


class Files:
    """The certificate files of a server, which change while it runs."""

    def __init__(self, folder: Path, first: Pair) -> None:
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.put(first)

    def put(self, new: Pair) -> None:
        for source, target in ((new.certificate_path, self.certificate), (new.key_path, self.key)):
            replacement = target.with_suffix(".new")
            shutil.copyfile(source, replacement)
            replacement.rename(target)


def test_a_renewed_certificate_is_used_without_a_restart(
    running: Running, certificates: Certificates, tmp_path: Path
) -> None:
    files = Files(tmp_path, certificates.server)
    tls = Tls(files.certificate, files.key, certificates.authority.certificate_path)
    port = running.start(tls)
    trusting = certificates.trusting()
    assert shown(port, trusting) == certificates.server.certificate.serial_number
    with connected(port, trusting) as open_before:
        new = certificates.renewed()
        files.put(new)
        tls.refresh()
        assert shown(port, trusting) == new.certificate.serial_number
        open_before.sendall(b"GET /names HTTP/1.1\r\nHost: here\r\n\r\n")
        assert open_before.recv(12) == b"HTTP/1.1 200"


@on_sqlite
async def test_a_server_refreshes_its_certificate_by_a_chore(
    store_url: str, certificates: Certificates, tmp_path: Path
) -> None:
    files = Files(tmp_path, certificates.server)
    settings = {"server.tls_certificate": str(files.certificate), "server.tls_key": str(files.key)}
    async with serving(store_url, settings) as server:
        port, trusting = server.http.addresses[0][1], certificates.trusting()
        assert await asyncio.to_thread(shown, port, trusting) == certificates.server.certificate.serial_number
        new = certificates.renewed()
        files.put(new)
        [chore] = [each for each in server.chores() if each.name == "certificate"]
        await chore.do()
        assert await asyncio.to_thread(shown, port, trusting) == new.certificate.serial_number


async def test_only_the_new_client_authority_is_trusted_after_a_renewal(
    running: Running, certificates: Certificates, tmp_path: Path
) -> None:
    authority = tmp_path / "clients.pem"
    shutil.copyfile(certificates.authority.certificate_path, authority)
    own, other = certificates.server, pair(tmp_path, "other")
    tls = Tls(own.certificate_path, own.key_path, authority)
    port = running.start(tls)
    old = certificates.trusting(certificates.client)
    assert await names(port, old) != []
    shutil.copyfile(other.certificate_path, authority)
    tls.refresh()
    assert await names(port, certificates.trusting(pair(tmp_path, "SERIAL-2", other))) == ["SERIAL-2"]
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await names(port, old)


def test_a_certificate_without_its_key_does_not_replace_the_old_pair(
    running: Running, certificates: Certificates, tmp_path: Path
) -> None:
    files = Files(tmp_path, certificates.server)
    tls = Tls(files.certificate, files.key, None)
    port, trusting = running.start(tls), certificates.trusting()
    new = certificates.renewed()
    shutil.copyfile(new.certificate_path, files.certificate)  # and the key is not replaced yet
    tls.refresh()
    assert shown(port, trusting) == certificates.server.certificate.serial_number
    shutil.copyfile(new.key_path, files.key)
    tls.refresh()
    assert shown(port, trusting) == new.certificate.serial_number
    files.key.unlink()
    tls.refresh()
    assert shown(port, trusting) == new.certificate.serial_number


def test_a_new_authority_that_openssl_cannot_use_does_not_replace_the_old_one(
    running: Running, certificates: Certificates, tmp_path: Path
) -> None:
    """Nor does it end the watch for new files, which would be noticed only when the certificate expires."""
    files, authority = Files(tmp_path, certificates.server), tmp_path / "clients.pem"
    shutil.copyfile(certificates.authority.certificate_path, authority)
    tls = Tls(files.certificate, files.key, authority)
    port, trusting = running.start(tls), certificates.trusting()
    with authority.open("ab") as file:
        file.write(b"-----BEGIN X509 CRL-----\nZ2FyYmFnZQ==\n-----END X509 CRL-----\n")
    tls.refresh()
    assert shown(port, trusting) == certificates.server.certificate.serial_number


# Files that cannot be used


def test_a_missing_file_is_named(certificates: Certificates, tmp_path: Path) -> None:
    own, missing = certificates.server, tmp_path / "missing.pem"
    for setting, arguments in (
        ("tls_certificate", (missing, own.key_path, None)),
        ("tls_key", (own.certificate_path, missing, None)),
        ("tls_client_ca", (own.certificate_path, own.key_path, missing)),
    ):
        with pytest.raises(ConfigError) as refused:
            Tls(*arguments)
        assert str(refused.value) == f"server.{setting}: {missing} cannot be read: No such file or directory"


def test_a_file_with_the_wrong_content_is_named(certificates: Certificates, tmp_path: Path) -> None:
    own, other, empty = certificates.server, tmp_path / "other.pem", tmp_path / "empty.pem"
    other.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    empty.touch()
    for wrong in other, empty, own.key_path:
        with pytest.raises(ConfigError, match=r"^server\.tls_certificate: .* is not a certificate in PEM$"):
            Tls(wrong, own.key_path, None)
        with pytest.raises(ConfigError, match=r"^server\.tls_client_ca: .* is not a certificate in PEM$"):
            Tls(own.certificate_path, own.key_path, wrong)
    for wrong in other, empty, own.certificate_path:
        with pytest.raises(
            ConfigError, match=r"^server\.tls_key: .* is not a private key in PEM without a passphrase$"
        ):
            Tls(own.certificate_path, wrong, None)


def test_a_key_with_a_passphrase_is_refused_without_a_prompt(certificates: Certificates, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    secret = serialization.BestAvailableEncryption(b"passphrase")
    locked.write_bytes(
        certificates.server.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    )
    with pytest.raises(ConfigError, match=r"^server\.tls_key: .* without a passphrase$"):
        Tls(certificates.server.certificate_path, locked, None)


def test_a_key_that_does_not_match_the_certificate_is_refused(certificates: Certificates) -> None:
    with pytest.raises(ConfigError, match=r"^server\.tls_key: .* is not the key of server\.tls_certificate$"):
        Tls(certificates.server.certificate_path, certificates.client.key_path, None)


# The whole server


async def test_the_whole_server_serves_https_and_its_url_is_https(certificates: Certificates, tmp_path: Path) -> None:
    own = certificates.server
    config = load_config(
        environ={},
        overrides={
            "server.listen": "127.0.0.1:0",
            "server.data_dir": str(tmp_path),
            "server.tls_certificate": str(own.certificate_path),
            "server.tls_key": str(own.key_path),
            "inference.embedded": "off",
        },
    )
    server = await Server.open(config)
    try:
        await server.start()
        url = server.url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{url}/healthz", ssl=certificates.trusting()) as got,
        ):
            assert got.status == 200
    finally:
        await server.close()
