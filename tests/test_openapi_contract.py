"""The description of the API against the API: every described request gets a described answer."""

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from chargehand.app import Server
from tests.api.serving import serving, talking

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# APIs that others define: their owners describe them, and they are tested with their owners' clients.
FOREIGN = ("/api/", "/v1/")
OURS = "/api/v1/"  # which are ours although they begin like those
ENDLESS = "/engine/feed"  # tests/console reads it
# No waiting, so that every answer takes milliseconds.
SETTINGS = {
    "engine.max_wait_seconds": 0,
    "webhooks.max_attempts": 1,
    "webhooks.timeout_seconds": 0.1,
    "provisioning.enabled": True,
    "provisioning.redfish_timeout_seconds": 0.1,
    "provisioning.key": "a key for tests of more than thirty-two bytes",
}


@contextmanager
def in_a_thread(store_url: str) -> Iterator[Server]:
    """Run the server on its own loop in a thread: Schemathesis calls from ordinary functions."""
    running: list[Server] = []
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(
            store_url, {**SETTINGS, "server.data_dir": store_url.removeprefix("sqlite:///") + ".files"}
        ) as server:
            running.append(server)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        assert started.wait(20)
        yield running[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with in_a_thread(f"sqlite:///{tmp_path}/jobs.db") as running:
        yield running


def check_every_operation(
    server: Server, subtests: pytest.Subtests, mode: GenerationMode, given_ids: Callable[[], dict[str, str]]
) -> None:
    schema = schemathesis.openapi.from_dict(server.describe())
    quick = settings(
        max_examples=12,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with requests.Session() as session:
        session.trust_env = False  # no proxy
        for found in schema.get_all_operations():
            assert isinstance(found, Ok), found
            operation = found.ok()
            if operation.path.startswith(FOREIGN) and not operation.path.startswith(OURS):
                continue
            if operation.path == ENDLESS:
                continue
            ids = {name: value for name, value in given_ids().items() if f"{{{name}}}" in operation.path}

            @quick
            @given(case=operation.as_strategy(mode, path_parameters=ids or None))
            def conforms(case: Any) -> None:
                case.call_and_validate(server.url, session, checks=CHECKS, timeout=10)

            # A request without parameters and body cannot be made invalid.
            with subtests.test(operation.label), suppress(Unsatisfiable):
                conforms()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_request_is_answered_as_described(
    server: Server, subtests: pytest.Subtests, mode: GenerationMode
) -> None:
    check_every_operation(server, subtests, mode, dict)


def test_every_request_for_existing_things_is_answered_as_described(server: Server, subtests: pytest.Subtests) -> None:
    def things() -> dict[str, str]:
        return asyncio.run(make_things(server))

    check_every_operation(server, subtests, GenerationMode.POSITIVE, things)


async def make_things(server: Server) -> dict[str, str]:
    """Make a running job, a dead delivery and its endpoint, again for each operation: the last one may have ended them."""
    async with talking(server) as api:
        nobody_there = f"http://127.0.0.1:9/{secrets.token_hex(4)}"
        job_id = await api.submit(queue="things", webhook={"url": nobody_there, "on": ["queued"]})
        [delivery] = await api.deliveries(f"job={job_id}&state=dead")
        await api.claim(queues=["things"])
        return {"job_id": job_id, "delivery_id": delivery["id"], "endpoint_id": delivery["endpoint_id"]}
