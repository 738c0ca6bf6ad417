"""Refusals and texts of `chargehand provision`."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chargehand.cli import app
from chargehand.client.types.provisioning import FailureReport, Job, ProvisioningProgress
from chargehand.commands.provision.job_text import job_lines, ordinal
from chargehand.commands.text import clock, day
from chargehand.http.credentials import hash_token
from tests.api.serving import on_sqlite
from tests.commands.provisioning import provision
from tests.commands.running import chargehand
from tests.e2e.server import Server
from tests.http.test_tls import Certificates
from tests.provisioning.lab import RECIPE, SERIAL, lab

pytestmark = [pytest.mark.xdist_group("machines"), pytest.mark.timeout(120)]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(RECIPE))
    return str(path)


@on_sqlite
async def test_refusals_are_short_and_say_what_to_do(store_url: str, tmp_path: Path, recipe: str) -> None:
    reader = {"name": "reader", "hash": hash_token("ch_reader"), "scopes": ["provision:read"]}
    async with lab(store_url, tmp_path, settings={"auth.tokens": [reader]}) as room:
        url = room.server.url
        nobody = await provision(url, "list")
        assert nobody.good(2).err.count("\n") == 1
        assert "CHARGEHAND_TOKEN" in nobody.err
        wrong = await provision(url, "list", environ={"CHARGEHAND_TOKEN": "ch_another"})
        assert "does not know this token" in wrong.good(2).err
        assert "[[auth.tokens]]" in wrong.err
        token = {"CHARGEHAND_TOKEN": "ch_reader"}
        assert "No jobs yet" in (await provision(url, "list", environ=token)).good().out
        told = await provision(url, "submit", SERIAL, recipe, environ=token)
        assert "provision:write" in told.good(2).err
        assert "there is no" in (await provision(url, "watch", "0" * 26, environ=token)).good(2).err
        assert "must be one of queued" in (await provision(url, "list", "--status", "gone", environ=token)).good(2).err
        (tmp_path / "no.json").write_text("{")
        assert "is not JSON" in (await provision(url, "submit", SERIAL, str(tmp_path / "no.json"))).good(2).err
        gone = await provision(url, "list", "--server", "NOPE", environ=token)
        assert (
            gone.good(2).err
            == "chargehand: there is no server NOPE; register it: chargehand provision server add NOPE --bmc URL\n"
        )
        assert "26 characters" in (await provision(url, "show", "../servers", environ=token)).good(2).err
        as_json = await provision(url, "list", "--server", "NOPE", "--json", environ=token)
        refusal = json.loads(as_json.good(2).err)
        assert (as_json.out, set(refusal), refusal["error"]) == ("", {"error", "message", "details"}, "not_found")
        for each in (nobody, told, wrong):
            assert "ch_reader" not in each.out + each.err


@on_sqlite
async def test_a_job_for_an_unknown_server_says_how_to_register_it(store_url: str, tmp_path: Path, recipe: str) -> None:
    async with lab(store_url, tmp_path) as room:
        told = await provision(room.server.url, "submit", "NOPE", recipe)
        assert told.good(2).err.endswith("register it: chargehand provision server add NOPE --bmc URL\n")


@on_sqlite
async def test_an_untrusted_certificate_and_a_wrong_scheme_are_refused_with_advice(
    store_url: str, tmp_path: Path
) -> None:
    own = Certificates(tmp_path)
    pair = {"server.tls_certificate": str(own.server.certificate_path), "server.tls_key": str(own.server.key_path)}
    async with lab(store_url, tmp_path, settings=pair) as room:
        url = room.server.url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        told = await provision(url, "list")
        assert "its certificate is not trusted" in told.good(2).err
        assert "set SSL_CERT_FILE to the file of its authority" in told.err
        trusting = {"SSL_CERT_FILE": str(own.authority.certificate_path)}
        # A process is needed: it reads the trusted authorities when it starts.
        assert "No jobs yet" in (await chargehand(url, "provision", "list", environ=trusting)).good().out
        assert "if it speaks HTTPS" in (await provision(url.replace("https", "http"), "list")).good(2).err
    async with lab(store_url, tmp_path) as room:
        assert (
            "if it speaks plain HTTP" in (await provision(room.server.url.replace("http", "https"), "list")).good(2).err
        )


@on_sqlite
async def test_a_recipe_that_the_server_refuses_is_explained_field_by_field(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        broken = json.dumps({**RECIPE, "wipe": False, "target_disk": "sda"}).encode()
        told = await provision(room.server.url, "submit", SERIAL, "-", stdin=broken)
        lines = told.good(2).err.splitlines()
        assert lines[0] == "chargehand: standard input is not valid, 2 things are wrong:"
        assert [line.split(":")[0] for line in lines[1:]] == ["  /target_disk", "  /wipe"]
        told = await provision(room.server.url, "submit", SERIAL, "-", "--json", stdin=broken)
        refusal = json.loads(told.good(2).err)
        assert refusal["error"] == "validation.schema"
        assert {each["path"] for each in refusal["details"]} == {"/target_disk", "/wipe"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("a/b",), "1 to 64 letters, digits and . _ : + -"),
        (("--bmc", "http://root:calvin@10.0.0.5"), "give the name with --user"),
        (("--bmc", "10.0.0.5"), "such as https://10.0.0.5"),
        (("--tls", "sha256:12"), "verify, insecure, or sha256: and the 64 hex digits"),
        (("--uuid", "1234"), "groups of 8, 4, 4, 4 and 12"),
        (("--label", "rack"), "NAME=VALUE"),
        (("--label", "rack=" + "x" * 201), "at most 200 characters"),
        (("--keep-password", "--password-stdin"), "give only one of them"),
    ],
)
def test_invalid_arguments_are_refused_before_a_server_is_called(words: tuple[str, ...], why: str) -> None:
    given = words if words[0] == "a/b" else (SERIAL, *words)
    told = CliRunner().invoke(app, ["provision", "server", "add", *given, "--url", "http://127.0.0.1:9"])
    assert told.exit_code == 2
    assert why in told.stderr
    assert told.stderr.count("\n") == 1
    assert "calvin" not in told.output


def test_a_misspelt_target_does_not_hide_other_mistakes() -> None:
    recipe = json.dumps({"task_target": "install-linus.target", "target_disk": "sda", "wipe": True})
    told = CliRunner().invoke(app, ["provision", "recipe", "validate", "-"], input=recipe)
    assert told.exit_code == 1
    lines = told.stdout.splitlines()
    assert lines[0] == "standard input is not valid, 4 things are wrong:"
    assert lines[1].startswith("  /task_target: must be one of install-linux.target, ")
    assert lines[1].endswith("; did you mean install-linux.target?")
    assert lines[2].startswith("  /target_disk: 'sda' is not allowed: ")
    assert lines[2].endswith(", such as /dev/sda")
    assert lines[3].startswith("  /oci_url: is missing, and install-linux.target needs it")


# texts ------------------------------------------------------------------------------------------------------------------


def test_a_long_log_says_how_much_of_it_is_shown_and_a_warning_what_to_do() -> None:
    log = "\n".join(f"line {number}" for number in range(30))
    job = Job(
        job_id="0" * 26,
        status="complete",
        outcome="failed",
        failure=FailureReport(failed_step="workflow.partition"),
        progress=ProvisioningProgress(log_tail=log),
        warnings=("cleanup.unmount: eject: the BMC answered 500", "of which nothing is known"),
    )
    lines = job_lines(job)
    assert "the machine's log ended with (the last 15 of 30 lines; --json has all)" in lines
    assert [line for line in lines if line.startswith("  | ")] == [f"  | line {number}" for number in range(15, 30)]
    at = lines.index("warning: cleanup.unmount: eject: the BMC answered 500")
    assert lines[at + 1].startswith("  what to do: eject it in the BMC")
    assert lines[at + 2] == "warning: of which nothing is known"


def test_times_are_shown_with_their_utc_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-05:30")
    time.tzset()
    try:
        assert day("2026-05-23T12:00:00.250Z") == "2026-05-23 17:30:00+05:30"
        assert clock("2026-05-23T12:00:00Z") == "17:30:00+05:30"
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
        assert clock("2026-05-23T12:00:00Z") == "12:00:00Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_ordinal_numbers_have_their_english_endings() -> None:
    assert [ordinal(number) for number in (2, 3, 4, 11, 12, 21, 112)] == [
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "21st",
        "112th",
    ]


async def test_a_server_says_at_its_start_which_image_machines_will_boot_or_that_it_is_missing(tmp_path: Path) -> None:
    settings = {
        "provisioning_maintenance_iso": "m.iso",
        "provisioning_public_url": "http://10.0.0.1:8484",
        "log_format": "text",
    }
    store = f"sqlite:///{tmp_path}/chargehand.db"
    async with Server(store, tmp_path, "without", **settings) as server:
        assert (
            "machines none can be provisioned: provisioning.maintenance_iso is missing: there is no file m.iso"
            in server.log
        )
    (tmp_path / "m.iso").touch()
    async with Server(store, tmp_path, "with", **settings) as server:
        assert "machines boot m.iso from http://10.0.0.1:8484\n" in server.log


def test_the_help_of_tokens_names_the_scopes_of_provisioning() -> None:
    shown = CliRunner().invoke(app, ["token", "--help"], env={"COLUMNS": "300"}).output
    for scope in ("provision:read", "provision:write", "provision:servers", "registry:pull", "registry:push"):
        assert scope in shown
