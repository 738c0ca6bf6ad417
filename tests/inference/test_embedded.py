"""The embedded target as a process: it starts, answers with real text, ends with its parent, restarts on its port."""

import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]
import pytest

from chargehand.doors.inference.embedded import process
from chargehand.doors.inference.embedded.backend import Failure
from chargehand.doors.inference.embedded.catalogue import Model, Unknown, find_models, human_number
from chargehand.doors.inference.embedded.gguf import NotGguf, read_header
from chargehand.doors.inference.embedded.process import CannotStart, Embedded
from chargehand.doors.inference.embedded.requests import go_duration
from chargehand.doors.inference.embedded.schemas import tightened
from tests.e2e.server import eventually, has_ended

TINY = find_models(["tiny-stories"])[0]
STORY = {"model": "tiny-stories", "messages": [{"role": "user", "content": "Tell me a story about a fox."}]}
# A request that runs for about six seconds; ordinary stories end after a few hundred tokens.
ENDLESS = {**STORY, "format": {"type": "array", "items": {"type": "integer"}, "minItems": 50_000}}

needs_engine = pytest.mark.skipif(bool(Embedded.available()), reason=Embedded.available())
pytestmark = pytest.mark.xdist_group("contract")


@pytest.fixture
async def embedded() -> AsyncIterator[Embedded]:
    made = Embedded(["tiny-stories"])
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, url: str, body: Any) -> Any:
    async with http.post(url, json=body) as response:
        return response.status, await response.json()


async def answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/api/version") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def runners(embedded: Embedded) -> list[psutil.Process]:
    """Return the processes that hold a model."""
    found: list[psutil.Process] = psutil.Process(embedded.pid).children()
    return found


def changed(embedded: Embedded, pid: int) -> bool:
    return embedded.pid not in (pid, None)


# the process ----------------------------------------------------------------------------------------------------------


@needs_engine
@needs_engine
@pytest.mark.skipif(sys.platform != "linux", reason="what a process used is read as Linux counts it")
def test_an_idle_target_ends_without_looking_at_all_that_it_has_imported() -> None:
    """Measured in CPU time: the end took a fifth of what the start takes. What a busy machine adds is not in the least of five."""
    assert min(_end_by_start() for _ in range(5)) < 1 / 10


