"""llama.cpp as an engine: one process for each model, called over loopback."""

import asyncio
import contextlib
import os
import re
import secrets
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import msgspec

from chargehand.doors.inference.embedded.backend import End, Failure, LoadOptions, Messages, Piece, Prompt, Sampling
from chargehand.doors.inference.embedded.catalogue import Model
from chargehand.doors.inference.embedded.schemas import tightened

LOAD_SECONDS: Final = 300.0
LONGEST_LINE: Final = 64 << 20  # the last line of a generation repeats its prompt
GONE: Final = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, "
    "check ollama server logs for details"
)
BROKEN: Final = "an error was encountered while running the model: unexpected EOF"

_LOAD_ERROR = re.compile(r"error loading model: (.+)")
_PREFIX = re.compile(r"^[\d.]+ E (?:\w+ +)?\w+: ")


class LlamaCpp:
    def __init__(self, parallel: int) -> None:
        self._parallel = parallel

    async def load(self, model: Model, options: LoadOptions) -> "LlamaRunner":
        key = secrets.token_hex(16)
        settings = _settings(model, options, self._parallel, key)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chargehand.doors.inference.embedded.llama_process"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                url = await _started(process, settings)
        except TimeoutError:
            await _end(process)
            raise Failure(500, "timed out waiting for llama-server to start - ") from None
        except BaseException:
            await _end(process)
            raise
        return LlamaRunner(process, url, key)


class LlamaRunner:
    """A model in memory: a process, and a connection to it."""

    def __init__(self, process: Process, url: str, key: str) -> None:
        self._process = process
        self._http = aiohttp.ClientSession(
            url,
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
            # llama.cpp may close idle connections at any time.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            read_bufsize=LONGEST_LINE,
        )

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not self._http.closed

    def memory_bytes(self) -> int:
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def render(self, messages: Messages) -> str:
        return str((await self._ask("/apply-template", {"messages": messages}))["prompt"])

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        answer = await self._ask("/tokenize", {"content": text, "add_special": special})
        return list(answer["tokens"])

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return str((await self._ask("/detokenize", {"tokens": tokens}))["content"])

    async def embed(self, text: str) -> tuple[list[float], int]:
        answer = await self._ask("/v1/embeddings", {"input": text, "embd_normalize": -1})
        return list(answer["data"][0]["embedding"]), int(answer["usage"]["prompt_tokens"])

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece]:
        body = msgspec.json.encode({"prompt": prompt, "stream": True, "cache_prompt": True, **_sampling(sampling)})
        started = False
        try:
            # Leaving this block early closes the connection, which makes llama.cpp stop.
            async with self._http.post("/completion", data=body) as response:
                await _check(response)
                async for line in response.content:
                    if not line.startswith((b"data: ", b"error: ")):
                        continue
                    event = msgspec.json.decode(line.partition(b": ")[2])
                    if "error" in event or line.startswith(b"error"):
                        raise _failure(500, event)
                    started = True
                    yield _piece(event, sampling)
                    if event.get("stop"):
                        return
        except aiohttp.ClientError as error:
            raise Failure(500, BROKEN if started else GONE) from error
        raise Failure(500, BROKEN if started else GONE)

    async def close(self) -> None:
        await self._http.close()
        await _end(self._process)

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            async with self._http.post(path, data=msgspec.json.encode(body)) as response:
                await _check(response)
                return msgspec.json.decode(await response.read())
        except aiohttp.ClientError as error:
            raise Failure(500, GONE) from error


# the process ----------------------------------------------------------------------------------------------------------


def _settings(model: Model, options: LoadOptions, parallel: int, key: str) -> dict[str, Any]:
    """Return the settings for `llama_process`, sent over its standard input, so that the key is not in the process list."""
    return {
        "path": str(model.path),
        "name": model.name,
        "pools": model.header.pools,
        "parallel": parallel,
        "num_ctx": options.num_ctx,
        "num_batch": min(options.num_batch, options.num_ctx),
        "num_thread": options.num_thread,
        "shift": options.shift,
        "key": key,
    }


async def _started(process: Process, settings: Mapping[str, Any]) -> str:
    """Return the URL of a new process. Its standard input stays open: when we exit, it reads its end and exits too."""
    writer, reader = cast(StreamWriter, process.stdin), cast(StreamReader, process.stdout)
    with contextlib.suppress(ConnectionError):
        writer.write(msgspec.json.encode(settings) + b"\n")
        await writer.drain()
    if line := await reader.readline():
        return str(msgspec.json.decode(line)["url"])
    errors = (await cast(StreamReader, process.stderr).read()).decode(errors="replace").strip()
    code = await process.wait()
    raise Failure(500, f"llama-server process has terminated: exit status {code}{_reason(errors)}")


def _reason(errors: str) -> str:
    """Return why a load failed, from the process's standard error."""
    if found := _LOAD_ERROR.search(errors):
        return f": error loading model: {found[1]}"
    lines = errors.splitlines()
    return f": {_PREFIX.sub('', lines[-1])}" if lines else ""


async def _end(process: Process) -> None:
    """Kill the process: there is nothing to save."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await asyncio.shield(process.wait())


# the wire -------------------------------------------------------------------------------------------------------------


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling options by llama.cpp's names."""
    body: dict[str, Any] = {
        "n_predict": sampling.num_predict,
        "n_keep": sampling.num_keep,
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": sampling.stop,
    }
    if sampling.schema is not None:
        body["json_schema"] = tightened(sampling.schema)
    if sampling.top_logprobs is not None:
        body["n_probs"] = max(sampling.top_logprobs, 1)
    return body


def _piece(event: Mapping[str, Any], sampling: Sampling) -> Piece:
    text = event.get("content", "")
    logprobs = [_logprob(one, sampling.top_logprobs or 0) for one in event.get("completion_probabilities", ())]
    if not event.get("stop"):
        return Piece(text, None, logprobs)
    timings = event["timings"]
    end = End(
        "length" if event["stop_type"] == "limit" else "stop",
        timings["cache_n"] + timings["prompt_n"],
        timings["prompt_ms"] / 1000,
        timings["predicted_n"],
        timings["predicted_ms"] / 1000,
    )
    return Piece(text, end, logprobs)


def _logprob(one: Mapping[str, Any], top: int) -> dict[str, Any]:
    shown = {"token": one["token"], "logprob": one["logprob"], "bytes": one["bytes"]}
    if top:
        shown["top_logprobs"] = [_logprob(other, 0) for other in one.get("top_logprobs", ())]
    return shown


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        body: Any = await response.read()
        with contextlib.suppress(msgspec.DecodeError):
            body = msgspec.json.decode(body)
        raise _failure(response.status, body)


def _failure(status: int, body: Any) -> Failure:
    """Parse an error: {"error": {"code", "message", …}}, or the inner part alone, or text."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return Failure(status, error.decode(errors="replace") if isinstance(error, bytes) else str(error))
    return Failure(int(error.get("code") or status), str(error.get("message", error)))
