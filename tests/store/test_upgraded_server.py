"""A server of this version on the database of an earlier release: its jobs of all doors continue, checked through HTTP."""

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from chargehand.engine.job import SECOND
from tests.api.serving import serving, until
from tests.inference.conformance import Model, OllamaTarget
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.lab import MAINTENANCE
from tests.provisioning.lab import SECRET as MACHINES
from tests.store.given import sql
from tests.store.releases import RELEASES, restore
from tests.store.releases.story import ACME, AWAY, GLOBEX, HELD, HOUR, KEY, OTHER_SERIAL, TOKENS, Caller, World
from tests.webhooks.receiver import receiving

AGO = 5400 * SECOND  # an hour and a half: delays and leases are over, deadlines are not
TIMES = {
    "jobs": ("run_at", "lease_until", "created_at", "updated_at", "finished_at", "deadline_at", "prune_at"),
    "deliveries": ("lease_until", "due_at", "since_at", "created_at", "updated_at"),
    "records": ("due_at", "created_at", "updated_at"),
    "files": ("created_at",),
}


@pytest.fixture(scope="module")
def postgres_template() -> str:
    """Without tables: the release's own are restored."""
    return "template1"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    models = {"ready": Model(), HELD: Model(), AWAY: Model()}
    async with (
        OllamaTarget(models, parallel=2) as target,
        FakeBmc() as bmc,
        FakeBmc(Habits(serial=OTHER_SERIAL, uuid="11111111-2222-3333-4444-666666666666")) as other_bmc,
        receiving() as receiver,
    ):
        yield World(target, bmc, other_bmc, receiver)


@pytest.fixture(params=RELEASES)
async def acme(request: pytest.FixtureRequest, store_url: str, tmp_path: Path, world: World) -> AsyncIterator[Caller]:
    """Yield a caller of the upgraded server."""
    await restore(request.param, store_url, tmp_path / "data")
    await move_times(store_url)
    await move_surroundings(store_url, world)
    (tmp_path / "maintenance.iso").write_bytes(MAINTENANCE)
    settings = {
        "server.data_dir": str(tmp_path / "data"),
        "auth.tokens": TOKENS,
        "inference.targets": [{"name": "laptop", "url": world.target.url, "parallel": 2}],
        "inference.probe_seconds": 0.25,
        "provisioning.enabled": True,
        "provisioning.maintenance_iso": str(tmp_path / "maintenance.iso"),
        "provisioning.key": KEY,
        "provisioning.poll_seconds": 0.05,
        "provisioning.webhook_secret": MACHINES,
        "provisioning.webhook_tenant": ACME,
        "provisioning.silence_seconds": 5 * HOUR,
    }
    async with serving(store_url, settings) as server, aiohttp.ClientSession() as session:
        yield Caller(server.url, session, ACME)


async def move_times(store_url: str) -> None:
    """Shift all times, as if the release had been stopped a while ago and not when its database was made."""
    [[last]] = await sql(store_url, "SELECT MAX(updated_at) FROM jobs")
    shift = time.time_ns() // 1000 - AGO - last
    for table, columns in TIMES.items():
        await sql(store_url, f"UPDATE {table} SET " + ", ".join(f"{column} = {column} + {shift}" for column in columns))
    for kind, tenant, name, body in await sql(store_url, "SELECT kind, tenant, name, body FROM records"):
        moved = re.sub(rb"\b17\d{14}\b", lambda found: str(int(found[0]) + shift).encode(), body)
        await put_body(store_url, (kind, tenant, name), moved)


async def move_surroundings(store_url: str, world: World) -> None:
    """Replace the ports of receivers and BMCs, which differ from those when the database was made."""
    await sql(store_url, f"UPDATE deliveries SET url = '{world.receiver.url('/hook')}'")
    for serial, bmc in (("SN-1", world.bmc), (OTHER_SERIAL, world.other_bmc)):
        where = f"WHERE kind = 'server' AND tenant = '{ACME}' AND name = '{serial}'"
        [[body]] = await sql(store_url, f"SELECT body FROM records {where}")
        moved = {**json.loads(body), "bmc_address": bmc.url}
        await put_body(store_url, ("server", ACME, serial), json.dumps(moved).encode())


async def put_body(store_url: str, key: tuple[str, str, str], body: bytes) -> None:
    literal = f"X'{body.hex()}'" if store_url.startswith("sqlite:") else f"'\\x{body.hex()}'"
    where = "kind = '{}' AND tenant = '{}' AND name = '{}'".format(*key)
    await sql(store_url, f"UPDATE records SET body = {literal} WHERE {where}")


