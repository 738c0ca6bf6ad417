"""`chargehand worker` as a process that runs real programs."""

import asyncio
import base64
import os
import signal
import stat
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest

from tests.api.serving import until
from tests.client.stub_server import Stub, stub

CHARGEHAND = str(Path(sys.executable).with_name("chargehand"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("CHARGEHAND_")}

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture
async def server() -> AsyncIterator[Stub]:
    async with stub() as running:
        yield running


async def started(server_url: str, *words: str) -> Process:
    return await asyncio.create_subprocess_exec(
        *(CHARGEHAND, "worker", "--url", server_url, "--command", "work", *words),
        env=ENVIRON,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )


@asynccontextmanager
async def worker(server: Stub, *words: str) -> AsyncIterator[Process]:
    process = await started(server.url, *words)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: Process) -> tuple[int, str, str]:
    process.terminate()
    out, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


def script(folder: Path, text: str) -> str:
    file = folder / "script.sh"
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def result_of(task: Any) -> Any:
    assert task.result is not None
    return task.result["result"]


def files_of(task: Any) -> dict[str, bytes]:
    assert task.result is not None
    return {file["name"]: base64.b64decode(file["contentBase64"]) for file in task.result["artifacts"]}


async def test_an_object_on_stdout_is_the_result_and_anything_else_is_text(server: Stub) -> None:
    thing, text = server.add("work", {"a": [1, "ü"]}), server.add("WORK", "plain")
    async with worker(server, "--", "cat") as process:
        await until(lambda: server.counts() == {"COMPLETED": 2}, 20)
        code, out, errors = await ended(process)
    assert (result_of(thing), result_of(text)) == ({"a": [1, "ü"]}, {"output": '"plain"'})
    assert (code, out, len(errors.splitlines())) == (0, "", 3)
    assert f"work {thing.id}  completed in " in errors


async def test_with_json_each_task_prints_one_object_on_stdout(server: Stub) -> None:
    task = server.add("work", {})
    async with worker(server, "--json", "cat") as process:
        await until(lambda: task.status == "COMPLETED", 20)
        code, out, errors = await ended(process)
    told = msgspec.json.decode(out)
    assert told.pop("seconds") > 0
    assert told == {"task": task.id, "command": "work", "attempt": 1, "outcome": "completed", "text": ""}
    assert (code, errors) == (0, "")