def _end_by_start() -> float:
    command = [sys.executable, "-m", "chargehand.doors.inference.embedded", "--model", "tiny-stories"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline()
    used = psutil.Process(running.pid).cpu_times()
    start = used.user + used.system
    running.terminate()
    _, status, usage = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    running.communicate()
    assert running.returncode == 0
    return float((usage.ru_utime + usage.ru_stime - start) / start)


async def test_the_embedded_target_starts_and_answers_with_a_story(
    embedded: Embedded, http: aiohttp.ClientSession
) -> None:
    assert embedded.models == ("tiny-stories:latest",)
    assert embedded.url.startswith("http://127.0.0.1:")
    assert runners(embedded) == []  # no model is loaded before the first request
    body = {**STORY, "stream": False, "options": {"seed": 1}}
    status, answer = await post(http, f"{embedded.url}/api/chat", body)
    assert status == 200
    assert re.match(r" Once there was a \w+ \w+ named \w+\. ", answer["message"]["content"])
    assert answer["done_reason"] == "stop"
    assert len(runners(embedded)) == 1


@needs_engine
async def test_unloading_a_model_ends_its_process(embedded: Embedded, http: aiohttp.ClientSession) -> None:
    await post(http, f"{embedded.url}/api/chat", {"model": "tiny-stories"})
    assert runners(embedded)
    await post(http, f"{embedded.url}/api/chat", {"model": "tiny-stories", "keep_alive": 0})
    await eventually(lambda: not runners(embedded), 5, "the process with the model has ended")


@needs_engine
async def test_the_embedded_target_prints_nothing_but_one_line(http: aiohttp.ClientSession) -> None:
    command = [sys.executable, "-m", "chargehand.doors.inference.embedded", "--model", "tiny-stories"]
    child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert child.stdout
    said = json.loads(await child.stdout.readline())
    assert said["models"] == ["tiny-stories:latest"]
    await post(http, f"{said['url']}/api/chat", {**STORY, "stream": False})
    child.terminate()
    out, errors = await child.communicate()
    assert (out, errors, child.returncode) == (b"", b"", 0)


@needs_engine
async def test_the_embedded_target_and_its_models_end_with_their_parent(http: aiohttp.ClientSession) -> None:
    parent = (
        "import asyncio, sys\n"
        "from chargehand.doors.inference.embedded.process import Embedded\n"
        "async def main():\n"
        "    embedded = Embedded(['tiny-stories'])\n"
        "    print(await embedded.start(), embedded.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", parent, stdout=PIPE, stderr=PIPE)
    assert child.stdout
    *_, url, pid = (await _line_with_url(child.stdout)).split()
    target = psutil.Process(int(pid))
    await post(http, f"{url}/api/chat", {"model": "tiny-stories"})
    held = target.children()
    assert held
    child.kill()
    await child.communicate()
    for orphan in (target, *held):
        await eventually(partial(has_ended, orphan), 5, "it ended with its parent")


async def _line_with_url(stream: asyncio.StreamReader) -> str:
    """Return the line with the URL; without a logging setup, logs go to the same stream."""
    async for line in stream:
        if line.startswith(b"http://"):
            return line.decode()
    raise AssertionError("it did not say where it listens")


@needs_engine
async def test_the_embedded_target_restarts_on_the_same_port_after_a_sigkill(http: aiohttp.ClientSession) -> None:
    embedded = Embedded(["tiny-stories"])
    url = await embedded.start()
    keeping = asyncio.create_task(embedded.keep_running())
    try:
        for _ in range(2):
            await post(http, f"{url}/api/chat", {"model": "tiny-stories"})
            [held] = runners(embedded)
            before = embedded.pid
            assert before
            os.kill(before, signal.SIGKILL)
            await eventually(partial(changed, embedded, before), 10, "another process runs")
            await eventually(lambda: answers(http, url), 10, "it answers at the same URL")
            await eventually(partial(has_ended, held), 5, "the model of the one before is gone")
            assert embedded.url == url
            status, answer = await post(http, f"{url}/api/chat", {**STORY, "stream": False})
            assert (status, answer["done"]) == (200, True)
    finally:
        await embedded.stop()
    async with asyncio.timeout(5):
        await keeping
    assert embedded.pid is None
    assert not await answers(http, url)


@needs_engine
async def test_a_port_in_use_is_reported_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BACKOFF_SECONDS", 0.05)
    blocker = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = blocker.sockets[0].getsockname()[1]
    embedded = Embedded(["tiny-stories"], port=port)
    with pytest.raises(CannotStart, match=f"cannot listen on 127.0.0.1:{port}"):
        await embedded.start()
    keeping = asyncio.create_task(embedded.keep_running())
    await asyncio.sleep(0.1)
    assert not keeping.done()
    blocker.close()
    await blocker.wait_closed()
    await eventually(lambda: embedded.url, 15, "it starts once the port is free")
    await embedded.stop()
    await keeping


async def test_the_embedded_target_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda _name: None)
    assert "xllamacpp is not installed" in Embedded.available()
    with pytest.raises(CannotStart, match="xllamacpp is not installed"):
        await Embedded().start()
    monkeypatch.setattr(process, "find_spec", lambda _name: object())
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(process, "cpu_flags", lambda: {"sse2", "avx"})
    assert "AVX2" in Embedded.available()
    monkeypatch.setattr(process, "cpu_flags", lambda: {"avx2"})
    assert Embedded.available() == ""
    monkeypatch.setattr(sys, "platform", "win32")
    assert "win32" in Embedded.available()


@needs_engine
async def test_an_unknown_model_is_named() -> None:
    with pytest.raises(CannotStart, match="no-such-model is neither a file nor one of tiny-stories:latest"):
        await Embedded(["no-such-model"]).start()


# what happens to a model ----------------------------------------------------------------------------------------------


