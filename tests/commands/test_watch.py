"""`watch` on a terminal: tokens as they come, colours unless NO_COLOR, and a spinner that leaves nothing behind."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import on_sqlite, serving, talking, until
from tests.commands.running import ended, invoked, running
from tests.commands.terminal import terminal
from tests.e2e.server import Server
from tests.inference.conformance import Habits, OllamaTarget
from tests.inference.stories import MODELS, a_place

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(90)]
COLOUR = re.compile(r"\033\[(?:1|2|31|32|33|36)m")


async def test_tokens_are_shown_as_they_come_and_once(tmp_path: Path) -> None:
    async with (
        OllamaTarget(MODELS, Habits(token_seconds=0.2, tokens=8)) as target,
        a_place(tmp_path, target) as place,
        terminal() as (pipes, seen, _),
    ):
        environ = pipes.pop("environ")
        (await place.call("PUT", "/engine/queues/inference/a", {"paused": True})).good()
        async with running(place.url, "submit", "-m", "a", "words", "--watch", environ=environ, **pipes) as process:
            [job] = await until(place.jobs, 20)
            await until(lambda: b"queued" in b"".join(seen), 20)
            (await place.call("PUT", "/engine/queues/inference/a", {"paused": False})).good()
            first = await until(lambda: re.search(rb"\[2K([^\033\r]{2,40})$", b"".join(seen)), 20)
            assert (await place.seen(job["id"]))["state"] == "working", "and the answer has begun"
            (await ended(process)).good()
        shown = b"".join(seen).decode()
        answer = (await place.seen(job["id"]))["result"]["message"]["content"]
        assert answer.startswith(first[1].decode())
        assert answer in shown
        assert shown.count(answer) == 1
        assert COLOUR.search(shown)
        assert f"{job['id']} succeeded (" in shown


async def test_an_answer_that_a_crash_cut_short_begins_again(tmp_path: Path) -> None:
    async with OllamaTarget(MODELS, Habits(token_seconds=0.2, tokens=20)) as target:
        settings: dict[str, Any] = {"inference_targets": target.url, "inference_probe_seconds": 0.25}
        async with (
            Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path, **settings) as server,
            terminal() as (pipes, seen, _),
        ):
            environ = pipes.pop("environ")
            words = ("submit", "-m", "a", "words", "--watch")
            async with running(server.url, *words, environ=environ, **pipes) as process:
                first = await until(lambda: re.search(rb"\[2K([^\033\r]{2,40})$", b"".join(seen)), 30)
                await server.kill()
                target.habits.token_seconds = 0
                await until(lambda: b"the server is away" in b"".join(seen), 30)
                await server.start()
                (await ended(process)).good()
            shown = b"".join(seen).decode()
            said = [each.json for each in target.at("/api/chat") if each.json.get("messages")]
            assert len(said) == 2, "the model was asked again"
            assert shown.count(first[1].decode()) >= 2
            assert re.search(r"succeeded \([^)]*20 tokens", shown)


async def test_an_answer_into_a_file_comes_whole_while_the_terminal_shows_the_states(tmp_path: Path) -> None:
    async with (
        OllamaTarget(MODELS) as target,
        a_place(tmp_path, target) as place,
        terminal() as (pipes, seen, _),
    ):
        environ = pipes.pop("environ")
        with (tmp_path / "answer.txt").open("wb") as file:
            pipes["stdout"] = file
            async with running(
                place.url, "submit", "-m", "a", "one two", "--watch", environ=environ, **pipes
            ) as process:
                (await ended(process)).good()
        [job] = await place.jobs()
        answer = (await place.seen(job["id"]))["result"]["message"]["content"]
        assert (tmp_path / "answer.txt").read_text() == f"{answer}\n"
        shown = b"".join(seen).decode()
        assert "working" in shown
        assert answer not in shown


@on_sqlite
async def test_why_a_job_waits_is_shown_and_no_color_is_honoured(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api, terminal() as (pipes, seen, _):
        environ = {**pipes.pop("environ"), "NO_COLOR": "1"}
        job_id = await api.submit()
        async with running(server.url, "watch", job_id, environ=environ, **pipes) as process:
            await until(lambda: b"worker" in b"".join(seen), 20)
            (await api.post(f"/engine/jobs/{job_id}/cancel")).good()
            (await ended(process)).good(3)
        shown = b"".join(seen).decode()
        assert "was cancelled" in shown
        assert not re.search(r"\033\[[0-9;]*3\dm", shown), "no colour"
        assert shown.rstrip().endswith(f"{job_id} was cancelled")


@on_sqlite
async def test_a_table_has_colours_on_a_terminal_only(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api, terminal() as (pipes, seen, _):
        environ = pipes.pop("environ")
        await api.submit()
        await api.move(await api.claim(), "fail", error="broke")
        async with running(server.url, "jobs", "list", environ=environ, **pipes) as process:
            (await ended(process)).good()
        assert "\033[31mfailed\033[0m" in b"".join(seen).decode()
        assert "\033" not in (await invoked(server.url, "jobs", "list")).good().out
