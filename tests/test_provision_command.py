"""`chargehand provision` against a real server, a BMC on a socket and a machine that does what its medium says."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import termios
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chargehand.client.machines import Failure, Job, Progress
from chargehand.http.credentials import hash_token
from chargehand.provision_command.texts import clock, day, job_lines, ordinal
from tests.api.serving import on_sqlite, until
from tests.e2e.server import Server
from tests.http.test_tls import Certificates
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import CD_AND_USB, ONE_CD, PASSWORD, USER, Habits
from tests.provisioning.commanding import Told, ended, provision, running
from tests.provisioning.guest import Guest, Script
from tests.provisioning.lab import MAINTENANCE, QUICK, RECIPE, SERIAL, Lab, lab

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(120)]

SECRET_PARTS = (PASSWORD, "swordfish-in-user-data")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(RECIPE))
    return str(path)


async def add(room: Lab, *words: str) -> Told:
    return await provision(
        room.server.url, "server", "add", SERIAL, "--bmc", room.bmc.url, "--user", USER, "--password-stdin", *words,
        stdin=f"{PASSWORD}\n".encode(),
    )  # fmt: skip


# servers ----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_server_is_added_shown_listed_probed_and_removed(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        url = room.server.url
        empty = await provision(url, "server", "list")
        assert "server add SERIAL" in empty.good().out

        added = await add(room, "--label", "rack=12", "--probe")
        assert f"{SERIAL} is registered" in added.good().out
        assert "two drives: the maintenance image goes into Cd1, the task medium into Cd2" in added.out
        assert re.search(r"^machine +Contoso Model 1$", added.out, re.MULTILINE)
        assert "the machine is off: a job switches it on" in added.out

        [listed] = (await provision(url, "server", "list", "--json")).good().json
        assert (listed["server_serial"], listed["labels"], listed["has_password"]) == (SERIAL, {"rack": "12"}, True)
        shown = (await provision(url, "server", "show", SERIAL)).good().out
        assert re.search(r"^user +operator, with a password$", shown, re.MULTILINE)
        assert re.search(r"^labels +rack=12$", shown, re.MULTILINE)

        kept = await provision(url, "server", "add", SERIAL, "--bmc", room.bmc.url, "--user", USER, "--keep-password")
        assert kept.good().out == f"{SERIAL} is as it was\n"
        assert (await provision(url, "server", "probe", SERIAL, "--json")).good().json["ok"]

        refused = await provision(url, "server", "remove", SERIAL)
        assert (refused.code, refused.err) == (2, "chargehand: nobody is there to be asked; say --yes\n")
        assert (await provision(url, "server", "remove", SERIAL, "--yes")).good().out == f"{SERIAL} is forgotten.\n"
        gone = await provision(url, "server", "show", SERIAL)
        assert gone.code == 2
        assert (
            gone.err
            == f"chargehand: there is no server {SERIAL}; register it: chargehand provision server add {SERIAL} --bmc URL\n"
        )
        for each in (added, kept, refused, gone):
            assert PASSWORD not in each.out + each.err


@on_sqlite
@pytest.mark.parametrize(
    ("habits", "meaning"),
    [
        (Habits(slots=ONE_CD), "one CD drive: both media will be in one image, in Cd1"),
        (Habits(slots=CD_AND_USB), "the task medium into RemovableDisk, a USB drive"),
    ],
    ids=["one-cd", "cd-and-usb"],
)
async def test_a_probe_says_what_the_drives_of_a_bmc_mean_for_a_job(
    store_url: str, tmp_path: Path, habits: Habits, meaning: str
) -> None:
    async with lab(store_url, tmp_path, habits) as room:
        await room.register()
        assert meaning in (await provision(room.server.url, "server", "probe", SERIAL)).good().out


@on_sqlite
async def test_a_bmc_that_does_not_let_us_in_is_told_with_exit_code_1(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register(bmc_password="another than it has")
        told = await provision(room.server.url, "server", "probe", SERIAL)
        assert told.code == 1
        assert ", refused: wrong user or password: " in told.out
        assert f"to change them: chargehand provision server add {SERIAL} --user NAME" in told.out
        assert "another than it has" not in told.out + told.err
        assert re.search(
            rf"^{SERIAL} .* refused: wrong user or password ",
            (await provision(room.server.url, "server", "list")).out,
            re.MULTILINE,
        )

        await room.register(bmc_address="http://127.0.0.1:9")
        told = await provision(room.server.url, "server", "probe", SERIAL)
        assert ", no connection: " in told.good(1).out
        assert re.search(
            rf"^{SERIAL} .* no connection ", (await provision(room.server.url, "server", "list")).out, re.MULTILINE
        )


@on_sqlite
@pytest.mark.parametrize(
    ("habits", "advice"),
    [
        (Habits(serial=None), "add --uuid 11111111-2222-3333-4444-555555555555, which the BMC shows"),
        (Habits(serial="SN-2"), "is this the right BMC?"),
        (
            Habits(serial=None, uuid=None),
            f"if it is the right one: chargehand provision server add {SERIAL} --unidentified",
        ),
    ],
    ids=["no-serial", "other-serial", "neither"],
)
async def test_a_bmc_of_another_machine_is_told_with_what_to_do(
    store_url: str, tmp_path: Path, habits: Habits, advice: str
) -> None:
    async with lab(store_url, tmp_path, habits) as room:
        await room.register()
        told = await provision(room.server.url, "server", "probe", SERIAL)
        assert ", other machine: " in told.good(1).out
        assert advice in told.out


@on_sqlite
async def test_a_server_is_changed_and_what_is_not_said_stays(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        url = room.server.url

        async def change(*words: str, code: int = 0) -> str:
            told = (await provision(url, "server", "add", SERIAL, *words)).good(code)
            return told.out + told.err

        assert f"{SERIAL} is not registered yet" in await change("--keep-password", "--bmc", room.bmc.url, code=2)
        assert "--bmc URL" in await change("--label", "rack=12", code=2)
        (await add(room, "--label", "rack=12", "--label", "row=3", "--vendor", "dell")).good()
        before = (await provision(url, "server", "show", SERIAL, "--json")).good().json
        fingerprint = ":".join(["AB"] * 32)
        told = await change(
            "--tls", f"sha256:{fingerprint}", "--label", "rack=", "--label", "shelf=1", "--unidentified"
        )
        assert (
            told == f"{SERIAL} is changed: tls sha256:{'ab' * 32}, unidentified yes, label rack none, label shelf 1\n"
        )
        after = (await provision(url, "server", "show", SERIAL, "--json")).good().json
        changed = {"tls", "labels", "unidentified", "updated_at"}
        assert {name: value for name, value in after.items() if name not in changed} == {
            name: value for name, value in before.items() if name not in changed
        }
        assert after["labels"] == {"row": "3", "shelf": "1"}
        told = await change("--vendor", "", "--identified", "--tls", "verify")
        assert told == f"{SERIAL} is changed: vendor none, tls verify, unidentified no\n"
        assert "the BMC's address changes: the password of operator is needed" in await change(
            "--bmc", "https://10.0.0.6", code=2
        )
        assert (await add(room)).good().out == f"{SERIAL} is changed: password\n"
        assert (await provision(url, "server", "probe", SERIAL, "--json")).good().json["ok"]


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
        (("--keep-password", "--password-stdin"), "say one of them"),
    ],
)
async def test_what_cannot_be_meant_is_refused_in_words_before_a_server_is_asked(
    words: tuple[str, ...], why: str
) -> None:
    given = words if words[0] == "a/b" else (SERIAL, *words)
    told = await provision("http://127.0.0.1:9", "server", "add", *given)
    assert why in told.good(2).err
    assert told.err.count("\n") == 1
    assert "calvin" not in told.err


async def test_a_password_comes_from_stdin_or_the_environment_and_never_from_an_argument(tmp_path: Path) -> None:
    """Nobody is there to talk to: what is refused is refused before."""
    url = "http://127.0.0.1:9"
    words = ("server", "add", SERIAL, "--bmc", "https://10.0.0.5", "--user", USER)
    assert "CHARGEHAND_BMC_PASSWORD" in (await provision(url, *words)).good(2).err
    assert "No such option" in (await provision(url, *words, "--password", PASSWORD)).good(2).err
    assert "standard input has no line" in (await provision(url, *words, "--password-stdin")).good(2).err
    told = await provision(url, *words, environ={"CHARGEHAND_BMC_PASSWORD": PASSWORD})
    [line] = told.good(2).err.splitlines()
    assert line.startswith(f"chargehand: {url} gives no answer")
    assert "chargehand serve" in line


@on_sqlite
async def test_a_person_is_asked_for_the_password_and_it_is_not_shown(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        words = ("server", "add", SERIAL, "--bmc", room.bmc.url, "--user", USER, "--probe")
        async with (
            terminal() as (pipes, seen, write),
            running(room.server.url, *words, preexec_fn=_own_the_terminal, **pipes) as adding,
        ):
            # Not before: what was typed while it was still to be shown is thrown away.
            await until(lambda: not termios.tcgetattr(pipes["stdin"])[3] & termios.ECHO, 60)
            write(f"{PASSWORD}\n".encode())
            told = await ended(adding)
        shown = b"".join(seen).decode()
        assert told.code == 0, shown
        assert "The password of operator at the BMC" in shown
        assert "two drives" in shown
        assert PASSWORD not in shown


async def test_ctrl_c_at_the_question_for_a_password_is_130_and_nothing_is_done() -> None:
    words = ("server", "add", SERIAL, "--bmc", "https://10.0.0.5", "--user", USER)
    async with (
        terminal() as (pipes, seen, write),
        running("http://127.0.0.1:9", *words, preexec_fn=_own_the_terminal, **pipes) as adding,
    ):
        await until(lambda: not termios.tcgetattr(pipes["stdin"])[3] & termios.ECHO, 60)
        write(b"\x03")
        told = await ended(adding)
    assert told.code == 130, seen
    assert "Nothing was done." in b"".join(seen).decode()


# recipes ----------------------------------------------------------------------------------------------------------------


async def test_a_recipe_is_checked_without_a_server(tmp_path: Path, recipe: str) -> None:
    nowhere = "http://127.0.0.1:9"
    assert "is valid: install-linux.target" in (await provision(nowhere, "recipe", "validate", recipe)).good().out
    broken = json.dumps({**RECIPE, "wipe": False, "hostnam": "n1"}).encode()
    told = await provision(nowhere, "recipe", "validate", "-", stdin=broken)
    assert told.good(1).out.startswith("standard input is not valid, 2 things are wrong:\n")
    assert "did you mean hostname?" in told.out
    misspelt = json.dumps({"task_target": "install-linus.target", "target_disk": "sda", "wipe": True}).encode()
    told = await provision(nowhere, "recipe", "validate", "-", stdin=misspelt)
    assert "/task_target: must be one of" in told.good(1).out
    assert "did you mean install-linux.target?" in told.out
    assert "/target_disk: 'sda' is not allowed: " in told.out
    assert ", such as /dev/sda\n" in told.out
    assert "/oci_url: is missing, and install-linux.target needs it" in told.out
    told = await provision(nowhere, "recipe", "validate", "-", stdin=broken)
    paths = {
        each["path"]
        for each in (await provision(nowhere, "recipe", "validate", "-", "--json", stdin=broken))
        .good(1)
        .json["details"]
    }
    assert paths == {"/wipe", "/hostnam"}
    assert SECRET_PARTS[1] not in told.out
    assert "cannot be read" in (await provision(nowhere, "recipe", "validate", "no.json")).good(2).err
    schema = (await provision(nowhere, "recipe", "schema")).good().json
    assert schema["$id"].endswith("/recipe/1.0/schema.json")


# jobs -------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_job_is_submitted_and_watched_to_its_end(store_url: str, tmp_path: Path, recipe: str) -> None:
    async with lab(store_url, tmp_path) as room:
        url = room.server.url
        await room.register()
        told = await provision(url, "submit", SERIAL, recipe, "--watch", "--idempotency-key", "the first")
        assert told.good().err == ""
        lines = told.out.splitlines()
        job_id = lines[0].removeprefix("job ")
        assert any("redfish.reset" in line and "reset: " in line for line in lines)
        assert any("partition.service is done" in line for line in lines)
        assert lines[-1].startswith(f"{SERIAL} is complete, succeeded after ")

        again = await provision(url, "submit", SERIAL, recipe, "--idempotency-key", "the first")
        assert again.good().out == f"{job_id}\n"
        events = (await provision(url, "watch", job_id, "--json")).good().objects
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        assert events == (await provision(url, "events", job_id, "--json")).good().objects
        assert events[-1]["status"] == "complete"
        assert len((await provision(url, "events", job_id, "--follow")).good().out.splitlines()) == len(events)

        shown = (await provision(url, "show", job_id)).good().out
        assert re.search(r"^status +complete, succeeded$", shown, re.MULTILINE)
        assert re.search(r"^  done +image-linux\.service +\d+\.\d s", shown, re.MULTILINE)
        assert job_id in (await provision(url, "list", "--status", "complete", "--server", SERIAL)).good().out
        assert (await provision(url, "list", "--status", "queued", "--json")).good().json == []
        assert all(secret not in told.out + shown for secret in SECRET_PARTS)


@on_sqlite
async def test_a_failed_job_says_key_unit_exit_code_log_and_what_to_do_and_is_tried_again(
    store_url: str, tmp_path: Path, recipe: str
) -> None:
    async with lab(store_url, tmp_path, script=Script(fails_at="partition.service")) as room:
        url = room.server.url
        await room.register()
        watched = await provision(url, "submit", SERIAL, recipe, "--watch")
        job_id = watched.good(1).out.splitlines()[0].removeprefix("job ")
        shown = (await provision(url, "show", job_id)).good()
        for told in (watched.out, shown.out):
            assert "failed at  workflow.partition: partitioning the disk failed\n" in told
            assert "unit       partition.service\n" in told
            assert "because    partition.service failed with exit code 3\n" in told
            assert "  | partition.service: no such disk\n" in told
            assert "what to do: check target_disk and partition_layout" in told
        assert re.search(r"^  failed +partition\.service", shown.out, re.MULTILINE)

        room.guest.script.fails_at = ""
        again = await provision(url, "retry", job_id, "--watch")
        assert again.good().out.startswith(f"{job_id} is queued again.\n")
        assert "no such disk" not in again.out, "events of the start before are not shown again"
        assert re.search(rf"^{SERIAL} is complete, succeeded after [\d.]+ s \(2nd try\)$", again.out, re.MULTILINE)
        shown = (await provision(url, "show", job_id)).good()
        assert re.search(
            r"^created +\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ, this try [\d.]+ s \(2nd try\)$", shown.out, re.MULTILINE
        )
        refused = await provision(url, "retry", job_id)
        assert "only one that failed or was cancelled can be tried again" in refused.good(2).err


@on_sqlite
async def test_a_cancelled_job_ends_its_watch_with_exit_code_3(store_url: str, tmp_path: Path, recipe: str) -> None:
    async with lab(store_url, tmp_path, script=Script(stops_at="partition.service")) as room:
        url = room.server.url
        await room.register()
        made = (await provision(url, "submit", SERIAL, recipe, "--json")).good().json
        async with running(url, "watch", made["job_id"]) as watching:
            await room.waits(made["job_id"])
            busy = await provision(url, "submit", SERIAL, recipe)
            assert f"job {made['job_id']} is active" in busy.good(2).err
            assert f"{made['job_id']} is cancelled" in (await provision(url, "cancel", made["job_id"])).good().out
            told = await ended(watching)
            assert told.code == 3
            assert f"{SERIAL} is complete, cancelled" in told.out
            assert (await provision(url, "cancel", made["job_id"])).good().out == f"{made['job_id']} is cancelled.\n"


@on_sqlite
async def test_ctrl_c_ends_the_watch_and_not_the_job(store_url: str, tmp_path: Path, recipe: str) -> None:
    async with lab(store_url, tmp_path, script=Script(stops_at="partition.service")) as room:
        await room.register()
        job_id = await room.submit()
        async with running(room.server.url, "watch", job_id) as watching:
            assert watching.stdout is not None
            await watching.stdout.readline()
            watching.send_signal(signal.SIGINT)
            told = await ended(watching)
            assert told.code == 130
            assert f"Job {job_id} goes on." in told.err
            assert "Traceback" not in told.err
            assert (await room.job(job_id))["outcome"] is None


@on_sqlite
async def test_on_a_terminal_the_steps_are_drawn_again_and_again(store_url: str, tmp_path: Path, recipe: str) -> None:
    async with lab(store_url, tmp_path, script=Script(step_seconds=0.4, fails_at="image-linux.service")) as room:
        await room.register()
        async with (
            terminal() as (pipes, seen, _),
            running(room.server.url, "submit", SERIAL, recipe, "--watch", **pipes) as watching,
        ):
            told = await ended(watching)
        drawn = b"".join(seen).decode()
        assert told.code == 1, drawn
        assert "\x1b[2K" in drawn, "lines are drawn over"
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
        assert re.search(r">> +partition\.service", plain), "a step at work"
        assert re.search(r"!! +image-linux\.service", plain), "the one that failed"
        assert "failed at  workflow.image-linux: writing the Linux image failed" in plain


@asynccontextmanager
async def terminal() -> AsyncIterator[tuple[dict[str, Any], list[bytes], Callable[[bytes], object]]]:
    """For a process: its pipes; what it shows; and how something is typed."""
    master, slave = pty.openpty()
    seen: list[bytes] = []
    loop = asyncio.get_running_loop()
    loop.add_reader(master, lambda: seen.append(_read(master)))
    pipes = {"environ": {"TERM": "xterm"}, "stdin": slave, "stdout": slave, "stderr": slave}
    try:
        yield pipes, seen, lambda typed: os.write(master, typed)
    finally:
        loop.remove_reader(master)
        os.close(slave)
        os.close(master)


def _own_the_terminal() -> None:
    """As a shell's children do: a password is asked for at /dev/tty."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(descriptor: int) -> bytes:
    with contextlib.suppress(OSError):
        return os.read(descriptor, 65536)
    return b""


