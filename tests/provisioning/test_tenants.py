"""Two tenants and their machines: neither blocks, sees or reports for the other, even with the same serials and UUIDs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chargehand.engine.record import DropRecord, PutRecord
from chargehand.engine.records import Records
from tests.api.serving import Answer, on_sqlite
from tests.inference.calling import a_token, token_of
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.guest import Script
from tests.provisioning.lab import SECRET, SERIAL, Lab, lab

SILENT = Script(silent=True)
TOKENS = [a_token("acme", "acme"), a_token("umbrella", "umbrella")]
SUCCESS = {"status": "success"}
STEP = {"step": "partition.service", "boot_id": "1"}


@asynccontextmanager
async def two_tenants(
    store_url: str, folder: Path, other: FakeBmc | None = None, **settings: Any
) -> AsyncIterator[tuple[Lab, Lab]]:
    """Yield the two tenants, with the same server and, if no other is given, the same BMC."""
    given = {"auth.tokens": TOKENS, **{f"provisioning.{name}": value for name, value in settings.items()}}
    async with lab(store_url, folder, script=SILENT, settings=given, token=token_of("acme")) as acme:
        api = acme.api.of(token_of("umbrella"))
        yield acme, Lab(acme.server, api, other or acme.bmc, acme.guest, acme.open)


async def says(room: Lab, token: str, said: dict[str, Any], where: str = "", serial: str = SERIAL) -> Answer:
    return await room.api.of(token).post(f"/api/v1/status-webhook/{serial}{where}", said)


async def all_that_is_shown(room: Lab, job_id: str) -> str:
    return json.dumps([await room.job(job_id), await room.events(job_id)])


# occupancy --------------------------------------------------------------------------------------------------------------


async def test_a_bmc_that_claims_to_be_another_tenants_machine_does_not_block_that_tenant(
    store_url: str, tmp_path: Path
) -> None:
    async with FakeBmc() as impostor, two_tenants(store_url, tmp_path, impostor) as (acme, umbrella):
        theirs = await umbrella.waiting()  # with the serial and the UUID that acme's machine has
        ours = await acme.waiting()
        assert (await acme.job(ours))["status"] == "provisioning"
        for one, job_id, others in ((acme, ours, theirs), (umbrella, theirs, ours)):
            assert others not in await all_that_is_shown(one, job_id)
            (await says(one, (await one.on_medium())["token"], SUCCESS)).good()
            assert (await one.reaches(job_id, "complete"))["outcome"] == "succeeded"


async def test_two_tenants_with_credentials_for_one_bmc_use_its_machine_one_after_the_other(
    store_url: str, tmp_path: Path
) -> None:
    async with two_tenants(store_url, tmp_path) as (acme, umbrella):
        ours = await acme.waiting()
        token = (await acme.on_medium())["token"]
        await umbrella.register(SERIAL.lower())
        theirs = await umbrella.reaches(await umbrella.submit(SERIAL.lower()), "complete")
        assert (theirs["outcome"], theirs["failed_step"]) == ("failed", "conflict.active_job")
        shown = await all_that_is_shown(umbrella, theirs["job_id"])
        assert ours not in shown
        assert "acme" not in shown
        assert acme.bmc.count("reset") == 1
        (await says(acme, token, SUCCESS)).good()
        assert (await acme.reaches(ours, "complete"))["outcome"] == "succeeded"
        again = await umbrella.submit(SERIAL.lower())
        await umbrella.waits(again)
        assert acme.bmc.count("reset") > 1


@on_sqlite
async def test_a_tenant_without_credentials_for_a_bmc_does_not_block_its_machine(
    store_url: str, tmp_path: Path
) -> None:
    async with two_tenants(store_url, tmp_path, boot_seconds=10) as (acme, umbrella):
        await umbrella.register(bmc_password="a guess")
        theirs = await umbrella.submit()
        await acme.waiting()
        refused = await umbrella.reaches(theirs, "complete")
        assert refused["failed_step"] == "redfish.discover"


# reports ----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_jobs_token_reports_for_its_own_tenant_although_another_has_the_same_serial(
    store_url: str, tmp_path: Path
) -> None:
    async with FakeBmc() as other, two_tenants(store_url, tmp_path, other) as (acme, umbrella):
        ours, theirs = await acme.waiting(), await umbrella.waiting()
        token = (await umbrella.on_medium())["token"]
        await acme.register("SN-2")
        for said in (STEP, {**STEP, "job_id": ours}):
            assert (await says(umbrella, token, said, "/progress")).good()["job_id"] == theirs
        for where, said in (("", SUCCESS), ("/progress", STEP)):
            assert (await says(umbrella, token, said, where, "SN-2")).status == 404
        for _ in range(2):  # twice, as a machine does that got no answer
            assert (await says(umbrella, token, {**SUCCESS, "job_id": ours, "delivery_id": "1"})).good()[
                "job_id"
            ] == theirs
        assert (await umbrella.reaches(theirs, "complete"))["outcome"] == "succeeded"
        assert (await says(umbrella, token, SUCCESS)).good()["duplicate"] is True
        untouched = await acme.job(ours)
        assert (untouched["status"], untouched["progress"]["heard_at"]) == ("provisioning", None)


@on_sqlite
async def test_the_shared_secret_is_valid_for_machines_of_one_tenant_only(store_url: str, tmp_path: Path) -> None:
    async with (
        FakeBmc() as other,
        two_tenants(store_url, tmp_path, other, webhook_tenant="acme") as (acme, umbrella),
    ):
        ours, theirs = await acme.waiting(), await umbrella.waiting()
        await umbrella.register("SN-2")
        for said in ({**SUCCESS, "job_id": theirs}, {**STEP, "job_id": theirs}):
            where = "/progress" if "step" in said else ""
            path = f"/api/v1/status-webhook/{SERIAL}{where}"
            assert (await acme.api.post(path, said, {"X-Webhook-Secret": SECRET})).status == 404
        assert (await acme.report(SUCCESS, "SN-2")).status == 404
        assert (await acme.report(SUCCESS)).good()["job_id"] == ours
        assert (await acme.reaches(ours, "complete"))["outcome"] == "succeeded"
        assert (await acme.report(SUCCESS)).good()["duplicate"] is True  # about its own job, not the other's
        untouched = await umbrella.job(theirs)
        assert (untouched["status"], untouched["progress"]["heard_at"]) == ("provisioning", None)


# records of an earlier release ----------------------------------------------------------------------------------------------


async def test_records_of_all_tenants_together_are_moved_to_each_tenant_at_the_start(
    store_url: str, tmp_path: Path
) -> None:
    async with two_tenants(store_url, tmp_path, webhook_tenant="acme") as (acme, _):
        job_id = await acme.waiting()
        store = acme.server.store
        [owner] = await Records(store).list("server-owner", "acme")
        [machine] = await Records(store).list("provision-machine", "acme")
        for record, body in (
            (owner, {"tenant": "acme", "serial": SERIAL, "job_id": job_id}),
            (machine, msgspec.json.decode(machine.body)),
        ):
            await store.write(PutRecord(record.kind, "*", record.name, msgspec.json.encode(body), expected=0))
            await store.write(PutRecord(record.kind, "*", "of-nobody", b"{}", expected=0))
            await store.write(DropRecord(record.kind, "acme", record.name))
        await acme.stop()
        await acme.start()
        store = acme.server.store
        for record in (owner, machine):
            assert await Records(store).list(record.kind, "*") == []
            assert [each.name for each in await Records(store).list(record.kind, "acme")] == [record.name]
        assert (await acme.report(SUCCESS)).good()["job_id"] == job_id


@pytest.mark.parametrize("secret", ["", "wrong", SECRET[:-1], SECRET + "x"])
@on_sqlite
async def test_a_secret_that_is_nearly_right_is_refused(store_url: str, tmp_path: Path, secret: str) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        await room.register()
        assert (await room.report(SUCCESS, secret=secret)).status == 403
