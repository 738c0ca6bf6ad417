"""Which addresses callers can make the server call, through every door. Real servers, real receivers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chargehand.config import load_config
from chargehand.doors.provisioning.redfish.errors import Untrusted
from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.transport import RedfishTransport
from chargehand.doors.tasks.names import BASE
from chargehand.engine.delivery import endpoint_id
from chargehand.engine.job import NewJob, Report
from chargehand.engine.queue import Queue
from chargehand.http.credentials import hash_token
from chargehand.webhooks.egress import EgressPolicy, networks
from tests.api.serving import Api, serving, talking, until
from tests.provisioning.lab import SERIAL
from tests.webhooks.doors import DOORS, filled
from tests.webhooks.receiver import Receiver, answer, receiving

TOKENS = {"auth.tokens": [{"name": "tenant", "hash": hash_token("tenant"), "scopes": ["*"]}]}
# As behind a proxy on the same host: remote callers have tokens, and the server listens on loopback.
BEHIND_A_PROXY: dict[str, Any] = {**TOKENS, "webhooks.allow_networks": [], "provisioning.enabled": True}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@pytest.fixture
async def tenant(tmp_path: Path) -> AsyncIterator[Api]:
    async with (
        serving(f"sqlite:///{tmp_path}/jobs.db", BEHIND_A_PROXY) as server,
        talking(server, "tenant") as api,
    ):
        assert server.config.server.is_loopback
        yield api


async def test_a_tenant_behind_a_proxy_on_this_host_cannot_reach_services_of_this_host(
    tenant: Api, receiver: Receiver, subtests: pytest.Subtests
) -> None:
    bmc = {"bmc_address": "https://10.255.255.1", "bmc_username": "u", "bmc_password": "p"}  # never called
    assert (await tenant.call("PUT", f"/api/v1/servers/{SERIAL}", bmc)).status == 200
    hosts = ["127.0.0.1", "localhost", "127.1", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "192.168.0.1", "[fd00::1]"]
    for door, (method, path, body) in DOORS.items():
        for host in hosts:
            with subtests.test(door=door, host=host):
                answered = await tenant.call(method, path, filled(body, receiver.url(host=host)))
                assert b"webhooks.allow_networks" in answered.body, answered.body  # the setting that would allow it
    for store in (await tenant.get("/engine/jobs"), await tenant.get(f"{BASE}/schedules")):
        assert [each for each in store.good().values() if each] == []
    assert receiver.connections == 0


async def test_a_name_of_a_local_address_is_refused_when_it_is_called(tmp_path: Path, receiver: Receiver) -> None:
    async with serving(f"sqlite:///{tmp_path}/jobs.db", BEHIND_A_PROXY) as server, talking(server, "tenant") as api:
        # As if the name had resolved elsewhere when the job was submitted, or the job were older than this check.
        url = receiver.url(host="localhost")
        report = Report(url, endpoint_id("default", url))
        job = NewJob(server.engine.new_id(), Queue("job", "default", "q"), b"null", reports=(report,))
        await server.engine.submit(job)
        [delivery] = await api.deliveries(f"job={job.id}&state=dead")
        assert "webhooks.allow_networks" in delivery["reason"]
        tries = (await api.get(f"/engine/deliveries/{delivery['id']}")).good()["attempts"]
        assert [each["answer"] for each in tries] == [""]
    assert receiver.connections == 0


async def test_only_a_private_network_that_the_operator_allows_is_reached(tmp_path: Path, receiver: Receiver) -> None:
    settings = {**BEHIND_A_PROXY, "webhooks.allow_networks": ["127.0.0.1/32"]}
    async with serving(f"sqlite:///{tmp_path}/jobs.db", settings) as server, talking(server, "tenant") as api:
        await api.submit(webhook={"url": receiver.url()})
        await until(lambda: receiver.hooks)
        refused = await api.post(
            "/engine/jobs", {"queue": "q", "payload": 1, "webhook": {"url": receiver.url(host="127.0.0.2")}}
        )
        refused.problem(422, "egress.refused", "webhook.url")


async def test_a_receiver_cannot_redirect_the_server(tmp_path: Path, receiver: Receiver) -> None:
    settings = {**BEHIND_A_PROXY, "webhooks.allow_networks": ["127.0.0.1/32"], "webhooks.max_attempts": 1}
    async with (
        receiving() as inner,
        serving(f"sqlite:///{tmp_path}/jobs.db", settings) as server,
        talking(server, "tenant") as api,
    ):
        for status in (301, 302, 303, 307, 308):
            receiver.otherwise = answer(status, {"Location": inner.url()})
            job_id = await api.submit(webhook={"url": receiver.url()})
            [delivery] = await api.deliveries(f"job={job_id}&state=dead")
            assert "redirects are not followed" in delivery["reason"]
        assert inner.connections == 0


@pytest.mark.parametrize(
    ("settings", "local"),
    [
        ({}, True),
        (TOKENS, False),
        ({"auth.jwt_secret": "a shared secret of more than thirty-two bytes"}, False),
        ({"auth.users": [{"name": "u", "password_hash": "scrypt:1"}]}, False),
        ({"auth.jwks_url": "http://127.0.0.1/", "auth.jwt_issuer": "i", "auth.jwt_audience": "a"}, False),
        ({"auth.jwks_file": "keys.json", "auth.jwt_issuer": "i", "auth.jwt_audience": "a"}, False),
        ({"server.listen": "0.0.0.0:0"}, False),
        ({**TOKENS, "webhooks.allow_networks": ["127.0.0.0/8"]}, True),
        ({"webhooks.deny_networks": ["127.0.0.0/8"]}, False),
    ],
)
def test_local_addresses_are_reached_without_auth_or_if_allowed(settings: dict[str, Any], local: bool) -> None:
    policy = EgressPolicy.of(load_config(environ={}, overrides=settings))
    assert policy.allows("127.0.0.1") is local
    assert policy.allows("8.8.8.8")
    assert not policy.allows("169.254.169.254")


def test_the_policy_for_bmcs_allows_private_networks_but_not_this_machine() -> None:
    bmcs = EgressPolicy.of(load_config(environ={}, overrides=TOKENS)).for_bmcs()
    for address in ("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "fd00::1", "8.8.8.8"):
        assert bmcs.allows(address)
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "100.100.100.200", "fd00:ec2::254"):
        assert not bmcs.allows(address)
    without_auth = EgressPolicy.of(load_config(environ={})).for_bmcs()
    assert without_auth.allows("127.0.0.1")
    assert not EgressPolicy(deny=networks("10.0.0.0/8")).for_bmcs().allows("10.0.0.1")


async def test_a_tenant_cannot_register_a_service_of_this_machine_as_a_bmc(tenant: Api, receiver: Receiver) -> None:
    body = {"bmc_username": "u", "bmc_password": "p"}
    refused = await tenant.call("PUT", "/api/v1/servers/SN-1", {**body, "bmc_address": receiver.url("")})
    assert refused.status == 422
    assert b"webhooks.allow_networks" in refused.body
    # … nor by a name that resolves to one.
    bmcs = EgressPolicy.of(load_config(environ={}, overrides=TOKENS)).for_bmcs()
    transport = RedfishTransport(Bmc(receiver.url("", "localhost"), "u", "p", SERIAL), bmcs, 1)
    with pytest.raises(Untrusted, match=r"webhooks\.allow_networks"):
        await transport.ask("GET", "/redfish/v1/")
    await transport.close()
    assert receiver.connections == 0
