"""Run a program as a worker: it gets the payload on stdin and writes the result to stdout.

| the program …                   | the task …                                                        |
|---------------------------------|-------------------------------------------------------------------|
| exits with 0                    | is COMPLETED; stdout is the result                                |
| exits with 75, or by a signal   | is tried again                                                    |
| exits with a code of --fail-on  | is FAILED                                                         |
| exits with any other code       | is tried again, while it has attempts; the end of stderr says why |

A line `progress 42 text` on stderr reports progress; files in the directory CHARGEHAND_FILES go with the result. No shell is
involved: the program gets its arguments as they are.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from chargehand.client import ClientError, Fail, Held, Retry, TaskEnded, Worker
from chargehand.commands.worker.files import attach_all, files_folder
from chargehand.commands.worker.output import StandardError, StandardOutput
from chargehand.errors import ConfigError
from chargehand.lifeline import Guardian, signal_group

KILL_SECONDS = 10.0
CHUNK = 64 << 10
LEFT_OPEN_SECONDS = 2.0  # for output of processes that the program leaves behind


@dataclass(frozen=True)
class Program:
    """A worker's function: it runs the program once for each task."""

    words: Sequence[str]
    timeout_seconds: float | None = None
    fail_on: Collection[int] = ()
    guardian: Guardian | None = None

    async def __call__(self, task: Held) -> dict[str, Any]:
        with files_folder() as files:
            return await self._run(task, files)

    async def _run(self, task: Held, files: Path) -> dict[str, Any]:
        # The program does not get the worker's token.
        environ = {name: value for name, value in os.environ.items() if name != "CHARGEHAND_TOKEN"} | {
            "CHARGEHAND_TASK_ID": task.id,
            "CHARGEHAND_COMMAND": task.command,
            "CHARGEHAND_ATTEMPT": str(task.attempt),
            "CHARGEHAND_FILES": str(files),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self.words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise Retry(None, f"{self.words[0]} cannot be started: {error}") from None
        output, errors = StandardOutput(), StandardError(task)
        self._guard(process.pid)
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await _talk(process, task.task.payload_json.encode(), output, errors)
        except TimeoutError:
            await _surely_end_group(process)
            raise Retry(None, f"still running after {self.timeout_seconds:g} s") from None
        except BaseException:
            await _surely_end_group(process)  # the lease was lost, or the worker stops
            raise
        finally:
            self._unguard(process.pid)
        return self._outcome(process.returncode or 0, output, errors, task, files)

    def _guard(self, group: int) -> None:
        if self.guardian is not None:
            self.guardian.watch(group)

    def _unguard(self, group: int) -> None:
        if self.guardian is not None:
            self.guardian.leave(group)

    def _outcome(
        self, code: int, output: StandardOutput, errors: StandardError, task: Held, files: Path
    ) -> dict[str, Any]:
        if code == 0:
            attach_all(files, task)
            return output.result(task)
        if code < 0:
            raise Retry(None, errors.reason(f"ended by signal {-code}"))
        if code in self.fail_on:
            attach_all(files, task)
            raise Fail(errors.reason(f"exit code {code}"))
        raise Retry(None, errors.reason(f"exit code {code}"))


async def _talk(process: Process, payload: bytes, output: StandardOutput, errors: StandardError) -> None:
    """Write the payload and read the output until the program has exited."""
    assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018 - they are pipes, see above
    reading = [
        asyncio.create_task(_read(process.stdout, output)),
        asyncio.create_task(_read(process.stderr, errors)),
        asyncio.create_task(_write(process.stdin, payload)),
    ]
    try:
        await process.wait()
        # A process that it started may keep its output open.
        await asyncio.wait(reading, timeout=LEFT_OPEN_SECONDS)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _read(stream: asyncio.StreamReader, into: StandardOutput | StandardError) -> None:
    while chunk := await stream.read(CHUNK):
        into.add(chunk)


async def _write(stream: asyncio.StreamWriter, payload: bytes) -> None:
    """A program need not read its payload."""
    with contextlib.suppress(ConnectionError):
        stream.write(payload)
        await stream.drain()
        stream.close()
        await stream.wait_closed()


async def _surely_end_group(process: Process) -> None:
    """End the group even if this is cancelled again meanwhile."""
    ending = asyncio.create_task(_end_group(process))
    while not ending.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({ending})


async def _end_group(process: Process) -> None:
    """Send SIGTERM to the program and all that it started, and SIGKILL after a while."""
    if not signal_group(process.pid, signal.SIGTERM):
        return
    until = time.monotonic() + KILL_SECONDS
    while time.monotonic() < until:
        if not signal_group(process.pid, 0):
            break
        await asyncio.sleep(0.05)
    signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def print_ended(ended: TaskEnded, as_json: bool, out: IO[str]) -> None:
    """Print a line for a task that has ended."""
    task = ended.task
    if as_json:
        line = {
            "task": task.id,
            "command": task.command,
            "attempt": task.attempts,
            "outcome": ended.word,
            "seconds": round(ended.seconds, 3),
            "text": ended.text,
        }
        print(msgspec.json.encode(line).decode(), file=out, flush=True)
        return
    why = " ".join(ended.text.split())[:200]
    word = "nacked" if ended.word == "retry" else ended.word  # "retry in 2 s" would be about the next try
    text = f"{time.strftime('%H:%M:%S')}  {task.command} {task.id}  {word} in {ended.seconds:.2f} s"
    print(f"{text}  {why}" if why else text, file=out, flush=True)


async def work(
    program: Program,
    commands: Sequence[str],
    url: str,
    token: str,
    concurrency: int,
    lease_seconds: float,
    grace_seconds: float,
    *,
    as_json: bool,
    out: IO[str] | None = None,
) -> None:
    """Work until a signal. ConfigError if the program cannot be run or the server refuses the worker."""
    if shutil.which(program.words[0]) is None:
        raise ConfigError(f"{program.words[0]} is not a program that can be run")
    out = out or (sys.stdout if as_json else sys.stderr)
    worker = Worker(
        url,
        token,
        concurrency=concurrency,
        lease_seconds=lease_seconds,
        grace_seconds=grace_seconds,
        watch=lambda ended: print_ended(ended, as_json, out),
    )
    with Guardian() as guardian:
        guarded = replace(program, guardian=guardian)
        for command in {command.strip().lower(): command for command in commands}.values():
            worker.task(command)(guarded)
        if not as_json:
            print(worker.introduction, file=out, flush=True)
        try:
            await worker.serve()
        except ClientError as error:
            raise ConfigError(f"the server refuses this worker: {error}") from None
