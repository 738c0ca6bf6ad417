"""Changing a server: where its password may be sent, and what is allowed during a job."""

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
async def test_a_stored_password_is_not_sent_to_another_address(store_url: str, tmp_path: Path) -> None:
    """Else whoever may change a server could read its password, by having it sent to an address of their own."""
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
        ({"tls": PIN}, {"tls": "verify"}, "tls"),  # anybody with a certificate for that name could read it
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
async def test_the_password_must_be_given_again_when_a_change_could_send_it_elsewhere(
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
        (await room.api.call("PUT", SERVER, {**known, "bmc_password": ""})).good()  # an empty password counts as given


@on_sqlite
async def test_a_server_cannot_be_changed_to_another_machine_during_a_job(store_url: str, tmp_path: Path) -> None:
    """Its BMC reports no identity, like the first one's, so the cleanup would reset the other machine."""
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
async def test_a_new_password_of_the_bmc_can_be_registered_during_a_job(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        await room.waiting()
        await room.register(bmc_password="another")


@on_sqlite
async def test_a_serial_cannot_be_registered_twice_in_upper_and_lower_case(store_url: str, tmp_path: Path) -> None:
    """A serial matches a BMC's in either case, so two records would allow two jobs at once on the same disk."""
    async with lab(store_url, tmp_path) as room:
        await room.register("SN-1")
        record = {"bmc_address": room.bmc.url, "bmc_username": USER, "bmc_password": PASSWORD}
        again = await room.api.call("PUT", "/api/v1/servers/sn-1", record)
        assert (again.status, again.json["error"]) == (409, "conflict.serial")
        assert (await room.api.call("DELETE", "/api/v1/servers/SN-1")).status == 204
        await room.register("sn-1")
        assert (await room.reaches(await room.submit("sn-1"), "complete"))["outcome"] == "succeeded"
