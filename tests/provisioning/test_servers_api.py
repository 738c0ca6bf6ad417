"""The API of servers: register, change, probe, delete; and no answer contains a password."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import on_sqlite, serving, talking
from tests.inference.calling import a_token, token_of
from tests.provisioning.bmc_habits import CD_AND_USB, ONE_CD, PASSWORD, USER, Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SERIAL, lab

PATH = f"/api/v1/servers/{SERIAL}"


async def test_a_server_is_registered_read_listed_and_deleted(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        body = {
            "bmc_address": room.bmc.url + "/",
            "bmc_username": USER,
            "bmc_password": PASSWORD,
            "vendor": "contoso",
            "labels": {"rack": "7"},
        }
        made = (await room.api.call("PUT", PATH, body)).good()
        assert made == (await room.api.get(PATH)).good()
        assert made["bmc_address"] == room.bmc.url
        assert (made["bmc_username"], made["has_password"], made["vendor"]) == (USER, True, "contoso")
        assert (made["tls"], made["labels"], made["probe"], made["active_job"]) == ("verify", {"rack": "7"}, None, None)
        assert (await room.api.get("/api/v1/servers")).good() == {"servers": [made], "next": None}
        assert (await room.api.call("DELETE", PATH)).status == 204
        assert (await room.api.get(PATH)).status == 404
        assert (await room.api.call("DELETE", PATH)).status == 404
        assert (await room.api.post(f"{PATH}/probe")).status == 404


@on_sqlite
async def test_a_password_that_is_left_out_is_kept_and_never_returned(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        kept = (await room.api.call("PUT", PATH, {"bmc_address": room.bmc.url, "bmc_username": USER})).good()
        assert kept["has_password"] is True
        assert (await room.api.post(f"{PATH}/probe")).good()["ok"] is True
        changed = await room.api.call(
            "PUT", PATH, {"bmc_address": room.bmc.url, "bmc_username": USER, "bmc_password": "another"}
        )
        assert (await room.api.post(f"{PATH}/probe")).good()["ok"] is False
        shown = changed.body + (await room.api.get(PATH)).body + (await room.api.get("/api/v1/servers")).body
        assert PASSWORD.encode() not in shown
        assert b"another" not in shown
        assert b"bmc_password" not in shown


@on_sqlite
async def test_servers_are_listed_page_by_page(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        names = [f"SN-{number}" for number in range(5)]
        for name in names:
            await room.register(name)
        seen: list[str] = []
        after = ""
        while True:
            page = (await room.api.get(f"/api/v1/servers?limit=2&after={after}")).good()
            seen += [server["server_serial"] for server in page["servers"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert seen == names


@on_sqlite
@pytest.mark.parametrize(
    ("slots", "drives"),
    [(ONE_CD, ["cd"]), (CD_AND_USB, ["cd", "usb"]), (Habits().slots, ["cd", "cd"])],
    ids=["one CD", "CD and USB", "two CDs"],
)
async def test_a_probe_returns_what_the_bmc_can_do_and_changes_nothing(
    store_url: str, tmp_path: Path, slots: Any, drives: list[str]
) -> None:
    async with lab(store_url, tmp_path, Habits(slots=slots)) as room:
        await room.register()
        probe = (await room.api.post(f"{PATH}/probe")).good()
        facts = probe["facts"]
        assert (probe["ok"], probe["problem"], facts["serial"], facts["power"]) == (True, "", SERIAL, "Off")
        assert sorted(slot["kind"] for slot in facts["slots"]) == drives
        assert {"On", "ForceRestart"} <= set(facts["reset_types"])
        assert facts["boot_modes"] == ["UEFI", "Legacy"]
        assert (await room.api.get(PATH)).good()["probe"] == probe
        assert {call.method for call in room.bmc.log if "SessionService" not in call.path} == {"GET"}
        assert not room.bmc.sessions


@on_sqlite
async def test_a_failed_probe_says_why_and_keeps_the_earlier_facts(store_url: str, tmp_path: Path) -> None:
    settings = {"provisioning.redfish_timeout_seconds": 0.2}
    async with lab(store_url, tmp_path, settings=settings) as room:
        await room.register()
        (await room.api.post(f"{PATH}/probe")).good()
        await room.register(system_uuid="99999999-2222-3333-4444-555555555555")
        probe = (await room.api.post(f"{PATH}/probe")).good()
        assert (probe["ok"], probe["facts"]) == (False, None)
        assert "UUID" in probe["problem"]
        shown = (await room.api.get(PATH)).good()["probe"]
        assert (shown["ok"], shown["facts"]["serial"]) == (False, SERIAL)
        await room.register(bmc_address="http://127.0.0.1:1")
        assert (await room.api.get(PATH)).good()["probe"] is None


@on_sqlite
async def test_a_server_with_an_active_job_cannot_be_deleted(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await room.waiting()
        assert (await room.api.get(PATH)).good()["active_job"] == job_id
        refused = await room.api.call("DELETE", PATH)
        assert (refused.status, refused.json["error"]) == (409, "conflict.active_job")
        (await room.report({"status": "success"})).good()
        await room.reaches(job_id, "complete")
        assert (await room.api.call("DELETE", PATH)).status == 204


@on_sqlite
async def test_an_older_job_that_was_retried_is_the_active_one(store_url: str, tmp_path: Path) -> None:
    """Else its server could be deleted, or changed to another machine, while it works."""
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        older = await room.waiting()
        (await room.report({"status": "failed", "failed_step": "partition.service"})).good()
        await room.reaches(older, "complete")
        newer = await room.submit()
        await room.waits(newer)
        (await room.report({"status": "success"})).good()
        await room.reaches(newer, "complete")
        (await room.api.post(f"/api/v1/jobs/{older}/retry")).good()
        await room.waits(older)
        assert (await room.api.get(PATH)).good()["active_job"] == older
        refused = await room.api.call("DELETE", PATH)
        assert (refused.status, refused.json["error"]) == (409, "conflict.active_job")


@on_sqlite
async def test_two_tenants_may_register_the_same_serial_and_do_not_see_each_others_server(
    store_url: str, tmp_path: Path
) -> None:
    tokens = [a_token("acme", "acme"), a_token("umbrella", "umbrella")]
    async with lab(store_url, tmp_path, settings={"auth.tokens": tokens}, token=token_of("acme")) as room:
        umbrella = room.api.of(token_of("umbrella"))
        await room.register()
        assert (await umbrella.get(PATH)).status == 404
        (await umbrella.call("PUT", PATH.lower(), {"bmc_address": "http://127.0.0.1:1"})).good()
        assert (await umbrella.call("DELETE", PATH.lower())).status == 204
        (await umbrella.call("PUT", PATH, {"bmc_address": "http://127.0.0.1:1"})).good()
        assert (await room.api.get(PATH)).good()["bmc_address"] == room.bmc.url
        assert (await room.api.call("DELETE", PATH)).status == 204
        assert (await umbrella.get(PATH)).good()["bmc_address"] == "http://127.0.0.1:1"


@on_sqlite
async def test_a_bmc_may_be_in_a_private_network(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        for address in ("http://10.1.2.3", "https://192.168.0.9:8443/bmc", "https://[fd12::5]", "https://bmc-7.lan"):
            assert (await room.api.call("PUT", PATH, {"bmc_address": address})).good()["bmc_address"] == address


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_without_a_key_servers_and_jobs_are_refused(store_url: str, tmp_path: Path) -> None:
    settings = {"server.data_dir": str(tmp_path), "provisioning.enabled": True}
    async with serving(store_url, settings) as server, talking(server) as api:
        answer = await api.call("PUT", PATH, {"bmc_address": "http://10.1.2.3", "bmc_password": "x"})
        assert (answer.status, answer.json["error"]) == (503, "config.missing")
        assert "provisioning.key" in answer.json["message"]
        job = await api.post("/api/v1/jobs", {"server_serial": SERIAL, "recipe": RECIPE})
        assert (job.status, job.json["error"]) == (503, "config.missing")


@on_sqlite
async def test_a_wrong_key_is_reported(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
    async with lab(
        store_url, tmp_path, settings={"provisioning.key": "another key of more than thirty-two bytes!"}
    ) as room:
        probe = await room.api.post(f"{PATH}/probe")
        assert (probe.status, probe.json["error"]) == (503, "config.key")