async def test_arguments_are_passed_unchanged_and_the_task_is_in_the_environment(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    shown = 'printf "%s|" "$CHARGEHAND_TASK_ID" "$CHARGEHAND_COMMAND" "$CHARGEHAND_ATTEMPT" "$@"'
    async with worker(server, script(tmp_path, shown), "--url", "a b; $(id) *"):
        await until(lambda: task.status == "COMPLETED", 20)
    assert result_of(task) == {"output": f"{task.id}|work|1|--url|a b; $(id) *|"}


async def test_a_program_does_not_get_the_token_of_its_worker(
    server: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRON, "CHARGEHAND_TOKEN", "a-secret")
    task = server.add("work", {})
    async with worker(server, script(tmp_path, "env")):
        await until(lambda: task.status == "COMPLETED", 20)
    assert "CHARGEHAND_TASK_ID" in str(result_of(task))
    assert "a-secret" not in str(result_of(task))


async def test_progress_lines_are_reported_and_are_no_part_of_the_reason(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    steps = "echo progress 10 begun >&2; sleep 0.2; echo progress 99.5 >&2; echo why >&2; exit 4"
    async with worker(server, "--fail-on", "3", "--fail-on", "4", script(tmp_path, steps)):
        await until(lambda: task.status == "FAILED", 20)
    assert task.progress == [{"percent": 10, "message": "begun"}, {"percent": 99.5}]
    assert (task.error, task.attempts) == ("why", 1)


async def test_a_program_that_fails_is_retried_with_the_end_of_stderr_as_the_reason(
    server: Stub, tmp_path: Path
) -> None:
    task = server.add("work", {})
    program = script(tmp_path, f'[ "$CHARGEHAND_ATTEMPT" = 2 ] && exit 0\nyes {"x" * 60} | head -n 1000 >&2\nexit 1')
    async with worker(server, program):
        await until(lambda: task.status == "COMPLETED", 20)
    [nack] = [body for word, body in server.bodies if word == "nack"]
    assert "delaySeconds" not in nack
    assert 4000 < len(nack["reason"]) <= 4096
    assert result_of(task) == {"output": ""}


@pytest.mark.parametrize(
    ("text", "reason"), [("exit 75", "exit code 75"), ("kill -KILL $$", "ended by signal 9")], ids=["75", "signal"]
)
async def test_exit_code_75_and_a_signal_are_retried(server: Stub, tmp_path: Path, text: str, reason: str) -> None:
    server.add("work", {})
    async with worker(server, script(tmp_path, text)):
        await until(lambda: server.calls["nack"], 20)
    assert next(body["reason"] for word, body in server.bodies if word == "nack") == reason


async def test_output_beyond_a_mebibyte_is_cut_with_a_note(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    async with worker(server, script(tmp_path, "head -c 9000000 /dev/zero | tr '\\0' a")):
        await until(lambda: task.status == "COMPLETED", 20)
    result = result_of(task)
    assert (len(result["output"]), result["note"]) == (1 << 20, "cut at 1048576 of 9000000 bytes")


async def test_a_program_need_not_read_its_payload(server: Stub) -> None:
    task = server.add("work", "x" * 1_000_000)
    async with worker(server, "true"):
        await until(lambda: task.status == "COMPLETED", 20)
    assert (task.attempts, result_of(task)) == (1, {"output": ""})


async def test_output_that_is_cut_ends_with_a_whole_character(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    text = script(tmp_path, "printf a; head -c 600000 /dev/zero | sed 's/\\x00/\\xc3\\xbc/g'")
    async with worker(server, text):
        await until(lambda: task.status == "COMPLETED", 20)
    result = result_of(task)
    assert (result["output"], result["note"]) == ("a" + "ü" * 524_287, "cut at 1048576 of 1200001 bytes")


async def test_output_that_is_not_text_becomes_a_file_with_every_byte(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    async with worker(server, script(tmp_path, r"printf 'a\377\000\001'")):
        await until(lambda: task.status == "COMPLETED", 20)
    assert result_of(task) == {"output_file": "stdout"}
    assert files_of(task) == {"stdout": b"a\xff\x00\x01"}


async def test_binary_output_that_is_too_long_fails_with_what_to_do(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    async with worker(server, script(tmp_path, r"printf '\377'; head -c 9000000 /dev/zero")):
        await until(lambda: task.status == "FAILED", 20)
    assert task.error == (
        "stdout has 9000001 bytes that are not UTF-8, and at most 8388608 can be kept; write to a file in $CHARGEHAND_FILES"
    )


@pytest.mark.parametrize(("code", "status"), [(0, "COMPLETED"), (3, "FAILED")])
async def test_files_of_a_program_go_with_its_result(server: Stub, tmp_path: Path, code: int, status: str) -> None:
    task = server.add("work", {})
    text = f'cd "$CHARGEHAND_FILES"; pwd > "$0.where"; printf one > a.txt; printf "\\377" > "b c.bin"; exit {code}'
    async with worker(server, "--fail-on", "3", script(tmp_path, text)):
        await until(lambda: task.status == status, 20)
    assert files_of(task) == {"a.txt": b"one", "b c.bin": b"\xff"}
    where = (tmp_path / "script.sh.where").read_text().strip()
    assert not os.path.exists(where)  # noqa: ASYNC240 - one look


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mkdir sub", "$CHARGEHAND_FILES: 'sub' is no regular file; directories and links cannot be attached"),
        ("ln -s /etc/passwd a", "$CHARGEHAND_FILES: 'a' cannot be read: Too many levels of symbolic links"),
        ("mkfifo pipe", "$CHARGEHAND_FILES: 'pipe' is no regular file; directories and links cannot be attached"),
        ("touch $(seq 100)", "$CHARGEHAND_FILES has 100 files; at most 99 can go with a result"),
        (
            "truncate -s 65M a; touch b",
            "$CHARGEHAND_FILES: more than 67108864 bytes, at 'a'; at most so many go with a result",
        ),
    ],
    ids=["directory", "link", "pipe", "many", "large"],
)
async def test_files_that_cannot_go_with_a_result_fail_the_task_with_a_sentence(
    server: Stub, tmp_path: Path, text: str, error: str
) -> None:
    task = server.add("work", {})
    async with worker(server, script(tmp_path, f'cd "$CHARGEHAND_FILES"; {text}')):
        await until(lambda: task.status == "FAILED", 20)
    assert task.error == error


HANGS = 'sleep 300 & echo "$$ $!" > "$0.pids"; wait'


def pids(folder: Path) -> list[int]:
    """Return the process ids of the script and of its child."""
    file = folder / "script.sh.pids"
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_a_program_that_hangs_is_killed_with_its_children(server: Stub, tmp_path: Path) -> None:
    server.add("work", {})
    async with worker(server, "--timeout", "0.5", script(tmp_path, HANGS)) as process:
        await until(lambda: server.calls["nack"], 20)
        await ended(process)  # and with it the program, which the worker may have started again
    nacks = [body for word, body in server.bodies if word == "nack"]
    assert {nack["reason"] for nack in nacks} == {"still running after 0.5 s"}
    assert [pid for pid in pids(tmp_path) if alive(pid)] == []


async def test_a_stop_ends_the_program_and_hands_the_task_back(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    async with worker(server, "--grace", "0.2", script(tmp_path, HANGS)) as process:
        await until(lambda: len(pids(tmp_path)) == 2, 20)
        code, _, errors = await ended(process)
    assert (code, task.status, task.attempts) == (0, "PENDING", 0)
    assert "abandoned" in errors
    assert [pid for pid in pids(tmp_path) if alive(pid)] == []


async def test_a_program_that_ignores_sigterm_is_killed(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    stubborn = 'trap "" TERM; echo "$$ $$" > "$0.pids"; while :; do sleep 0.1; done'
    async with worker(server, "--grace", "0", script(tmp_path, stubborn)) as process:
        await until(lambda: len(pids(tmp_path)) == 2, 20)
        code, _, _ = await ended(process)
    assert (code, task.status) == (0, "PENDING")
    assert not alive(pids(tmp_path)[0])


async def test_a_worker_that_is_killed_takes_its_program_and_what_that_started_with_it(
    server: Stub, tmp_path: Path
) -> None:
    server.add("work", {})
    async with worker(server, script(tmp_path, HANGS)) as process:
        await until(lambda: len(pids(tmp_path)) == 2, 20)
        os.killpg(process.pid, signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids(tmp_path)), 20)


async def test_a_program_that_ignores_sigterm_does_not_outlive_a_killed_worker(server: Stub, tmp_path: Path) -> None:
    server.add("work", {})
    stubborn = 'trap "" TERM; echo "$$ $$" > "$0.pids"; while :; do sleep 0.1; done'
    async with worker(server, script(tmp_path, stubborn)) as process:
        await until(lambda: len(pids(tmp_path)) == 2, 20)
        process.kill()
        await until(lambda: not alive(pids(tmp_path)[0]), 20)


async def test_a_lost_lease_ends_the_program_and_nothing_is_sent(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    async with worker(server, "--lease", "1", script(tmp_path, HANGS)):
        await until(lambda: len(pids(tmp_path)) == 2, 20)
        task.lease += 1
        task.until += 60
        await until(lambda: not any(alive(pid) for pid in pids(tmp_path)))
    assert [server.calls[word] for word in ("result", "nack", "abandon")] == [0, 0, 0]


async def test_sigterm_lets_the_program_end_and_ctrl_c_does_not_reach_it(server: Stub, tmp_path: Path) -> None:
    task = server.add("work", {})
    waits = 'echo "$$ $$" > "$0.pids"; while [ ! -e "$0.go" ]; do sleep 0.05; done; echo "{\\"went\\": true}"'
    async with worker(server, script(tmp_path, waits)) as process:
        await until(lambda: len(pids(tmp_path)) == 2, 20)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does on ctrl-c
        later = server.add("work", {})
        (tmp_path / "script.sh.go").touch()
        await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, result_of(task), later.lease) == (0, {"went": True}, 0)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["./there-is-no-such-program"], "is not a program that can be run"),
        (["cat"], "the server refuses this worker: 401"),
    ],
)
async def test_a_worker_that_cannot_work_is_refused_in_one_line(server: Stub, words: list[str], text: str) -> None:
    server.faults["stream"] = [401, 401]
    process = await started(server.url, *words)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    *introduction, line = errors.decode().splitlines()
    assert introduction in ([], [f"Working on work for {server.url}; Ctrl-C stops."])
    assert text in line
