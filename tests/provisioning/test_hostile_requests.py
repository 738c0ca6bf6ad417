"""Hostile input over HTTP: the answer is a clear 4xx that names the field, never a 500, and the server goes on.

What each check refuses is tested in test_recipe_hostile.py and tests/webhooks/test_egress.py.
"""

import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.api.serving import Answer, exchange, on_sqlite
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SECRET, SERIAL, Lab, lab

ESXI = {"task_target": "install-esxi.target", "wipe": True, "installer_iso": "esxi.iso", "ks_cfg": "vmaccepteula\n"}
UPDATE = {
    "task_target": "supermicro-update.target",
    "firmware_url": "http://10.0.0.1/bios.bin",
    "env": {"USER_FIRMWARE_SHA256": "0" * 64},
}
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(12)
)
CONTROLS = ("\0", "\n", "\r", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u202e")
OTHERS: tuple[Any, ...] = (None, 1, -1.5, True, "text", [], {}, [{}], {"a": 1})
METADATA = (
    "http://169.254.169.254/",
    "http://169.254.169.254:80/latest/meta-data/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0xa9.0xfe.0xa9.0xfe/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[fd00:ec2::254]/",
    "http://①⑥⑨.②⑤④.①⑥⑨.②⑤④/",
    "http://169。254。169。254/",
    "http://169.254.169.254./",
    "http://100.100.100.200/",
    "http://0.0.0.0/",
    "http://[::]/",
    "http://224.0.0.1/",
)
NO_URLS = (
    "ftp://10.0.0.1/",
    "file:///etc/passwd",
    "gopher://10.0.0.1/",
    "javascript:alert(1)",
    "http://user:pass@10.0.0.1/",
    "http://10.0.0.1#@169.254.169.254/",
    "http://10.0.0.1\\@169.254.169.254/",
    "http://10.0.0.1 /",
    "http://10.0.0.1\n/",
    "http://",
    "10.0.0.1",
    "",
    "http://" + "a" * 3000,
)


def refused(answer: Answer, *pointers: str, status: int = 400) -> None:
    """Check the refusal: 400 for an invalid value, 422 for an address that is not allowed."""
    assert answer.status == status or (answer.status, answer.json["error"]) == (422, "egress.refused"), answer.body[
        :500
    ]
    assert answer.json["error"]
    assert 0 < len(answer.json["message"]) < 5000
    found = [detail["path"] for detail in answer.json["details"]]
    assert not pointers or any(path.startswith(pointer) for path in found for pointer in pointers), answer.json


async def alive(room: Lab) -> None:
    assert (await room.api.get("/readyz")).status == 200
    (await room.api.get("/api/v1/jobs")).good()


async def submit(room: Lab, recipe: Any, **fields: Any) -> Answer:
    body = json.dumps({"server_serial": SERIAL, "recipe": recipe, **fields}).encode()
    return await room.api.call("POST", "/api/v1/jobs", data=io.BytesIO(body))


# names ------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_hostile_name_in_a_recipe_is_refused_with_its_field(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "secret.iso").write_bytes(b"not for everybody")
    traversals = ("../secret.iso", "..\\secret.iso", "/etc/passwd", "a/../../secret.iso", "%2e%2e%2fsecret.iso", ".iso")
    controls = tuple(f"esxi{control}.iso" for control in CONTROLS)
    async with lab(store_url, tmp_path) as room:
        await room.register()
        for name in (*traversals, *controls, "x" * 300 + ".iso", "esxi.iso\n", "-rf.iso", "", "esxi.img"):
            refused(await submit(room, {**ESXI, "installer_iso": name}), "/recipe/installer_iso", "/recipe")
        for name in (
            "../n1",
            "n1/..",
            "n1\n127.0.0.1 evil",
            "-n1",
            "n1.",
            "x" * 64,
            "x." * 200,
            "n 1",
            "",
            "n1;reboot",
        ):
            refused(await submit(room, {**RECIPE, "hostname": name}), "/recipe/hostname")
        for disk in ("/dev/../etc/passwd", "/etc/passwd", "/dev/vda;reboot", "/dev/$(reboot)", "vda", "/dev/vda\n"):
            refused(await submit(room, {**RECIPE, "target_disk": disk}), "/recipe/target_disk")
        for label in ("../x", "a\nb", "x" * 100, "a/b", "$(reboot)"):
            layout = [*RECIPE["partition_layout"][:1], {**RECIPE["partition_layout"][1], "label": label}]
            refused(await submit(room, {**RECIPE, "partition_layout": layout}), "/recipe/partition_layout/1/label")
        for target in ("../x.target", "reboot.target", "install-linux.target\n", "install-linux.service"):
            refused(await submit(room, {**RECIPE, "task_target": target}), "/recipe")
        for name in ("PATH", "LD_PRELOAD", "USER_x", "USER_", "USER_A=B", "USER_A\n"):
            refused(await submit(room, {**RECIPE, "env": {name: "x"}}), "/recipe/env")
        assert (await room.api.get("/api/v1/jobs")).good()["jobs"] == []
        await alive(room)


@on_sqlite
async def test_a_hostile_serial_in_a_url_is_refused(store_url: str, tmp_path: Path) -> None:
    serials = (
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "a%2fb",
        "a%5cb",
        "%00",
        "a%0ab",
        "a%20b",
        "%ff",
        "-x",
        "x" * 65,
    )
    async with lab(store_url, tmp_path) as room:
        record = json.dumps({"bmc_address": room.bmc.url}).encode()
        for serial in serials:
            for method, tail, body in (
                ("PUT", "", record),
                ("GET", "", b""),
                ("DELETE", "", b""),
                ("POST", "/probe", b""),
            ):
                request = f"{method} /api/v1/servers/{serial}{tail} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
                status, answer = await exchange(room.server, request.encode() + body)
                assert 400 <= status < 500, (method, serial, answer)
            request = f"POST /api/v1/status-webhook/{serial} HTTP/1.1\r\nX-Webhook-Secret: {SECRET}\r\n"
            body = b'{"status": "success"}'
            status, answer = await exchange(
                room.server, f"{request}Content-Length: {len(body)}\r\n\r\n".encode() + body
            )
            assert status in (400, 404), (serial, answer)
        for serial in ("../x", "a/b", "a\nb", "", "x" * 65, "ä", "-x"):
            unknown = await room.api.post("/api/v1/jobs", {"server_serial": serial, "recipe": RECIPE})
            refused(unknown, status=404)
            assert unknown.json["error"] == "validation.server"
        assert (await room.api.get("/api/v1/servers")).good()["servers"] == []
        await alive(room)


# sizes and depths -------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_input_that_is_far_too_large_is_refused_and_the_server_goes_on(store_url: str, tmp_path: Path) -> None:
    huge = "x" * (10 << 20)
    async with lab(store_url, tmp_path) as room:
        await room.register()
        for recipe in ({**RECIPE, "notes": huge}, {**RECIPE, "user_data": huge}, {**RECIPE, huge: 1}):
            assert (await submit(room, recipe)).status == 413
        big = "x" * (3 << 20)  # within the limit of a body
        for name in ("user_data", "notes", "hostname", "oci_url", "target_disk", "schema_version", "task_target"):
            refused(await submit(room, {**RECIPE, name: big}), f"/recipe/{name}", "/recipe")
        refused(await submit(room, {**RECIPE, big: 1}), "/recipe")
        refused(await submit(room, RECIPE, metadata={"a": "x" * 20_000}), "/metadata")
        for name in ("bmc_address", "bmc_username", "bmc_password", "vendor", "tls"):
            record = {"bmc_address": room.bmc.url, name: "x" * 5000}
            refused(await room.api.call("PUT", f"/api/v1/servers/{SERIAL}", record), f"/{name}")
        body = io.BytesIO(json.dumps({"bmc_address": huge}).encode())
        assert (await room.api.call("PUT", f"/api/v1/servers/{SERIAL}", data=body)).status == 413
        labels = {"bmc_address": room.bmc.url, "labels": {str(number): "x" for number in range(100)}}
        refused(await room.api.call("PUT", f"/api/v1/servers/{SERIAL}", labels), "/labels")
        body = io.BytesIO(json.dumps({"status": "failed", "failed_step": huge}).encode())
        path, headers = f"/api/v1/status-webhook/{SERIAL}", {"X-Webhook-Secret": SECRET}
        assert (await room.api.call("POST", path, data=body, headers=headers)).status == 413
        await alive(room)


@on_sqlite
async def test_json_nested_a_hundred_thousand_deep_is_refused(store_url: str, tmp_path: Path) -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    arrays = b"[" * 100_000 + b"]" * 100_000
    bodies = {
        "POST /api/v1/jobs": [
            b'{"server_serial": "SN-1", "recipe": ' + deep + b"}",
            b'{"server_serial": "SN-1", "recipe": {"task_target": "install-linux.target", "env": ' + deep + b"}}",
            b'{"server_serial": "SN-1", "recipe": {}, "metadata": ' + deep + b"}",
            deep,
            arrays,
        ],
        "POST /api/v1/recipes/validate": [deep, arrays],
        f"PUT /api/v1/servers/{SERIAL}": [b'{"bmc_address": "http://10.0.0.1", "labels": ' + deep + b"}", deep],
        f"POST /api/v1/status-webhook/{SERIAL}": [b'{"status": "success", "more": ' + deep + b"}", deep],
        f"POST /api/v1/status-webhook/{SERIAL}/progress": [b'{"step": "x", "more": ' + deep + b"}"],
    }
    async with lab(store_url, tmp_path) as room:
        await room.register()
        for line, examples in bodies.items():
            method, path = line.split()
            for body in examples:
                answer = await room.api.call(method, path, data=body, headers={"X-Webhook-Secret": SECRET})
                assert 400 <= answer.status < 500, (line, answer.body[:200])
        await alive(room)


@on_sqlite
async def test_a_yaml_bomb_in_user_data_is_refused_or_passed_on_unparsed(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        await room.register()
        answer = await submit(room, {**RECIPE, "user_data": "#cloud-config\n" + BOMB})
        refused(answer, "/recipe/user_data")
        for text in (
            "#cloud-config\n" + "[" * 100_000,
            "#cloud-config\n&a [*a]\n",
            "#cloud-config\n!!python/object:os.x {}\n",
        ):
            assert (await submit(room, {**RECIPE, "user_data": text})).status in (202, 400, 409)
        await alive(room)


# types ------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_wrong_type_in_any_field_is_refused_with_its_field(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        (await room.api.call("PUT", f"/engine/queues/provision/{SERIAL}", {"paused": True})).good()
        for base in (RECIPE, ESXI, UPDATE):
            for name in (*base, "notes", "timeout_minutes", "on_success", "on_failure", "schema_version", "env"):
                for wrong in OTHERS:
                    answer = await submit(room, {**base, name: wrong})
                    if answer.status == 202:  # the value has the right type after all
                        (await room.api.post(f"/api/v1/jobs/{answer.json['job_id']}/cancel")).good()
                    else:
                        refused(answer, f"/recipe/{name}", "/recipe")
        for recipe in (None, 1, "recipe", [], [RECIPE], True):
            refused(await submit(room, recipe), "/recipe")
        given: dict[str, Any] = {"server_serial": SERIAL, "recipe": RECIPE}
        for name in ("server_serial", "webhook", "priority", "metadata", "nonsense"):
            for wrong in OTHERS:
                answer = await room.api.post("/api/v1/jobs", {**given, name: wrong})
                if answer.status == 202:
                    (await room.api.post(f"/api/v1/jobs/{answer.json['job_id']}/cancel")).good()
                elif answer.status != 404:
                    refused(answer, f"/{name}")
        record = {"bmc_address": room.bmc.url, "bmc_password": "x"}
        names = (
            "bmc_address",
            "bmc_username",
            "bmc_password",
            "system_uuid",
            "vendor",
            "tls",
            "unidentified",
            "labels",
        )
        for name in (*names, "nonsense"):
            for wrong in OTHERS:
                answer = await room.api.call("PUT", f"/api/v1/servers/{SERIAL}", {**record, name: wrong})
                if answer.status != 200:
                    refused(answer, f"/{name}")
        await alive(room)


# addresses --------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_addresses_of_metadata_services_are_refused_in_every_spelling(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        for url in (*METADATA, *NO_URLS):
            answer = await room.api.call("PUT", "/api/v1/servers/SN-2", {"bmc_address": url})
            refused(answer, "/bmc_address")
            refused(await submit(room, RECIPE, webhook={"url": url}), "/webhook/url")
            refused(await submit(room, {**UPDATE, "firmware_url": url}), "/recipe/firmware_url")
        for url in METADATA:
            host = url.removeprefix("http://").partition("/")[0]
            refused(await submit(room, {**RECIPE, "oci_url": f"{host}/os/debian:12"}), "/recipe/oci_url")
        assert (await room.api.get("/api/v1/servers/SN-2")).status == 404
        await alive(room)


@on_sqlite
@pytest.mark.parametrize(
    "habits",
    [
        Habits(redirect="http://169.254.169.254/"),
        Habits(body="huge"),
        Habits(body="deep"),
        Habits(body="many"),
        Habits(body="headers"),
    ],
)
async def test_a_hostile_bmc_fails_the_probe_and_the_server_goes_on(
    store_url: str, tmp_path: Path, habits: Habits
) -> None:
    async with lab(store_url, tmp_path, habits) as room:
        await room.register()
        probe = (await room.api.post(f"/api/v1/servers/{SERIAL}/probe")).good()
        assert (probe["ok"], probe["facts"]) == (False, None)
        assert probe["problem"]
        assert len(probe["problem"]) < 2000
        await alive(room)


@on_sqlite
async def test_control_characters_in_a_machines_report_are_removed(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await room.waiting()
        evil = "a\x1b[2J\r\nFAKE: line\x07\x85\u2028.service"
        said = {"step": evil, "message": evil * 3, "boot_id": "b"}
        (await room.api.post(f"/api/v1/status-webhook/{SERIAL}/progress", said, {"X-Webhook-Secret": SECRET})).good()
        (await room.report({"status": "failed", "failed_step": evil, "delivery_id": "d"})).good()
        job = await room.reaches(job_id, "complete")
        texts = [text for event in await room.events(job_id) for text in (event["message"], event["step"])]
        texts += [job["failed_step"], job["error"], job["failure"]["unit"], job["failure"]["message"]]
        texts += [step["message"] + step["step"] for step in job["progress"]["steps"]] + [job["progress"]["step"]]
        assert [text for text in texts if not text.isprintable()] == []


@on_sqlite
async def test_requests_that_are_not_http_or_not_json_are_refused(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        for raw in (
            b"",
            b"{",
            b"nonsense",
            b"\xff\xfe{}",
            b'{"a":1,"a":2}',
            b'"\\ud800"',
            b"{}" * 2,
            b"NaN",
            b"[1e999]",
        ):
            answer = await room.api.call("POST", "/api/v1/jobs", data=raw)
            assert answer.status == 400, raw
            refused(answer)
        twice = b'{"server_serial":"SN-1","recipe":{"task_target":"install-linux.target","wipe":false,"wipe":true}}'
        refused(await room.api.call("POST", "/api/v1/jobs", data=twice), "/recipe/wipe")
        form = aiohttp.FormData({"server_serial": SERIAL})
        assert (await room.api.call("POST", "/api/v1/jobs", data=form)).status == 400
        await alive(room)


MANY = b"[" + b"[]," * 60_000 + b"0]"


@on_sqlite
async def test_a_debugging_field_of_a_wrong_type_is_dropped_without_being_decoded(
    store_url: str, tmp_path: Path
) -> None:
    """The outcome in the same report counts."""
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await room.waiting()
        odd = b'"job_id":1,"exit_code":99999999999999999999,"started_at":"\xff","schema_id":{"a":"\xff"}'
        body = b'{"status":"success",' + odd + b',"log_tail":' + MANY + b"}"
        path = f"/api/v1/status-webhook/{SERIAL}"
        taken = await room.api.call("POST", path, data=body, headers={"X-Webhook-Secret": SECRET})
        assert taken.good()["job_id"] == job_id
        [event] = await room.told(job_id, "webhook")
        assert event["data"].keys() == {"kind", "auth", "status"}


@on_sqlite
async def test_a_status_given_thousands_of_times_is_stored_once(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        await room.register()
        hook = {"url": "http://127.0.0.1:9/hook", "on": ["failed", "complete"] * 5_000}
        job_id = (await submit(room, RECIPE, webhook=hook)).good(202)["job_id"]
        job = await room.server.store.get_job(job_id)
        assert job is not None
        assert len(job.reports) < 1000
        refused(await submit(room, RECIPE, metadata=json.loads(MANY)), "/metadata")
        refused(await submit(room, RECIPE, metadata={"a": json.loads(MANY)}), "/metadata")
