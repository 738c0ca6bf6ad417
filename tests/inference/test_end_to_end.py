"""The whole door against a real model: the embedded target with the tiny model, in a process that can be killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import ollama
import pytest

from chargehand.app import Server
from chargehand.doors.inference.embedded.process import Embedded
from tests.api.serving import Api, on_sqlite, serving, talking, until
from tests.webhooks.receiver import Receiver, receiving

pytestmark = [
    pytest.mark.skipif(bool(Embedded.available()), reason=Embedded.available() or "it can run"),
    pytest.mark.xdist_group("embedded"),
]
TINY = "tiny-stories"
STORY: dict[str, Any] = {
    "model": TINY,
    "prompt": "Once upon a time",
    "options": {"num_predict": 40, "temperature": 0, "seed": 1},
}


@pytest.fixture
async def server(tmp_path: Path, store_url: str) -> AsyncIterator[Server]:
    settings = {"inference.embedded": "on", "inference.probe_seconds": 0.2, "server.data_dir": str(tmp_path)}
    async with serving(store_url, settings) as running:
        yield running


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    async with talking(server) as client:
        await until(lambda: server.inference and server.inference.scheduler.has_live_target(f"{TINY}:latest"))
        yield client


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


async def finished(api: Api, job_id: str) -> Any:
    async def done() -> Any:
        job = (await api.get(f"/jobs/{job_id}")).good()
        return job if job["state"] in ("done", "failed") else None

    return await until(done, 30)


def states(receiver: Receiver) -> list[tuple[str, int]]:
    told = sorted((msgspec.json.decode(hook.body) for hook in receiver.hooks), key=lambda body: body["sequence"])
    return [(body["state"], body["attempt"]) for body in told]


async def test_a_newcomers_first_job_is_answered_by_a_real_model(api: Api, receiver: Receiver) -> None:
    listed = (await api.get("/api/tags")).body.decode()
    assert TINY in listed
    accepted = await api.post(
        "/jobs", STORY | {"state_webhook_url": receiver.url(), "artifacts": [{"name": "story.txt"}]}
    )
    job = await finished(api, accepted.good(202)["job_id"])
    assert job["state"] == "done"
    assert len(job["result"]["response"].split()) > 5
    assert job["evidence"]["tokens"] == job["result"]["eval_count"] <= 40
    assert (await api.get(job["artifacts"][0]["url"])).body.decode() == job["result"]["response"]
    await until(lambda: len(receiver.hooks) == 4)
    assert states(receiver) == [("queued", 1), ("loading", 1), ("working", 1), ("done", 1)]


async def test_the_ollama_client_gets_the_same_answers_through_us_as_directly(server: Server, api: Api) -> None:
    assert server.inference is not None
    assert server.inference.embedded is not None
    key = server.inference.scheduler.targets["embedded"].config.api_key.reveal()
    direct = ollama.AsyncClient(server.inference.embedded.url, headers={"Authorization": f"Bearer {key}"})
    through = ollama.AsyncClient(server.url)
    options = STORY["options"]
    said = [(await client.generate(TINY, STORY["prompt"], options=options)).response for client in (through, direct)]
    assert said[0] == said[1] != ""
    streams = []
    for client in (through, direct):
        stream = await client.generate(TINY, STORY["prompt"], options=options, stream=True)
        streams.append([part.response async for part in stream])
    assert streams[0] == streams[1]
    assert len(streams[0]) > 10
    vectors = [(await client.embed(TINY, "a little dog")).embeddings for client in (through, direct)]
    assert vectors[0] == vectors[1]
    for client in (through, direct):
        await client._client.aclose()  # AsyncClient has no method to close it


@on_sqlite
async def test_the_port_of_the_embedded_target_serves_only_its_server(server: Server, api: Api) -> None:
    assert server.inference is not None
    assert server.inference.embedded is not None
    url = server.inference.embedded.url
    for headers in ({}, {"Origin": "null"}, {"Authorization": "Bearer a guess"}):
        async with api.session.post(
            f"{url}/api/generate", data=b'{"model": "tiny-stories"}', headers=headers
        ) as answer:
            assert answer.status == 401


async def test_killing_the_embedded_target_costs_no_attempt(server: Server, api: Api, receiver: Receiver) -> None:
    assert server.inference is not None
    embedded = server.inference.embedded
    assert embedded is not None
    assert embedded.pid is not None
    await finished(api, (await api.post("/jobs", STORY)).good(202)["job_id"])
    os.kill(embedded.pid, signal.SIGKILL)
    await until(lambda: server.inference and not server.inference.scheduler.has_live_target(f"{TINY}:latest"))
    accepted = await api.post("/jobs", STORY | {"state_webhook_url": receiver.url()})
    job_id = accepted.good(202)["job_id"]
    waiting = (await api.get(f"/jobs/{job_id}")).good()
    assert (waiting["state"], waiting["waiting_for"]) == ("queued", "target")
    job = await finished(api, job_id)
    assert (job["state"], job["attempt"]) == ("done", 1)


async def test_the_demo_shows_a_job_a_target_that_goes_away_and_a_batch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chargehand", "demo", "--json"]
    demo = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert demo.returncode == 0, demo.stderr
    lines = [msgspec.json.decode(line) for line in demo.stdout.splitlines()]
    told = [line["body"]["state"] for line in lines if line["what"] == "webhook"]
    assert told[:4] == ["queued", "loading", "working", "done"]
    assert told.count("done") == 2
    assert [line["body"]["attempt"] for line in lines if line["what"] == "webhook"] == [1] * len(told)
    assert any("the results file has 12 lines" in line["text"] for line in lines)
