"""TLS to PostgreSQL with `sslmode=verify-full`: only the server that the URL names, with a certificate of the right authority."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from chargehand.errors import StoreUnavailable
from chargehand.store import open_store
from tests.ha.programs import PACKAGES, postgres_folder, run_as
from tests.store.given import claimed_ids, opened, sql, submit
from tests.store.relay import Relay, TlsRelay
from tests.webhooks.authority import Authority

PASSWORD = "open-sesame"
PROBLEM = {"letter": "TLS: ", "missing": "no such socket or file"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def tls(postgres_url: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """Yield the URL of the database by a relay that has the certificate of the context."""
    async with TlsRelay.to(postgres_url) as relay:
        relay.context = context
        yield relay.url.replace("postgres:@", f"postgres:{PASSWORD}@")


def verified(url: str, file: Path) -> str:
    return f"{url}?sslmode=verify-full&sslrootcert={file}"


async def refused(url: str, *, match: str) -> None:
    with pytest.raises(StoreUnavailable, match=match) as caught:
        await open_store(url)
    assert "sslrootcert in store.url" in caught.value.message
    assert PASSWORD not in caught.value.message


async def test_a_server_with_the_right_certificate_is_used(postgres_url: str, authority: Authority) -> None:
    async with tls(postgres_url, authority.server("127.0.0.1")) as url, opened(verified(url, authority.file)) as store:
        assert await claimed_ids(store) == []
        job_id = await submit(store)
        assert await claimed_ids(store) == [job_id]


async def test_a_certificate_for_another_name_is_refused(postgres_url: str, authority: Authority) -> None:
    async with tls(postgres_url, authority.server("db.example")) as url:
        await refused(verified(url, authority.file), match=r"certificate is not valid for '127\.0\.0\.1'")
        async with opened(verified(url, authority.file).replace("verify-full", "verify-ca")) as store:
            await store.check()  # the name alone was wrong


async def test_a_certificate_of_another_authority_is_refused(
    postgres_url: str, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    async with tls(postgres_url, authority.server("127.0.0.1")) as url:
        await refused(verified(url, other.file), match="certificate")


async def test_a_file_of_authorities_that_is_missing_or_none_is_named(postgres_url: str, tmp_path: Path) -> None:
    url = f"postgresql://postgres:{PASSWORD}@127.0.0.1:9/db"
    (tmp_path / "letter").write_text("no certificate")
    for file in ("letter", "missing"):
        await refused(verified(url, tmp_path / file), match=PROBLEM[file])


async def test_a_server_without_tls_is_refused(postgres_url: str, authority: Authority) -> None:
    async with Relay.to(postgres_url) as relay:
        with pytest.raises(StoreUnavailable, match="rejected SSL upgrade"):
            await open_store(verified(relay.url, authority.file))


# with a PostgreSQL that is built with TLS --------------------------------------------------------------------------------


@contextmanager
def debian_postgres(authority: Authority) -> Iterator[str]:
    """Start Debian's PostgreSQL with a certificate for 127.0.0.1; yield a URL with the password that it asks for."""
    programs = postgres_folder() or pytest.fail(
        f"not installed: postgres (on Debian: apt install {PACKAGES['postgres']})"
    )
    authority.server("127.0.0.1")
    user = run_as()
    # Not below pytest's folders, which only their owner can enter: PostgreSQL does not run as root.
    with TemporaryDirectory(prefix="chargehand-tls-") as name:
        folder = Path(name)
        pem, password = folder / "server.pem", folder / "password"
        pem.write_bytes((authority.file.parent / "127.0.0.1.pem").read_bytes())
        pem.chmod(0o600)
        password.write_text(PASSWORD)
        for path in (folder, pem, password):
            shutil.chown(path, user or os.geteuid())
        with (folder / "log").open("wb") as log:
            start = partial(subprocess.Popen, stdout=log, stderr=log, cwd=folder, user=user, group=user)
            made = start(
                [
                    programs / "initdb",
                    "-D",
                    "data",
                    "-U",
                    "postgres",
                    "-A",
                    "scram-sha-256",
                    "--pwfile",
                    "password",
                    "-N",
                ]
            )
            assert made.wait() == 0, (folder / "log").read_text()
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            options = {
                "port": port,
                "listen_addresses": "127.0.0.1",
                "unix_socket_directories": name,
                "ssl": "on",
                "ssl_cert_file": pem,
                "ssl_key_file": pem,
                "fsync": "off",
            }
            server = start(
                [programs / "postgres", "-D", "data", *(f"--{key}={value}" for key, value in options.items())]
            )
        try:
            while "ready to accept connections" not in (folder / "log").read_text():
                assert server.poll() is None, (folder / "log").read_text()
                time.sleep(0.01)
            yield f"postgresql://postgres:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait()


@pytest.mark.tools
async def test_postgresql_with_tls_is_used_by_its_own_name_and_authority_only(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with debian_postgres(authority) as url:
        async with opened(verified(url, authority.file)) as store:
            job_id = await submit(store)
            assert await claimed_ids(store) == [job_id]
            in_use = "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_port > 0"
            assert await sql(verified(url, authority.file), in_use) == [(True,)]
        await refused(verified(url, Authority(tmp_path / "other").file), match="certificate")
        localhost = url.replace("127.0.0.1", "localhost")
        await refused(verified(localhost, authority.file), match="certificate is not valid for 'localhost'")