@needs_engine
async def test_hanging_up_stops_the_generation(embedded: Embedded, http: aiohttp.ClientSession) -> None:
    """There is one place, so the next request is answered only when that place is free."""
    for stream in (True, False):
        if stream:
            async with http.post(f"{embedded.url}/api/chat", json=ENDLESS) as response:
                assert await response.content.readline()
                response.close()
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(post(http, f"{embedded.url}/api/chat", {**ENDLESS, "stream": False}), 0.5)
        began = time.monotonic()
        body = {**STORY, "stream": False, "options": {"num_predict": 2}}
        assert (await post(http, f"{embedded.url}/api/chat", body))[0] == 200
        assert time.monotonic() - began < 2
    [runner] = runners(embedded)

    async def rests() -> bool:
        before = runner.cpu_times().user
        await asyncio.sleep(0.3)
        return bool(runner.cpu_times().user - before < 0.05)

    await eventually(rests, 2, "the model is idle")


@needs_engine
async def test_a_request_waits_for_its_place_and_may_hang_up_meanwhile(
    embedded: Embedded, http: aiohttp.ClientSession
) -> None:
    async with http.post(f"{embedded.url}/api/chat", json=ENDLESS) as running:
        assert await running.content.readline()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(http, f"{embedded.url}/api/chat", STORY), 0.3)
        waiting = asyncio.create_task(post(http, f"{embedded.url}/api/chat", {**STORY, "stream": False}))
        assert (await http.get(f"{embedded.url}/api/ps")).status == 200  # /api/ps does not wait for the place
        running.close()
        assert (await asyncio.wait_for(waiting, 2))[0] == 200


@needs_engine
async def test_no_headers_are_sent_before_the_first_token(embedded: Embedded, http: aiohttp.ClientSession) -> None:
    await post(http, f"{embedded.url}/api/chat", {"model": "tiny-stories"})
    psutil.Process(runners(embedded)[0].pid).suspend()
    asked = asyncio.create_task(http.post(f"{embedded.url}/api/chat", json=STORY).__aenter__())
    done, _ = await asyncio.wait({asked}, timeout=0.3)
    assert not done
    psutil.Process(runners(embedded)[0].pid).resume()
    response = await asyncio.wait_for(asked, 10)
    assert response.status == 200
    response.close()


@needs_engine
async def test_a_model_that_crashes_is_reported_and_loaded_again(
    embedded: Embedded, http: aiohttp.ClientSession
) -> None:
    async with http.post(f"{embedded.url}/api/chat", json=ENDLESS) as response:
        assert await response.content.readline()
        runners(embedded)[0].kill()
        *_, last = [json.loads(line) async for line in response.content]
    assert last == {"error": "an error was encountered while running the model: unexpected EOF"}
    # Requests that arrive before the dead process is noticed may fail too.
    async with asyncio.timeout(20):
        while (answered := await post(http, f"{embedded.url}/api/chat", {**STORY, "stream": False}))[0] != 200:
            assert "error" in answered[1]
    assert answered[1]["done"] is True


