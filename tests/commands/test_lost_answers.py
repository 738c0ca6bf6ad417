"""A command whose answer is lost says that it may have taken effect and how to check, with exit code 4."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from chargehand.commands.exit_codes import UNSURE
from tests.api.serving import on_sqlite, serving, talking
from tests.commands.proxy import wire
from tests.commands.running import invoked
from tests.provisioning.lab import RECIPE

KEY = re.compile(r"the same command with --idempotency-key (\S+) makes no second job\n")


@on_sqlite
@pytest.mark.parametrize("then_gone", [False, True], ids=["the answer is lost", "and then the server is gone"])
async def test_a_submit_whose_answer_is_lost_can_be_repeated_with_the_printed_key(
    store_url: str, then_gone: bool
) -> None:
    async with serving(store_url) as server, talking(server) as api, wire(server.url) as line:
        line.loses, line.ends = b"POST /engine/jobs ", then_gone
        words = ("submit", "--queue", "q", "1")
        told = (await invoked(line.url, *words)).good(UNSURE)
        assert "the server may have done what was asked" in told.err
        assert told.out == ""
        key = KEY.search(told.err)
        assert key is not None
        made = (await invoked(server.url, *words, "--idempotency-key", key[1])).good().out.strip()
        assert [job["id"] for job in (await api.get("/engine/jobs")).good()["jobs"]] == [made]


@on_sqlite
async def test_with_json_the_key_is_a_field(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api, wire(server.url) as line:
        line.loses = b"POST /v1/codeq/tasks "
        told = (await invoked(line.url, "submit", "--command", "resize", "1", "--json")).good(UNSURE)
        refusal = json.loads(told.err)
        assert refusal["idempotency_key"] in refusal["message"]
        [job] = (await api.get("/engine/jobs")).good()["jobs"]
        assert (await api.job(job["id"]))["idempotency_key"] == refusal["idempotency_key"]


@on_sqlite
@pytest.mark.parametrize("lost", [b"POST ", b"GET "], ids=["the answer is lost", "the look afterwards is lost"])
async def test_a_cancel_whose_answer_is_lost_names_the_command_that_shows_the_job(store_url: str, lost: bytes) -> None:
    async with serving(store_url) as server, talking(server) as api, wire(server.url) as line:
        job_id = await api.submit()
        line.loses, line.since = lost, b"POST "
        told = (await invoked(line.url, "jobs", "cancel", job_id)).good(UNSURE)
        assert told.err.endswith(f"to check: chargehand jobs show {job_id}\n")
        assert (await api.job(job_id))["state"] == "cancelled"


@on_sqlite
async def test_a_read_whose_answer_is_lost_is_a_plain_refusal(store_url: str) -> None:
    async with serving(store_url) as server, wire(server.url) as line:
        line.loses = b"GET "
        told = (await invoked(line.url, "jobs", "list")).good(2)
        assert "may have been done" not in told.err
        assert line.lost >= 3, "it was asked again"


# a server that breaks ---------------------------------------------------------------------------------------------------


class Broken:
    def __init__(self) -> None:
        self.url = ""
        self.status = 500
        self.headers: dict[str, str] = {}
        self.asked: list[str] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.method)
        body = {"code": "internal", "title": "Internal error", "detail": "something broke"}
        return web.json_response(body, status=self.status, headers=self.headers)


@asynccontextmanager
async def broken() -> AsyncIterator[Broken]:
    made = Broken()
    runner = web.ServerRunner(web.Server(made.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


async def test_a_recipe_on_which_the_server_failed_can_be_submitted_again_with_the_printed_key(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(RECIPE))
    async with broken() as server:
        for words in (("provision", "submit", "SN-1", str(recipe)), ("submit", "--server", "SN-1", str(recipe))):
            told = (await invoked(server.url, *words)).good(UNSURE)
            assert KEY.search(told.err)
            mine = (await invoked(server.url, *words, "--idempotency-key", "mine", "--json")).good(UNSURE)
            assert json.loads(mine.err)["error"] == "internal"
            assert json.loads(mine.err)["idempotency_key"] == "mine"


async def test_a_503_with_retry_after_is_a_plain_refusal() -> None:
    async with broken() as server:
        server.status, server.headers = 503, {"Retry-After": "0"}
        told = (await invoked(server.url, "submit", "--queue", "q", "1")).good(2)
        assert told.err == "chargehand: something broke\n"
        assert len(server.asked) == 3


async def test_a_slow_probe_is_not_repeated() -> None:
    async with broken() as server:
        (await invoked(server.url, "provision", "server", "probe", "SN-1")).good(2)
        assert server.asked == ["POST"]
