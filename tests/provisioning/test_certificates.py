"""Machines that report with a client certificate, over real HTTPS."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.api.serving import Api, on_sqlite, serving
from tests.http.test_tls import Certificates, pair
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.guest import Guest, Script
from tests.provisioning.lab import MAINTENANCE, QUICK, Lab

NAME = "SERIAL-1"  # the name in the client's certificate


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def behind_tls(
    store_url: str, folder: Path, certificates: Certificates, **settings: Any
) -> AsyncIterator[tuple[Lab, str]]:
    (folder / "maintenance.iso").write_bytes(MAINTENANCE)
    given = {
        **QUICK,
        "server.data_dir": str(folder / "data"),
        "server.tls_certificate": str(certificates.server.certificate_path),
        "server.tls_key": str(certificates.server.key_path),
        "server.tls_client_ca": str(certificates.authority.certificate_path),
        "provisioning.maintenance_iso": str(folder / "maintenance.iso"),
        "provisioning.key": "a key for tests of more than thirty-two bytes",
        **{f"provisioning.{name}": value for name, value in settings.items()},
    }
    async with (
        FakeBmc(Habits(serial=NAME)) as bmc,
        serving(store_url, given) as server,
        session(certificates.trusting()) as plain,
    ):
        url = f"https://localhost:{server.http.addresses[0][1]}"
        yield Lab(server, Api(url, plain), bmc, Guest(Script(silent=True)), lambda: serving(store_url, given)), url


def session(context: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), timeout=aiohttp.ClientTimeout(total=10))


@on_sqlite
async def test_a_certificate_with_a_machines_serial_may_report_only_for_that_machine(
    store_url: str, tmp_path: Path, certificates: Certificates
) -> None:
    async with (
        behind_tls(store_url, tmp_path, certificates) as (room, url),
        session(certificates.trusting(certificates.client)) as machine,
    ):
        job_id = await room.waiting(NAME)
        await room.register("SERIAL-2")
        api = Api(url, machine)
        assert (await api.post("/api/v1/status-webhook/SERIAL-2", {"status": "success"})).status == 403
        assert (await room.report({"status": "success"}, NAME, secret=None)).status == 401
        assert (await api.post(f"/api/v1/status-webhook/{NAME}", {"status": "success"})).status == 200
        job = await room.reaches(job_id, "complete")
        assert job["outcome"] == "succeeded"
        [heard] = await room.told(job_id, "webhook")
        assert heard["data"]["auth"] == "certificate"


@on_sqlite
async def test_a_certificate_named_in_the_settings_may_report_for_all_machines(
    store_url: str, tmp_path: Path, certificates: Certificates
) -> None:
    fleet = pair(tmp_path, "fleet", certificates.authority, dns=("fleet.example",))
    other = pair(tmp_path, "other", certificates.authority, dns=("other.example",))
    async with (
        behind_tls(store_url, tmp_path, certificates, client_names=["fleet"]) as (room, url),
        session(certificates.trusting(fleet)) as known,
        session(certificates.trusting(other)) as unknown,
    ):
        job_id = await room.waiting(NAME)
        path = f"/api/v1/status-webhook/{NAME}"
        said = {"status": "failed", "failed_step": "partition.service"}
        assert (await Api(url, unknown).post(path, said)).status == 403
        assert (await Api(url, known).post(path, said)).status == 200
        assert (await room.reaches(job_id, "complete"))["failed_step"] == "workflow.partition"


@on_sqlite
async def test_a_certificate_that_is_not_valid_for_the_machine_is_refused(
    store_url: str, tmp_path: Path, certificates: Certificates, subtests: pytest.Subtests
) -> None:
    authority = certificates.authority
    leaf = pair(tmp_path, "leaf", authority)
    strange = {
        "of another authority": certificates.stranger,
        "of an authority of the same name": pair(tmp_path, NAME, pair(tmp_path, "authority")),
        "signed by itself": pair(tmp_path, NAME),
        "issued by a certificate that is not an authority": pair(tmp_path, NAME, leaf),
        "expired": pair(tmp_path, NAME, authority, days=(-3, -1)),
        "not valid yet": pair(tmp_path, NAME, authority, days=(1, 3)),
        "of a server": pair(tmp_path, NAME, authority, dns=("localhost",)),
    }
    others = {
        "of another machine": pair(tmp_path, "SERIAL-2", authority),
        "of a machine whose serial is longer": pair(tmp_path, f"{NAME}0", authority),
        "in lower case": pair(tmp_path, NAME.lower(), authority),
        "with a wildcard": pair(tmp_path, "fleet", authority, dns=("*", "*.example")),
    }
    async with behind_tls(store_url, tmp_path, certificates) as (room, url):
        job_id = await room.waiting(NAME)
        path, said = f"/api/v1/status-webhook/{NAME}", {"status": "success"}
        for what, shown in strange.items():
            with subtests.test(what):
                async with session(certificates.trusting(shown)) as machine:
                    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                        await Api(url, machine).post(path, said)
        for what, shown in others.items():
            with subtests.test(what):
                async with session(certificates.trusting(shown)) as machine:
                    assert (await Api(url, machine).post(path, said)).status == 403
        with subtests.test("none"):
            assert (await room.report(said, NAME, secret=None)).status == 401
        assert await room.told(job_id, "webhook") == []
        assert (await room.job(job_id))["outcome"] is None
