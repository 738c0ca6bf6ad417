import re
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chargehand import __version__
from chargehand.app import Server
from tests.api.serving import Api, on_sqlite, until
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
    """By name and the values of the labels, in their order."""
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
    ours = {name for name in ours if not name.startswith("chargehand_inference_")}  # these appear with a target
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in found} >= ours
    assert found["chargehand_moves_total"] == {("job", "submit"): 2, ("job", "claim"): 1, ("job", "succeed"): 1}
    assert found["chargehand_http_request_seconds_count"]["GET", "/engine/jobs", "200"] == 1
    assert found["chargehand_job_seconds_count"] == {("job", "succeeded"): 1}
    assert found["chargehand_claim_wait_seconds_count"] == {("job",): 1}
    assert found["chargehand_delivery_seconds_count"] == found["chargehand_delivery_lag_seconds_count"]
    assert found["chargehand_store_up"] == {(): 1}
    assert found["chargehand_breakers_open"] == {(): 0}


async def test_the_gauges_show_what_stands_in_the_queues(api: Api) -> None:
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
async def test_every_reference_in_the_description_leads_somewhere(api: Api) -> None:
    description = (await api.get("/openapi.json")).good()

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    known = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    assert references(description) <= known


@on_sqlite
async def test_a_browser_at_the_root_is_led_to_a_page_and_anything_else_gets_a_sign_of_life(api: Api) -> None:
    plain = await api.get("/")
    assert (plain.status, plain.body) == (200, b"Ollama is running")
    assert (await api.call("HEAD", "/")).status == 200
    browser = await api.get("/", {"Accept": "text/html,application/xhtml+xml"})
    assert (browser.status, browser.headers["location"]) == (302, "/console")
    page = await api.get("/docs")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