async def test_a_watch_goes_on_over_a_restart_of_the_server(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "maintenance.iso").write_bytes(MAINTENANCE)
    settings = {name.replace(".", "_"): value for name, value in QUICK.items()}
    settings |= {"provisioning_maintenance_iso": tmp_path / "maintenance.iso", "provisioning_lease_seconds": 1}
    server = Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path, **settings)
    guest = Guest(Script(stops_at="partition.service"))
    async with FakeBmc(None, guest.boot) as bmc, server:
        words = ("--bmc", bmc.url, "--user", USER, "--password-stdin")
        (await provision(server.url, "server", "add", SERIAL, *words, stdin=f"{PASSWORD}\n".encode())).good()
        job_id = (await provision(server.url, "submit", SERIAL, recipe)).good().out.strip()
        async with running(server.url, "watch", job_id, "--json") as watching:
            assert watching.stdout is not None
            assert watching.stderr is not None
            first = await watching.stdout.readline()
            await until(lambda: guest.imaged, 20)
            await server.kill()
            away = (await asyncio.wait_for(watching.stderr.readline(), 20)).decode()
            assert away.startswith("the server is away (")
            await server.start()
            report = {"status": "success", "delivery_id": "one", "job_id": job_id}
            answer = await _report(server.url, report)
            assert answer == 200
            told = await ended(watching)
    assert told.code == 0, told
    assert told.err == "the server is back\n", "each once"
    events = [json.loads(first), *told.objects]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1)), "each once, in order"
    assert events[-1]["status"] == "complete"
    assert all(PASSWORD not in text for text in (told.out, server.log))


