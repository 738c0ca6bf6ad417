"""Changing the record of a server: who may get its password, and what a job under way allows."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import on_sqlite
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER, Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import FAILED, RECIPE, SERIAL, as_machine, lab

SERVER = f"/api/v1/servers/{SERIAL}"
SILENT = Script(silent=True)


@on_sqlite
async def test_a_password_does_not_follow_its_server_to_another_address(store_url: str, tmp_path: Path) -> None:
    """Who may change records may not read passwords, not even by having them sent somewhere."""
    async with lab(store_url, tmp_path) as room:
        await room.register()
        elsewhere = {"bmc_address": "http://127.0.0.1:1", "bmc_username": USER}
        refused = await room.api.call("PUT", SERVER, elsewhere)
        assert (refused.status, refused.json["details"][0]["path"]) == (400, "/bmc_password")
        assert (await room.api.get(SERVER)).good()["bmc_address"] == room.bmc.url
        assert (await room.api.call("PUT", SERVER, {**elsewhere, "bmc_password": PASSWORD})).status == 200


PIN = "sha256:" + "1a" * 32


@on_sqlite
@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({}, {"tls": "insecure"}, "tls"),
        ({}, {"tls": PIN}, "tls"),
        ({"tls": PIN}, {"tls": "insecure"}, "tls"),
        ({"tls": PIN}, {"tls": "sha256:" + "2b" * 32}, "tls"),
        ({"tls": PIN}, {"tls": "verify"}, "tls"),  # whoever has a certificate for that name
        ({}, {"bmc_username": "another"}, "bmc_username"),
        ({}, {"bmc_username": ""}, "bmc_username"),
        ({}, {"bmc_address": "http://bmc.example"}, "bmc_address"),
        ({}, {"bmc_address": "https://bmc.example:8443"}, "bmc_address"),
        ({}, {"bmc_address": "https://bmc.example/elsewhere"}, "bmc_address"),
        ({"tls": "insecure"}, {"tls": PIN}, ""),
        ({"tls": "insecure"}, {"tls": "verify"}, ""),
        ({"tls": PIN}, {"tls": PIN.upper().replace("SHA", "sha")}, ""),
        ({}, {"labels": {"rack": "3"}, "vendor": "dell"}, ""),
    ],
)
async def test_a_password_is_asked_for_again_when_somebody_else_could_get_to_hear_it(
    store_url: str, tmp_path: Path, before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    async with lab(store_url, tmp_path) as room:
        known = {"bmc_address": "https://bmc.example", "bmc_username": USER, **before}
        shown = await room.register(**known)
        answer = await room.api.call("PUT", SERVER, {**known, **after})
        if not field:
            assert answer.good()["has_password"] is True
            return
        assert (answer.status, answer.json["details"][0]["path"]) == (400, "/bmc_password")
        assert f"when {field} changes" in answer.json["details"][0]["message"]
        assert (await room.api.get(SERVER)).good() == shown
        (await room.api.call("PUT", SERVER, {**known, **after, "bmc_password": PASSWORD})).good()
        (await room.api.call("PUT", SERVER, {**known, "bmc_password": ""})).good()  # none is an answer too


@on_sqlite
async def test_a_record_does_not_lead_to_another_machine_in_the_midst_of_a_job(store_url: str, tmp_path: Path) -> None:
    """Whose BMC says as little about who it is as the first one's, and which the cleaning up would reset."""
    nameless = Habits(serial=None, uuid=None)
    async with lab(store_url, tmp_path, nameless, SILENT) as room, FakeBmc(nameless) as other:
        await room.register(unidentified=True)
        job_id = await room.submit(recipe={**RECIPE, "on_failure": "reboot"})
        await room.waits(job_id)
        record = {"bmc_address": other.url, "bmc_username": USER, "bmc_password": PASSWORD, "unidentified": True}
        refused = await room.api.call("PUT", SERVER, record)
        (await as_machine(room, FAILED)).good()
        await room.reaches(job_id, "complete")
        assert (room.bmc.count("reset"), other.count("reset")) == (2, 0)
        assert (refused.status, refused.json["error"]) == (409, "conflict.active_job")
        (await room.api.call("PUT", SERVER, record)).good()


@on_sqlite
async def test_a_password_that_was_changed_at_the_bmc_can_be_told_in_the_midst_of_a_job(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        await room.waiting()
        await room.register(bmc_password="another")


@on_sqlite
async def test_one_machine_is_not_registered_twice_by_another_spelling_of_its_serial(
    store_url: str, tmp_path: Path
) -> None:
    """A BMC's serial fits in either case; two records would be two jobs at once on the same disk."""
    async with lab(store_url, tmp_path) as room:
        await room.register("SN-1")
        record = {"bmc_address": room.bmc.url, "bmc_username": USER, "bmc_password": PASSWORD}
        again = await room.api.call("PUT", "/api/v1/servers/sn-1", record)
        assert (again.status, again.json["error"]) == (409, "conflict.serial")
        assert (await room.api.call("DELETE", "/api/v1/servers/SN-1")).status == 204
        await room.register("sn-1")
        assert (await room.reaches(await room.submit("sn-1"), "complete"))["outcome"] == "succeeded"
