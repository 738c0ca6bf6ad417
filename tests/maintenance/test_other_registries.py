"""Other registries than the controller's are used by HTTPS, anonymously and without the job's token."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from provision import wire
from provision.errors import Trouble
from provision.oci import resolve, stream
from tests.provisioning.registering import CONFIG, LAYER, described, digest, image

TOKEN = "cht_the-token-of-a-job"
LAYER_DATA = b"a tree" * 1000
MANIFEST = image(described(CONFIG, b"{}"), described(LAYER, LAYER_DATA))
CONTROLLER = "http://127.0.0.1:1"


def certificate(file: Path) -> None:
    """Create a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registry")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(private + made.public_bytes(pem))


@asynccontextmanager
async def serving(app: web.Application, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield "{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


async def test_a_public_registry_is_used_anonymously_and_a_redirect_gets_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate(tmp_path / "tls.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "tls.pem")
    heard: list[tuple[str, str]] = []

    async def manifest(request: web.Request) -> web.Response:
        heard.append(("manifest", request.headers.get("Authorization", "")))
        if request.headers.get("Authorization") != "Bearer for-anybody":
            said = f'Bearer realm="https://{request.host}/token",service="here",scope="repository:library/debian:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": said})
        return web.Response(body=MANIFEST)

    async def token(request: web.Request) -> web.Response:
        heard.append(("token", request.headers.get("Authorization", "")))
        assert request.query["scope"] == "repository:library/debian:pull"
        return web.json_response({"token": "for-anybody"})

    async def blob(request: web.Request) -> web.Response:
        heard.append(("blob", request.headers.get("Authorization", "")))
        raise web.HTTPTemporaryRedirect(f"http://{elsewhere}/content")

    async def content(request: web.Request) -> web.Response:
        heard.append(("content", request.headers.get("Authorization", "")))
        return web.Response(body=LAYER_DATA)

    app, storage = web.Application(), web.Application()
    app.add_routes(
        [
            web.get("/v2/library/debian/manifests/12", manifest),
            web.get("/token", token),
            web.get(f"/v2/library/debian/blobs/{digest(LAYER_DATA)}", blob),
        ]
    )
    storage.add_routes([web.get("/content", content)])
    async with serving(app, tls) as address, serving(storage) as elsewhere:
        url = f"{address}/library/debian:12"
        with pytest.raises(Trouble, match="certificate verify failed"):
            await asyncio.to_thread(resolve, url, CONTROLLER, TOKEN)
        monkeypatch.setattr(wire, "_openers", wire._openers)  # restored after the test
        wire.trust(tmp_path / "tls.pem")
        found = await asyncio.to_thread(lambda: b"".join(stream(resolve(url, CONTROLLER, TOKEN))))
    assert found == LAYER_DATA
    assert heard == [
        ("manifest", ""),
        ("token", ""),
        ("manifest", "Bearer for-anybody"),
        ("blob", "Bearer for-anybody"),
        ("content", ""),
    ]
    assert TOKEN not in str(heard)