@needs_engine
async def test_loading_a_broken_file_fails_with_the_reason(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    broken = tmp_path / "Broken Model.gguf"
    broken.write_bytes(TINY.path.read_bytes()[:700_000])
    embedded = Embedded([str(broken)])
    await embedded.start()
    try:
        assert embedded.models == ("broken-model:latest",)
        status, answer = await post(http, f"{embedded.url}/api/chat", {**STORY, "model": "broken-model"})
        assert status == 500
        assert "llama-server process has terminated: exit status" in answer["error"]
        assert "data is not within the file bounds" in answer["error"]
        async with http.get(f"{embedded.url}/api/ps") as response:
            assert await response.json() == {"models": []}
    finally:
        await embedded.stop()


@needs_engine
async def test_requests_of_pages_of_other_sites_are_refused(embedded: Embedded, http: aiohttp.ClientSession) -> None:
    foreign: list[dict[str, str]] = [{"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
    foreign += [
        {"Origin": origin} for origin in ("null", "https://evil.example", "http://localhost:3000", "http://10.0.0.1")
    ]
    for headers in foreign:
        said = {"Content-Type": "text/plain", **headers}
        async with http.post(
            f"{embedded.url}/api/generate", data=b'{"model": "tiny-stories"}', headers=said
        ) as response:
            assert (response.status, await response.read()) == (403, b"")
    async with http.get(
        f"{embedded.url}/api/tags", headers={"Host": "localhost:1", "Origin": "http://localhost:1"}
    ) as r:
        assert r.status == 200


@needs_engine
async def test_with_a_key_only_its_bearer_is_served_and_the_key_is_not_shown(http: aiohttp.ClientSession) -> None:
    embedded = Embedded(["tiny-stories"], key="known to one")
    url = await embedded.start()
    try:
        for wrong in (
            {},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer of another"},
            {"X-Api-Key": "known to one"},
        ):
            for method, path in (("GET", "/"), ("GET", "/api/version"), ("POST", "/api/generate"), ("GET", "/nowhere")):
                async with http.request(
                    method, url + path, data=b"{}" if method == "POST" else None, headers=wrong
                ) as r:
                    assert (r.status, await r.read()) == (401, b"")
        ours = {"Authorization": "Bearer known to one"}
        async with http.post(f"{url}/api/chat", json={**STORY, "stream": False}, headers=ours) as response:
            assert response.status == 200
        processes = [psutil.Process(embedded.pid), *runners(embedded)]
        assert len(processes) == 2
        assert not [each for each in processes if "known to one" in " ".join(each.cmdline())]
        assert "known to one" not in processes[1].environ().values()
    finally:
        await embedded.stop()


@needs_engine
async def test_requests_run_in_parallel_when_there_are_places(http: aiohttp.ClientSession) -> None:
    embedded = Embedded(["tiny-stories"], parallel=2)
    url = await embedded.start()
    try:
        async with http.post(f"{url}/api/chat", json=ENDLESS) as running:
            assert await running.content.readline()
            body = {**STORY, "stream": False, "options": {"num_predict": 20}}
            status, _ = await asyncio.wait_for(post(http, f"{url}/api/chat", body), 2)
            assert status == 200
            running.close()
    finally:
        await embedded.stop()


# what a file says, and other small things -----------------------------------------------------------------------------


def test_the_header_of_the_tiny_model_is_read() -> None:
    header = read_header(TINY.path)
    assert (header.architecture, header.context_length, header.embedding_length) == ("llama", 512, 96)
    assert (header.quantization, header.parameters, header.pools) == ("F32", 385_056, False)
    assert len(header.values["tokenizer.ggml.tokens"]) == 260
    assert "add_generation_prompt" in header.template


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    for content in (b"GGUF", b"hello" * 100, TINY.path.read_bytes()[:300]):
        path = tmp_path / f"{len(content)}.gguf"
        path.write_bytes(content)
        with pytest.raises(NotGguf):
            read_header(path)
        with pytest.raises(Unknown):
            find_models([str(path)])


def test_models_are_found_by_name_and_by_path() -> None:
    assert find_models(["Tiny-Stories"]) == [TINY]
    assert find_models([str(TINY.path)]) == [Model("tiny-stories:latest", TINY.path)]
    assert TINY in find_models()


@pytest.mark.parametrize(
    ("count", "text"),
    [(385_056, "385K"), (134_515_008, "134.52M"), (7_000_000_000, "7B"), (1_235_814_432, "1.2B"), (9, "9")],
)
def test_sizes_are_written_as_ollama_writes_them(count: int, text: str) -> None:
    assert human_number(count) == text


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("1h30m", 5400), ("300ms", 0.3), ("-1s", -1), ("0", 0)])
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    assert go_duration(text) == pytest.approx(seconds)


def test_a_schema_is_made_as_strict_as_by_ollama() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "string"}}}
    tight = tightened({"type": "object", "properties": {"list": {"type": "array", "items": inner}}})
    assert tight["additionalProperties"] is False
    assert tight["properties"]["list"]["items"]["additionalProperties"] is False
    assert tightened({**inner, "additionalProperties": True})["additionalProperties"] is True
    with pytest.raises(Failure, match="Unrecognized schema"):
        tightened({"type": "object", "properties": {"a": {"type": "banana"}}})
