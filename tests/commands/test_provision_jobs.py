"""Jobs of `chargehand provision` against a real server, a simulated BMC and a machine that runs its medium."""

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import on_sqlite, until
from tests.commands.provisioning import ended, provision, running
from tests.commands.terminal import terminal
from tests.e2e.server import Server
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER
from tests.provisioning.guest import Guest, Script
from tests.provisioning.lab import MAINTENANCE, QUICK, RECIPE, SERIAL, lab

UNHURRIED = {"provisioning.silence_seconds": 100, "provisioning.install_seconds": 100}  # enough for a process to start
pytestmark = [pytest.mark.xdist_group("machines"), pytest.mark.timeout(120)]

SECRET_PARTS = (PASSWORD, "swordfish-in-user-data")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(RECIPE))
    return str(path)


# recipes ----------------------------------------------------------------------------------------------------------------


async def test_a_recipe_is_checked_without_a_server(tmp_path: Path, recipe: str) -> None:
    nowhere = "http://127.0.0.1:9"
    assert "is valid: install-linux.target" in (await provision(nowhere, "recipe", "validate", recipe)).good().out
    broken = json.dumps({**RECIPE, "wipe": False, "hostnam": "n1"}).encode()
    told = await provision(nowhere, "recipe", "validate", "-", stdin=broken)
    assert told.good(1).out.startswith("standard input is not valid, 2 things are wrong:\n")
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
    schema = (await provision(nowhere, "recipe", "schema", "--json")).good().json
    assert schema["$id"].endswith("/recipe/1.0/schema.json")


# jobs -------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_job_is_submitted_and_watched_to_its_end(store_url: str, tmp_path: Path, recipe: str) -> None:
    async with lab(store_url, tmp_path) as room:
        url = room.server.url
        await room.register()
        told = await provision(url, "submit", SERIAL, recipe, "--watch", "--idempotency-key", "the first")
        [end] = told.good().out.splitlines()
        assert end.startswith(f"{SERIAL} is complete, succeeded after ")
        lines = told.err.splitlines()
        job_id = lines[0].removeprefix("job ")
        assert any("redfish.reset" in line and "reset: " in line for line in lines)
        assert any("partition.service is done" in line for line in lines)

        again = await provision(url, "submit", SERIAL, recipe, "--idempotency-key", "the first")
        assert again.good().out == f"{job_id}\n"
        *events, last = (await provision(url, "watch", job_id, "--json")).good().objects
        assert (last["type"], last["job_id"], last["outcome"]) == ("end", job_id, "succeeded")
        assert {event["type"] for event in events} == {"event"}
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        assert events == (await provision(url, "events", job_id, "--json")).good().objects
        assert events[-1]["status"] == "complete"
        assert len((await provision(url, "events", job_id, "--follow")).good().out.splitlines()) == len(events)

        shown = (await provision(url, "show", job_id.lower())).good().out
        assert re.search(r"^status +complete, succeeded$", shown, re.MULTILINE)
        assert re.search(r"^  done +image-linux\.service +\d+\.\d s", shown, re.MULTILINE)
        assert job_id in (await provision(url, "list", "--status", "complete", "--server", SERIAL)).good().out
        assert (await provision(url, "list", "--status", "queued", "--json")).good().json == []
        assert all(secret not in told.out + told.err + shown for secret in SECRET_PARTS)


@on_sqlite
async def test_a_failed_job_shows_key_unit_exit_code_log_and_advice_and_is_retried(
    store_url: str, tmp_path: Path, recipe: str
) -> None:
    async with lab(store_url, tmp_path, script=Script(fails_at="partition.service")) as room:
        url = room.server.url
        await room.register()
        watched = await provision(url, "submit", SERIAL, recipe, "--watch")
        job_id = watched.good(1).err.splitlines()[0].removeprefix("job ")
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
        assert again.good().err.startswith(f"{job_id} is queued again.\n")
        assert "no such disk" not in again.out + again.err, "events of the start before are not shown again"
        assert re.search(rf"^{SERIAL} is complete, succeeded after [\d.]+ s \(2nd try\)$", again.out, re.MULTILINE)
        shown = (await provision(url, "show", job_id)).good()
        assert re.search(
            r"^created +\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ, this try [\d.]+ s \(2nd try\)$", shown.out, re.MULTILINE
        )
        refused = await provision(url, "retry", job_id)
        assert "only one that failed or was cancelled can be tried again" in refused.good(2).err


@on_sqlite
async def test_a_cancelled_job_ends_its_watch_with_exit_code_3(store_url: str, tmp_path: Path, recipe: str) -> None:
    async with lab(store_url, tmp_path, script=Script(stops_at="partition.service"), settings=UNHURRIED) as room:
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
    async with lab(store_url, tmp_path, script=Script(stops_at="partition.service"), settings=UNHURRIED) as room:
        await room.register()
        job_id = await room.submit()
        async with running(room.server.url, "watch", job_id) as watching:
            assert watching.stderr is not None
            await watching.stderr.readline()
            watching.send_signal(signal.SIGINT)
            told = await ended(watching)
            assert told.code == 130
            assert f"Job {job_id} continues." in told.err
            assert "Traceback" not in told.err
            assert (await room.job(job_id))["outcome"] is None


@on_sqlite
async def test_on_a_terminal_the_steps_are_redrawn(store_url: str, tmp_path: Path, recipe: str) -> None:
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


async def test_a_watch_goes_on_over_a_restart_of_the_server(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "maintenance.iso").write_bytes(MAINTENANCE)
    settings = {name.replace(".", "_"): value for name, value in (QUICK | UNHURRIED).items()}
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
    *events, last = [json.loads(first), *told.objects]
    assert (last["type"], last["outcome"]) == ("end", "succeeded")
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