async def jobs(caller: Caller, kind: str, **by: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await caller.said("GET", f"/engine/jobs?kind={kind}&limit=500"))["jobs"]
    return [job for job in found if by.items() <= job.items()]


async def test_queued_inference_jobs_are_answered(acme: Caller) -> None:
    async def none_is_left() -> bool:
        return all(job["finished_at"] for job in await jobs(acme, "inference"))

    await until(none_is_left)
    for caller in (acme, acme.of(GLOBEX)):
        for model in (AWAY, "Registry.Ollama.ai/library/Ready"):
            [job] = await jobs(caller, "inference", queue=model)
            assert job["state"] == "succeeded"


async def test_jobs_of_callers_that_are_gone_end_without_an_answer(acme: Caller) -> None:
    async def ended() -> bool:
        listed = [job for job in await jobs(acme, "inference") if job["priority"] == 5]
        return len(listed) == 2 and all(job["state"] in ("failed", "cancelled") for job in listed)

    await until(ended)


async def test_a_batch_is_completed(acme: Caller) -> None:
    async def completed() -> Any:
        [batch] = (await acme.said("GET", "/v1/batches"))["data"]
        return batch if batch["status"] == "completed" else None

    batch = await until(completed)
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


async def test_workers_get_the_tasks_of_their_own_tenant(acme: Caller) -> None:
    for caller in (acme, acme.of(GLOBEX)):
        task = await caller.claim_task("RENDER")
        result = {"status": "COMPLETED", "result": {"ok": True}}
        await caller.said("POST", f"/v1/codeq/tasks/{task['id']}/result", result)
        assert await caller.said("POST", "/v1/codeq/tasks/claim", {"commands": ["paused"]}) is None
        await caller.said("PUT", "/v1/codeq/admin/queues/paused", {"paused": False})
        assert (await caller.claim_task("paused"))["command"] == "paused"
        again = await caller.task("unique", uniqueKey="only-one")
        assert again["id"] == (await caller.claim_task("unique"))["id"]


async def test_dead_letters_are_listed_and_requeued(acme: Caller) -> None:
    [letter] = (await acme.said("GET", "/v1/codeq/admin/dlq"))["tasks"]
    await acme.said("POST", f"/v1/codeq/admin/dlq/{letter['id']}/requeue")
    assert (await acme.claim_task("dead"))["id"] == letter["id"]


async def test_queues_show_their_settings(acme: Caller) -> None:
    views = (await acme.said("GET", "/engine/queues"))["queues"]
    shown = {(view["kind"], view["queue"]): view for view in views}
    assert shown["job", "paused/by/us"]["paused"]
    assert shown["job", "limited"]["max_running"] == 1
    assert shown["task", "paused"]["paused"]
    assert shown["task", "encode"]["max_running"] == 2
    assert shown["provision", OTHER_SERIAL]["paused"]
    assert shown["inference", AWAY]["max_running"] == 3


async def test_pending_deliveries_are_sent(acme: Caller, world: World) -> None:
    async def sent() -> bool:
        found = (await acme.said("GET", "/engine/deliveries?limit=500&state=pending"))["deliveries"]
        return not found

    await until(sent)
    assert len(world.receiver.hooks) >= 5


async def test_a_machine_reports_and_its_job_is_complete(acme: Caller) -> None:
    [job] = [job for job in await jobs(acme, "provision", queue="SN-1") if job["state"] != "cancelled"]
    headers = {"X-Webhook-Secret": MACHINES}
    await acme.said("POST", "/api/v1/status-webhook/SN-1", {"status": "success", "job_id": job["id"]}, headers)

    async def complete() -> bool:
        return bool((await acme.said("GET", f"/api/v1/jobs/{job['id']}"))["status"] == "complete")

    await until(complete)


async def test_a_job_of_a_paused_server_does_not_begin_until_it_is_resumed(acme: Caller) -> None:
    [job] = await jobs(acme, "provision", queue=OTHER_SERIAL)
    assert job["state"] == "queued"
    await acme.said("PUT", f"/engine/queues/provision/{OTHER_SERIAL}", {"paused": False})

    async def begun() -> bool:
        return bool((await acme.job(job["id"]))["state"] == "running")

    await until(begun)
