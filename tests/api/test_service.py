import re
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chargehand import __version__
from chargehand.app import Server
from tests.api.serving import Api, on_sqlite, serving, talking, until
from tests.webhooks.receiver import Receiver


async def test_a_running_server_is_alive_and_ready(api: Api) -> None:
    assert (await api.get("/healthz")).good() == {"status": "ok", "version": __version__}
    assert (await api.get("/readyz")).good() == {"status": "ready", "store": "ok"}


@on_sqlite
async def test_without_its_writer_the_server_is_alive_and_not_ready(
    api: Api, server: Server, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    [writer] = [child for child in psutil.Process().children() if str(tmp_path) in " ".join(child.cmdline())]
    writer.kill()
    await until(lambda: writer.status() == psutil.STATUS_ZOMBIE)
    (await api.get("/readyz")).problem(503, "store.unavailable")
    assert (await api.get("/healthz")).status == 200
    (await api.post("/engine/jobs", {"queue": "q", "payload": 1})).problem(503, "store.unavailable")
    assert "process that writes to SQLite" in await server.store.ended()


@on_sqlite
async def test_a_server_that_stops_is_no_longer_ready(api: Api, server: Server) -> None:
    server.engine.drain()
    stopping = await api.get("/readyz")
    assert stopping.problem(503, "store.unavailable")["retry_after_seconds"] == 5
    assert stopping.headers["retry-after"] == "5"


async def samples(api: Api) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the metrics by name and by the values of the labels, in the order of the labels."""
    answer = await api.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def test_every_metric_is_there_and_counts(api: Api, server: Server, receiver: Receiver) -> None:
    await api.submit(webhook={"url": receiver.url(), "on": ["succeeded"]})
    await api.submit(queue="elsewhere")
    await api.move(await api.claim(), "succeed")
    await api.get("/engine/jobs")
    await until(lambda: receiver.hooks)

    async def delivered() -> float | None:
        return (await samples(api)).get("chargehand_deliveries_total", {}).get(("standard", "delivered"))

    assert await until(delivered) == 1
    found = await samples(api)
    ours = {family.name for family in server.metrics.registry.collect() if family.name.startswith("chargehand_")}
    ours = {name for name in ours if not name.startswith("chargehand_inference_")}  # which only appear with a target
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in found} >= ours
    assert found["chargehand_moves_total"] == {("job", "submit"): 2, ("job", "claim"): 1, ("job", "succeed"): 1}
    assert found["chargehand_http_request_seconds_count"]["GET", "/engine/jobs", "200"] == 1
    assert found["chargehand_job_seconds_count"] == {("job", "succeeded"): 1}
    assert found["chargehand_claim_wait_seconds_count"] == {("job",): 1}
    assert found["chargehand_delivery_seconds_count"] == found["chargehand_delivery_lag_seconds_count"]
    assert found["chargehand_store_up"] == {(): 1}
    assert found["chargehand_breakers_open"] == {(): 0}


async def test_the_gauges_show_the_jobs_in_the_queues(api: Api) -> None:
    await api.submit()
    await api.submit(delay_seconds=60)
    jobs = (await samples(api))["chargehand_queue_jobs"]
    queue = "job/default/q"
    assert jobs == {(queue, "ready"): 1, (queue, "delayed"): 1, (queue, "running"): 0}


@on_sqlite
async def test_the_description_lists_every_route_that_is_not_hidden(api: Api, server: Server) -> None:
    description = (await api.get("/openapi.json")).good()
    assert description["openapi"].startswith("3.1")
    described = {
        (method.upper(), path): operation
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    }
    shown = {(route.method, route.path.replace(":path", "")): route for route in server.routes() if not route.hidden}
    assert described.keys() == shown.keys()
    for key, route in shown.items():
        assert described[key]["summary"] == route.summary
        assert str(route.status) in described[key]["responses"]


@on_sqlite
async def test_every_reference_in_the_description_exists(api: Api) -> None:
    description = (await api.get("/openapi.json")).good()

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    known = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    assert references(description) <= known


@on_sqlite
async def test_the_root_redirects_browsers_to_the_console_and_answers_other_clients(api: Api) -> None:
    plain = await api.get("/")
    assert (plain.status, plain.body) == (200, b"Ollama is running")
    assert (await api.call("HEAD", "/")).status == 200
    browser = await api.get("/", {"Accept": "text/html,application/xhtml+xml"})
    assert (browser.status, browser.headers["location"]) == (302, "/console")
    page = await api.get("/docs")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")


# chores -----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_every_door_and_part_returns_its_chores_and_their_names_are_unique(
    store_url: str, tmp_path: Path
) -> None:
    settings = {"provisioning.enabled": True, "server.data_dir": str(tmp_path)}
    async with serving(store_url, settings) as server, talking(server) as api:
        names = [chore.name for chore in server.chores()]
        assert len(set(names)) == len(names)
        parts = {"due jobs", "old deliveries", "cancelled flows", "orphaned files", "last hour"}
        doors = {
            "old uploads",
            "topics",
            "schedules",
            "subscriptions",
            "media fetches",
            "old media",
            "registry garbage",
        }
        assert parts | doors <= set(names)
        assert all(chore.every_seconds > 0 for chore in server.chores())

        async def all_done() -> list[dict[str, Any]] | None:
            listed: list[dict[str, Any]] = (await api.get("/engine/chores")).good()["chores"]
            return listed if all(each["last_turn_seconds"] is not None for each in listed) else None

        listed = await until(all_done)
        assert [each["name"] for each in listed] == names
        assert {each["state"] for each in listed} == {"ok"}
        found = await samples(api)
        assert found["chargehand_chore_up"] == {(name,): 1 for name in names}
        assert found["chargehand_chore_failures_total"] == {(name,): 0 for name in names}
        assert found["chargehand_chore_seconds_count"].keys() == found["chargehand_chore_up"].keys()
        assert all(time.time() - at < 60 for at in found["chargehand_chore_last_success_timestamp_seconds"].values())


@on_sqlite
async def test_a_chore_that_fails_is_shown_and_does_not_end_the_server(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    settings = {"inference.artifacts_dir": str(tmp_path / "a file"), "retention.interval_seconds": 0.02}
    async with serving(store_url, settings) as server, talking(server) as api:

        async def failing() -> list[dict[str, Any]]:
            listed = (await api.get("/engine/chores")).good()["chores"]
            return [each for each in listed if each["failures"] > 2]

        [chore] = await until(failing)
        assert (chore["name"], chore["state"], chore["since_success_seconds"]) == ("orphaned files", "failing", None)
        assert "Not a directory" in chore["error"]
        found = await samples(api)
        assert [name for name, up in found["chargehand_chore_up"].items() if not up] == [("orphaned files",)]
        assert found["chargehand_chore_failures_total"]["orphaned files",] > 2
        assert ("orphaned files",) not in found["chargehand_chore_last_success_timestamp_seconds"]
        (tmp_path / "a file").unlink()
        await until(lambda: _all_up(api))


async def _all_up(api: Api) -> bool:
    return all((await samples(api))["chargehand_chore_up"].values())
