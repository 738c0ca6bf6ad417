"""Every metric of the contract exists and changes, and logs can be filtered by job and by server."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from chargehand.observability.logs import configure_logs
from tests.api.serving import on_sqlite
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SERIAL, Lab, lab

LINE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+|NaN)$")


async def metrics(room: Lab) -> dict[tuple[str, str], float]:
    text = (await room.api.get("/metrics")).body.decode()
    return {(found[1], found[2] or ""): float(found[3]) for line in text.splitlines() if (found := LINE.match(line))}


@on_sqlite
async def test_every_metric_of_the_contract_exists_and_changes(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        before = await metrics(room)
        assert before["webhook_received_total", 'status="success"'] == 0
        job_id = await room.waiting()
        (await room.report({"status": "success"}, secret="wrong"))
        (await room.report({"status": "success", "finished_at": "2026-01-01T00:00:00Z", "delivery_id": "d"})).good()
        (await room.report({"status": "success", "delivery_id": "d"})).good()
        await room.reaches(job_id, "complete")
        failing = await room.submit()
        await room.waits(failing)
        (await room.report({"status": "failed", "failed_step": "partition.service"})).good()
        await room.reaches(failing, "complete")
        after = await metrics(room)
        counted = {
            ("webhook_received_total", 'status="success"'): 1,
            ("webhook_received_total", 'status="failed"'): 1,
            ("webhook_received_total", 'status="duplicate"'): 1,
            ("webhook_received_total", 'status="refused"'): 1,
            ("webhook_delivery_duration_seconds_count", ""): 1,
            ("job_duration_seconds_count", 'outcome="succeeded"'): 1,
            ("job_duration_seconds_count", 'outcome="failed"'): 1,
            ("job_transitions_total", 'from="queued",to="provisioning"'): 2,
            ("job_transitions_total", 'from="provisioning",to="succeeded"'): 1,
            ("job_transitions_total", 'from="provisioning",to="failed"'): 1,
            ("job_transitions_total", 'from="succeeded",to="complete"'): 1,
            ("job_transitions_total", 'from="failed",to="complete"'): 1,
            ("iso_build_duration_seconds_count", ""): 2,
            ("iso_size_bytes_count", ""): 2,
            ("cleanup_duration_seconds_count", ""): 2,
            ("provisioning_failures_total", 'failed_step="workflow.partition"'): 1,
            ("controller_http_requests_total", 'code="202",route="/api/v1/jobs"'): 2,
            ("controller_http_requests_total", 'code="403",route="/api/v1/status-webhook/{server_serial}"'): 1,
        }
        assert {name: after.get(name) for name in counted} == counted
        operations = {labels for name, labels in after if name == "redfish_request_duration_seconds_count"}
        for operation in ("discover", "insert", "boot-override", "reset", "eject"):
            assert f'operation="{operation}",vendor="other"' in operations
        assert after["iso_size_bytes_sum", ""] > 2 * 32768


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    stream = io.StringIO()
    configure_logs("debug", "json", stream)
    yield stream
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


@on_sqlite
async def test_log_lines_name_job_and_server_and_contain_nothing_of_the_recipe(
    store_url: str, tmp_path: Path, logged: io.StringIO
) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        job_id = await room.submit()
        await room.reaches(job_id, "complete")
    everything = logged.getvalue()
    lines = [json.loads(line) for line in everything.splitlines()]
    steps = [line for line in lines if line.get("event") == "a step ended"]
    assert {line["step"] for line in steps} >= {"build-media", "discover", "reset", "wait", "eject"}
    for line in steps:
        assert (line["job_id"], line["server_serial"], line["attempt"]) == (job_id, SERIAL, 1)
        assert line["duration_ms"] >= 0
    assert RECIPE["oci_url"] not in everything
    assert RECIPE["target_disk"] not in everything


@on_sqlite
async def test_unit_names_of_machines_do_not_become_metric_labels(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await room.waiting()
        (await room.report({"status": "failed", "failed_step": "step-4711@9.service"})).good()
        assert (await room.reaches(job_id, "complete"))["failed_step"] == "workflow.step-4711@9"
        metrics = (await room.api.get("/metrics")).body
        assert b"4711" not in metrics
        assert b'provisioning_failures_total{failed_step="workflow.other"} 1.0' in metrics