async def _report(url: str, status: dict[str, Any]) -> int:
    import aiohttp

    headers = {"X-Webhook-Secret": QUICK["provisioning.webhook_secret"]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/api/v1/status-webhook/{SERIAL}", json=status, headers=headers) as response,
    ):
        return response.status


# refusals ---------------------------------------------------------------------------------------------------------------


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
        assert "There are none yet" in (await provision(url, "list", environ=token)).good().out
        told = await provision(url, "submit", SERIAL, recipe, environ=token)
        assert "provision:write" in told.good(2).err
        assert "there is no" in (await provision(url, "watch", "0" * 26, environ=token)).good(2).err
        assert "say one of queued" in (await provision(url, "list", "--status", "gone", environ=token)).good(2).err
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
async def test_a_job_for_a_server_that_is_not_there_says_how_to_register_it(
    store_url: str, tmp_path: Path, recipe: str
) -> None:
    async with lab(store_url, tmp_path) as room:
        told = await provision(room.server.url, "submit", "NOPE", recipe)
        assert told.good(2).err.endswith("register it: chargehand provision server add NOPE --bmc URL\n")


@on_sqlite
async def test_a_certificate_that_is_not_trusted_and_the_wrong_scheme_are_told_with_what_to_do(
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
        assert "There are none yet" in (await provision(url, "list", environ=trusting)).good().out
        assert "does it speak HTTPS?" in (await provision(url.replace("https", "http"), "list")).good(2).err
    async with lab(store_url, tmp_path) as room:
        assert (
            "does it speak plain HTTP?"
            in (await provision(room.server.url.replace("http", "https"), "list")).good(2).err
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


# texts ------------------------------------------------------------------------------------------------------------------


def test_a_long_log_says_how_much_of_it_is_shown_and_a_warning_what_to_do() -> None:
    log = "\n".join(f"line {number}" for number in range(30))
    job = Job(
        job_id="0" * 26,
        status="complete",
        outcome="failed",
        failure=Failure(failed_step="workflow.partition"),
        progress=Progress(log_tail=log),
        warnings=("cleanup.unmount: eject: the BMC answered 500", "of which nothing is known"),
    )
    lines = job_lines(job)
    assert "the machine's log ended with (the last 15 of 30 lines; --json has all)" in lines
    assert [line for line in lines if line.startswith("  | ")] == [f"  | line {number}" for number in range(15, 30)]
    at = lines.index("warning: cleanup.unmount: eject: the BMC answered 500")
    assert lines[at + 1].startswith("  what to do: eject it in the BMC")
    assert lines[at + 2] == "warning: of which nothing is known"


def test_times_say_where_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_tries_are_counted_as_people_count() -> None:
    assert [ordinal(number) for number in (2, 3, 4, 11, 12, 21, 112)] == [
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "21st",
        "112th",
    ]
