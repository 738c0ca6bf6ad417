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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chargehand.http.credentials import hash_token
from tests.api.serving import on_sqlite, until
from tests.e2e.server import Server
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
        assert f"{SERIAL} is registered" in kept.good().out
        assert (await provision(url, "server", "probe", SERIAL, "--json")).good().json["ok"]

        refused = await provision(url, "server", "remove", SERIAL)
        assert (refused.code, refused.err) == (2, "chargehand: nobody is there to be asked; say --yes\n")
        assert (await provision(url, "server", "remove", SERIAL, "--yes")).good().out == f"{SERIAL} is forgotten.\n"
        gone = await provision(url, "server", "show", SERIAL)
        assert gone.code == 2
        assert "there is no server 'SN-1'" in gone.err
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
        assert "the BMC could not be asked" in told.out
        assert "another than it has" not in told.out + told.err


async def test_a_password_comes_from_stdin_or_the_environment_and_never_from_an_argument(tmp_path: Path) -> None:
    """Nobody is there to talk to: what is refused is refused before."""
    url = "http://127.0.0.1:9"
    words = ("server", "add", SERIAL, "--bmc", "https://10.0.0.5", "--user", USER)
    assert "CHARGEHAND_BMC_PASSWORD" in (await provision(url, *words)).good(2).err
    assert "No such option" in (await provision(url, *words, "--password", PASSWORD)).good(2).err
    assert "stdin has no line" in (await provision(url, *words, "--password-stdin")).good(2).err
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
        assert "Password of operator at the BMC" in shown
        assert "two drives" in shown
        assert PASSWORD not in shown


# recipes ----------------------------------------------------------------------------------------------------------------


async def test_a_recipe_is_checked_without_a_server(tmp_path: Path, recipe: str) -> None:
    nowhere = "http://127.0.0.1:9"
    assert "is valid: install-linux.target" in (await provision(nowhere, "recipe", "validate", recipe)).good().out
    broken = json.dumps({**RECIPE, "wipe": False, "hostnam": "n1"}).encode()
    told = await provision(nowhere, "recipe", "validate", "-", stdin=broken)
    assert told.good(1).out.startswith("- is not valid, 2 things are wrong:\n")
    assert "did you mean hostname?" in told.out
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
        assert f"{SERIAL} is complete, succeeded" in again.out
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
            assert "nothing to cancel" in (await provision(url, "cancel", made["job_id"])).good(2).err


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
        token = {"CHARGEHAND_TOKEN": "ch_reader"}
        assert "There are none yet" in (await provision(url, "list", environ=token)).good().out
        told = await provision(url, "submit", SERIAL, recipe, environ=token)
        assert "provision:write" in told.good(2).err
        assert "there is no" in (await provision(url, "watch", "0" * 26, environ=token)).good(2).err
        assert "say one of queued" in (await provision(url, "list", "--status", "gone", environ=token)).good(2).err
        (tmp_path / "no.json").write_text("{")
        assert "is not JSON" in (await provision(url, "submit", SERIAL, str(tmp_path / "no.json"))).good(2).err
        for each in (nobody, told):
            assert "ch_reader" not in each.out + each.err


@on_sqlite
async def test_a_recipe_that_the_server_refuses_is_explained_field_by_field(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        broken = json.dumps({**RECIPE, "wipe": False, "target_disk": "sda"}).encode()
        told = await provision(room.server.url, "submit", SERIAL, "-", stdin=broken)
        assert "/recipe/wipe: " in told.good(2).err
        assert "/recipe/target_disk: " in told.err
