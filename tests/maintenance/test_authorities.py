"""Own certificates of the controller, the registry and the firmware server: the task medium tells machines whom to trust."""

import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chargehand.doors.provisioning.media.authorities import NAME, read_authorities
from chargehand.errors import ConfigError
from provision.errors import Exit
from tests.api.serving import on_sqlite
from tests.maintenance.machine import Machine
from tests.maintenance.scene import scene
from tests.maintenance.test_agent import STARTED, plain_task
from tests.maintenance.test_other_registries import certificate, serving
from tests.provisioning.guest import task_files
from tests.provisioning.registering import digest


def on_medium(machine: Machine) -> dict[str, bytes]:
    found = [task_files(drive.read_bytes()) for drive in (machine.root / "dev").iterdir()]
    return next(files for files in found if files)


@on_sqlite
async def test_the_task_medium_brings_the_authorities_and_no_private_key(store_url: str, tmp_path: Path) -> None:
    certificate(tmp_path / "tls.pem")
    settings: dict[str, Any] = {"provisioning.ca_file": str(tmp_path / "tls.pem")}
    async with scene(store_url, tmp_path, **settings) as at:
        brought = on_medium(at.machine)[NAME]
        assert b"PRIVATE KEY" not in brought
        assert brought.strip() in (tmp_path / "tls.pem").read_bytes()
        machine = await at.dispatched()
        assert (machine.run / NAME).read_bytes() == brought
        assert machine.readable_by_others() == []


@on_sqlite
async def test_without_the_setting_the_medium_has_no_authorities(store_url: str, tmp_path: Path) -> None:
    async with scene(store_url, tmp_path) as at:
        assert NAME not in on_medium(at.machine)


@pytest.mark.parametrize(
    "content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_the_server_does_not_start_with_an_unusable_ca_file(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"provisioning.ca_file: .*ca.pem"):
        read_authorities(str(file))


async def test_https_to_controller_and_firmware_works_only_with_the_authorities_of_the_medium(
    tmp_path: Path,
) -> None:
    certificate(tmp_path / "tls.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "tls.pem")
    heard: list[str] = []

    async def progress(request: web.Request) -> web.Response:
        heard.append((await request.json())["step"])
        return web.json_response({})

    async def firmware(_request: web.Request) -> web.Response:
        return web.Response(body=b"BIOS")

    app = web.Application()
    app.add_routes([web.post("/p", progress), web.post("/s", progress), web.get("/bios.bin", firmware)])
    async with serving(app, tls) as address:
        report = {
            "job_id": "j", "server_serial": "SN-1", "token": "t" * 20,
            "status_url": f"https://{address}/s", "progress_url": f"https://{address}/p",
        }  # fmt: skip
        said = {"report__json": json.dumps(report).encode()}
        machine = Machine(tmp_path / "without")
        machine.insert(**plain_task(tmp_path, **said))
        ran = await machine.agent("dispatch")
        assert (ran.code, heard) == (Exit.UNREACHABLE, []), ran.said
        assert "certificate verify failed" in ran.said

        machine = Machine(tmp_path / "with")
        machine.insert(**plain_task(tmp_path, ca__pem=read_authorities(str(tmp_path / "tls.pem")), **said))
        ran = await machine.agent("dispatch")
        assert (ran.code, machine.calls) == (0, STARTED), ran.said
        assert heard == ["provision-dispatcher.service"]

        tool = machine.root / "opt/sum/sum"
        tool.parent.mkdir(parents=True)
        tool.write_text('#!/bin/sh\ncp "$4" "$0.given"\n')
        tool.chmod(0o755)
        env = {"USER_FIRMWARE_SHA256": digest(b"BIOS")}
        machine.places.write("recipe.json", {"firmware_url": f"https://{address}/bios.bin", "env": env})
        ran = await machine.agent("step", "firmware")
        assert (ran.code, tool.with_name("sum.given").read_bytes()) == (0, b"BIOS"), ran.said


async def test_unreadable_authorities_are_an_error_of_the_medium(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.insert(**plain_task(tmp_path, ca__pem=b"no certificate"))
    ran = await machine.agent("dispatch")
    assert (ran.code, machine.calls) == (Exit.MEDIUM_UNREADABLE, []), ran.said
    assert "ca.pem holds no certificate" in ran.said
    assert not machine.places.has("ca.pem"), "the report comes after it, and needs none"
