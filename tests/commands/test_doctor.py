"""`chargehand doctor` finds what is wrong and says what to do."""

import asyncio
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from aiohttp import web
from cryptography import x509

from chargehand.commands.doctor.examination import examine
from chargehand.commands.doctor.finding import Finding
from chargehand.commands.doctor.network import chore_finding
from chargehand.commands.doctor.privacy import files
from chargehand.commands.doctor.settings import EXPIRES_DAYS, certificate, egress
from chargehand.config import load_config
from chargehand.engine.chores import ChoreReport, ChoreState
from chargehand.engine.ids import UlidMaker
from chargehand.http.credentials import hash_token
from chargehand.store import open_store
from tests.api.serving import on_sqlite, serving, talking, until
from tests.commands.running import invoked
from tests.http.test_tls import Certificates, Pair
from tests.inference.conformance import OllamaTarget
from tests.inference.stories import MODELS
from tests.store.given import a_job
from tests.webhooks.receiver import answer, receiving

QUIET = {"inference.embedded": "off", "server.listen": "127.0.0.1:0"}
A_TOKEN = {"auth.tokens": [{"name": "me", "hash": hash_token("ch_me")}]}


async def examined(folder: Path, token: str = "", **settings: Any) -> dict[str, Finding]:
    """Return the findings by the name of the check; the worst if a check has several."""
    given = {
        **QUIET,
        "server.data_dir": str(folder),
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    found = await examine(None, given, "", token)
    order = ("ok", "warning", "failed")
    return {each.check: each for each in sorted(found, key=lambda each: order.index(each.state))}


def is_found(finding: Finding, state: str, text: str) -> None:
    assert (finding.state, text in finding.text) == (state, True), finding
    assert bool(finding.advice) == (state != "ok"), "what is not well comes with what to do"


# the store and the disk -------------------------------------------------------------------------------------------------


async def test_before_the_first_start_nothing_is_wrong_and_nothing_is_made(tmp_path: Path) -> None:
    found = await examined(tmp_path / "data")
    assert {each.state for each in found.values()} <= {"ok", "warning"}
    is_found(found["store"], "ok", "will be created at the first start")
    is_found(found["disk"], "ok", "GB free at")
    is_found(found["targets"], "warning", "there are no targets")
    is_found(found["signatures"], "warning", "webhooks.secret")
    assert not (tmp_path / "data").exists()


async def test_schemas_of_other_versions_and_clocks_that_were_set_back_are_found(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/chargehand.db")
    tomorrow = UlidMaker(lambda: round(time.time() + 86400) * 1000)()
    await store.write(a_job(id=tomorrow))
    await store.close()
    is_found((await examined(tmp_path))["schema"], "ok", "current")
    is_found((await examined(tmp_path))["clock"], "warning", "in the future")
    with apsw.Connection(str(tmp_path / "chargehand.db")) as db:
        db.execute("INSERT INTO schema_migrations (version, name, applied_at) VALUES (999, 'from the future', 0)")
    is_found((await examined(tmp_path))["schema"], "failed", "version 999; this Chargehand knows up to")
    with apsw.Connection(str(tmp_path / "chargehand.db")) as db:
        db.execute("UPDATE schema_migrations SET oldest = 9 WHERE version = 999")
    is_found((await examined(tmp_path))["schema"], "ok", "and can use it")
    with apsw.Connection(str(tmp_path / "chargehand.db")) as db:
        db.execute("DELETE FROM schema_migrations WHERE version > 3")
    is_found((await examined(tmp_path))["schema"], "warning", "version 3 of")


async def test_another_user_is_advised_to_run_doctor_as_the_user_that_serves(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store = await open_store(f"sqlite:///{folder}/chargehand.db")
    await store.close()
    with somebody_else(folder):
        found = await examined(folder)
    is_found(found["store"], "failed", "Permission denied")
    assert found["store"].advice == "run the command as the user that runs the server"
    is_found(found["disk"], "ok", "GB free at")


@contextmanager
def somebody_else(folder: Path) -> Iterator[None]:
    """Run as a user who may not read this folder."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody").pw_uid
        os.setresuid(nobody, nobody, 0)
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)
        return
    folder.chmod(0)
    try:
        yield
    finally:
        folder.chmod(0o700)


async def test_the_url_of_an_absent_database_is_shown_without_its_password(tmp_path: Path) -> None:
    found = await examined(tmp_path, store__url="postgresql://a:hush@127.0.0.1:9/x")
    is_found(found["store"], "failed", "PostgreSQL")
    assert "hush" not in str(found)


# the server and its targets ---------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_running_server_is_checked(store_url: str, tmp_path: Path) -> None:
    gives_up = {"webhooks.max_attempts": 1}
    async with serving(store_url, gives_up) as server, talking(server) as api, receiving() as receiver:
        listen = server.url.removeprefix("http://")
        is_found((await examined(tmp_path, server__listen=listen))["server"], "ok", "is ready, version")
        is_found((await examined(tmp_path, server__listen=listen))["chores"], "ok", "run in time")
        receiver.otherwise = answer(500)
        await api.submit(webhook={"url": receiver.url()})
        await api.deliveries("state=dead")
        is_found((await examined(tmp_path, server__listen=listen))["deliveries"], "warning", "1 delivery given up")
        receiver.otherwise = answer(410)
        await api.submit(webhook={"url": receiver.url()})
        await api.deliveries("state=dead", 2)
        found = await examined(tmp_path, server__listen=listen)
        is_found(found["deliveries"], "warning", "is disabled")
        told = (await invoked(server.url, "doctor", "--data", str(tmp_path), "--json")).good().json
        assert told["ok"]
        assert {
            "check": "server",
            "state": "ok",
            "text": f"{server.url} is ready, version 0.1.0",
            "advice": "",
        } in told["findings"]


@on_sqlite
async def test_chores_of_a_server_that_fail_are_named(store_url: str, tmp_path: Path) -> None:
    not_a_folder = tmp_path / "a file"
    not_a_folder.touch()
    async with serving(store_url, {"inference.artifacts_dir": str(not_a_folder)}) as server:
        listen = server.url.removeprefix("http://")

        async def failing() -> Finding | None:
            found = (await examined(tmp_path, server__listen=listen))["chores"]
            return found if found.state == "failed" else None

        is_found(await until(failing), "failed", "orphaned files: failed 1 time in a row: files: ")
        told = (await invoked(server.url, "doctor", "--data", str(tmp_path), "--json")).good(1).json
        [said] = [each for each in told["findings"] if each["check"] == "chores"]
        assert "Not a directory" in said["text"]


def test_a_chore_that_is_late_is_a_warning() -> None:
    chore = ChoreReport("registry garbage", 3600, ChoreState.LATE, "", 0, None, None)
    found = chore_finding(msgspec.to_builtins(chore))
    assert found is not None
    is_found(found, "warning", "registry garbage: late, it should run every 3600 s")


@on_sqlite
async def test_the_server_is_recognised_by_its_certificate_whatever_name_it_has(store_url: str, tmp_path: Path) -> None:
    def of(pair: Pair) -> dict[str, str]:
        return {"server.tls_certificate": str(pair.certificate_path), "server.tls_key": str(pair.key_path)}

    (tmp_path / "other").mkdir()
    own, other = Certificates(tmp_path).server, Certificates(tmp_path / "other").server
    async with serving(store_url, of(own)) as server:
        listen = server.url.removeprefix("https://")
        is_found((await examined(tmp_path, server__listen=listen, **of(own)))["server"], "ok", "is ready, version")
        found = await examined(tmp_path, server__listen=listen, **of(other))
        is_found(found["server"], "failed", "it has another certificate than server.tls_certificate")
        named = (await invoked(server.url, "doctor", "--data", str(tmp_path))).good(1)
        assert "set SSL_CERT_FILE to the file of its authority, or correct --url" in named.out
    async with serving(store_url) as server:
        listen = server.url.removeprefix("http://")
        found = await examined(tmp_path, server__listen=listen, **of(own))
        assert "WRONG_VERSION_NUMBER" in found["server"].text or "wrong version" in found["server"].text


@on_sqlite
async def test_a_server_that_wants_a_token_says_so(store_url: str, tmp_path: Path) -> None:
    reader = {"name": "reader", "hash": hash_token("ch_reader"), "scopes": ["jobs:read"]}
    async with serving(store_url, {"auth.tokens": [reader]}) as server:
        listen = server.url.removeprefix("http://")
        is_found((await examined(tmp_path, server__listen=listen))["deliveries"], "warning", "requires a token")
        assert "deliveries" not in await examined(tmp_path, token="ch_reader", server__listen=listen)


async def test_a_port_in_use_is_found(tmp_path: Path) -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    other_program = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    listen = f"127.0.0.1:{other_program.sockets[0].getsockname()[1]}"
    async with other_program:
        is_found((await examined(tmp_path, server__listen=listen))["server"], "failed", "Address already in use")
    is_found((await examined(tmp_path, server__listen=listen))["server"], "ok", "is free")
    async with OllamaTarget(MODELS) as other:
        found = await examined(tmp_path, server__listen=other.url.removeprefix("http://"))
        is_found(found["server"], "failed", "another program answers at")


async def test_listening_beyond_loopback_without_a_token_is_a_failure(tmp_path: Path) -> None:
    found = await examined(tmp_path, server__listen="0.0.0.0:0")
    is_found(found["access"], "failed", "nobody has to authenticate")
    is_found(found["egress"], "ok", "private networks need webhooks.allow_networks")


async def test_targets_are_called_and_their_clocks_compared(tmp_path: Path) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"models": []}, headers={"Date": formatdate(time.time() + 3600, usegmt=True)})

    async def nested(request: web.Request) -> web.Response:
        return web.Response(text="[" * 1_000_000)

    app = web.Application()
    app.router.add_get("/api/tags", models)
    app.router.add_get("/nested/api/tags", nested)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    empty = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with OllamaTarget(MODELS) as good:
            targets = [
                {"name": "good", "url": good.url},
                {"name": "empty", "url": empty},
                {"name": "away", "url": "http://127.0.0.1:9"},
                {"name": "asleep", "url": "http://127.0.0.1:9", "wake_command": ["true"]},
                {"name": "odd", "url": f"{empty}/nothing"},
                {"name": "nested", "url": f"{empty}/nested"},
            ]
            found = await examined(tmp_path, inference__targets=targets)
    finally:
        await runner.cleanup()
    is_found(found["target good"], "ok", f"is up, {len(MODELS)} models")
    is_found(found["target empty"], "warning", "has no models")
    is_found(found["target away"], "warning", "is away: ")
    is_found(found["target asleep"], "ok", "it is woken when work waits for it")
    is_found(found["target odd"], "failed", "not as Ollama does")
    is_found(found["target nested"], "failed", "not as Ollama does")
    is_found(found["clock"], "warning", "s ahead of this machine's")


@pytest.mark.parametrize("mode", [0o640, 0o604])
async def test_files_that_others_can_read_are_named(tmp_path: Path, mode: int) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/chargehand.db")
    await store.close()
    artifact = tmp_path / "files" / "ab" / "artifact"
    artifact.parent.mkdir(parents=True)
    artifact.touch(0o600)
    is_found((await examined(tmp_path))["files"], "ok", f"kept in {tmp_path}")
    (tmp_path / "chargehand.db").chmod(mode)
    is_found((await examined(tmp_path))["files"], "warning", f"can read {tmp_path}/chargehand.db")
    artifact.chmod(mode)
    is_found((await examined(tmp_path))["files"], "warning", str(artifact))


async def test_secrets_in_files_that_others_can_read_are_named(tmp_path: Path) -> None:
    file, secret, harmless = tmp_path / "chargehand.toml", tmp_path / "jwt-secret", tmp_path / "harmless.toml"
    file.write_text('[webhooks]\nsecret = "whsec_Y3Jhc2ggdGVzdHMgb2YgY2hhcmdlaGFuZA=="\n')
    harmless.write_text('[server]\nlisten = "127.0.0.1:0"\n')
    secret.write_text("a shared secret of more than thirty-two bytes")
    for path in (file, harmless, secret):
        path.chmod(0o644)
    environ = {"CHARGEHAND_AUTH_JWT_SECRET_FILE": str(secret)}

    def found(path: Path) -> list[Finding]:
        given = files(load_config(path, environ, {"server.data_dir": str(tmp_path)}), path, environ)
        return [each for each in given if each.check == "secrets"]

    [both] = found(file)
    is_found(both, "warning", f"can read {file}, {secret}, and there are secrets in it")
    secret.chmod(0o600)
    assert found(harmless) == []
    file.chmod(0o600)
    assert found(file) == []


# the parts --------------------------------------------------------------------------------------------------------------


async def test_the_maintenance_image_is_checked(tmp_path: Path) -> None:
    def found(name: str, content: bytes) -> Any:
        (tmp_path / name).write_bytes(content)
        return examined(tmp_path, provisioning__maintenance_iso=str(tmp_path / name))

    is_found((await found("text.iso", b"no image"))["maintenance image"], "failed", "is no ISO image")
    good = await found("good.iso", bytes(32_769) + b"CD001" + bytes(3000))
    is_found(good["maintenance image"], "ok", "good.iso")
    is_found(good["machines"], "warning", "cannot reach 127.0.0.1:0")
    gone = await examined(tmp_path, provisioning__maintenance_iso=str(tmp_path / "gone.iso"))
    is_found(gone["maintenance image"], "failed", "No such file")


def test_a_certificate_that_expires_soon_is_a_warning(tmp_path: Path) -> None:
    made = Certificates(tmp_path).server
    given = {"server.tls_certificate": str(made.certificate_path), "server.tls_key": str(made.key_path)}
    config = load_config(environ={}, overrides=given)
    end = x509.load_pem_x509_certificate(made.certificate_path.read_bytes()).not_valid_after_utc
    moments = [end - timedelta(days=days) for days in (EXPIRES_DAYS + 1, EXPIRES_DAYS - 1, -1)]
    assert [found.state for at in moments if (found := certificate(config, at))] == ["ok", "warning", "failed"]
    assert certificate(load_config(environ={})) is None


@pytest.mark.parametrize(
    ("settings", "state", "text"),
    [
        ({}, "ok", "without auth, webhooks may go to this machine, private networks and the Internet; never to"),
        (A_TOKEN, "ok", "go to the Internet; this machine and private networks need webhooks.allow_networks; never"),
        (
            {**A_TOKEN, "webhooks.allow_networks": ["10.1.0.0/16"], "webhooks.deny_networks": ["8.8.8.8/32"]},
            "ok",
            "Internet and to 10.1.0.0/16 (webhooks.allow_networks), but not to 8.8.8.8/32 (webhooks.deny_networks); never",
        ),
        ({**A_TOKEN, "webhooks.allow_networks": ["127.0.0.0/8"]}, "warning", "and to 127.0.0.0/8"),
        ({**A_TOKEN, "webhooks.allow_networks": ["::/0"]}, "warning", "and to ::/0"),
    ],
)
def test_the_report_says_what_webhooks_may_reach(settings: dict[str, Any], state: str, text: str) -> None:
    found = {each.check: each for each in egress(load_config(environ={}, overrides=settings), {})}
    is_found(found["egress"], state, text)


def test_a_proxy_that_would_not_be_used_is_named() -> None:
    config = load_config(environ={}, overrides={"webhooks.secret": "whsec_Y3Jhc2ggdGVzdHMgb2YgY2hhcmdlaGFuZA=="})
    found = {each.check: each for each in egress(config, {"HTTPS_PROXY": "http://proxy:3128"})}
    is_found(found["proxy"], "warning", "HTTPS_PROXY")
    is_found(found["signatures"], "ok", "signed")


async def test_invalid_settings_end_the_checks(tmp_path: Path) -> None:
    file = tmp_path / "chargehand.toml"
    file.write_text("[server]\nlissten = '127.0.0.1:0'\n")
    told = (await invoked("", "doctor", "--config", str(file))).good(1)
    state, check, *text = told.out.splitlines()[0].split()
    assert (state, check) == ("failed", "config")
    assert "server.listen?" in " ".join(text)
    assert told.out.endswith("\n0 ok, 0 warnings, 1 failed\n")


@pytest.mark.parametrize("state", ["on", "auto"])
async def test_a_model_that_is_installed_is_named(tmp_path: Path, state: str) -> None:
    found = await examined(tmp_path, inference__embedded=state)
    assert "embedded model" in found
    assert "targets" not in found
