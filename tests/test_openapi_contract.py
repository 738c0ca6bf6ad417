"""The description of the API against the API: whatever it allows is answered, and answered as it says."""

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
# Wires that are not ours: what they allow is described by their owners, and tested with their owners' clients.
FOREIGN = ("/api/", "/v1/")
OURS = "/api/v1/"  # among them
ENDLESS = "/engine/feed"  # tests/console reads it
# Nothing waits, so that an answer takes milliseconds whatever is asked.
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
    """Schemathesis calls from ordinary functions, so the server has a loop of its own."""
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
        session.trust_env = False  # no proxy between us
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

            # Of a request without parameters and body nothing can be wrong.
            with subtests.test(operation.label), suppress(Unsatisfiable):
                conforms()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_whatever_is_asked_is_answered_as_described(
    server: Server, subtests: pytest.Subtests, mode: GenerationMode
) -> None:
    check_every_operation(server, subtests, mode, dict)


def test_whatever_is_asked_of_things_that_exist_is_answered_as_described(
    server: Server, subtests: pytest.Subtests
) -> None:
    def things() -> dict[str, str]:
        return asyncio.run(make_things(server))

    check_every_operation(server, subtests, GenerationMode.POSITIVE, things)


async def make_things(server: Server) -> dict[str, str]:
    """A running job, a dead delivery and its endpoint; anew for each operation, as the one before may have ended them."""
    async with talking(server) as api:
        nobody_there = f"http://127.0.0.1:9/{secrets.token_hex(4)}"
        job_id = await api.submit(queue="things", webhook={"url": nobody_there, "on": ["queued"]})
        [delivery] = await api.deliveries(f"job={job_id}&state=dead")
        await api.claim(queues=["things"])
        return {"job_id": job_id, "delivery_id": delivery["id"], "endpoint_id": delivery["endpoint_id"]}
