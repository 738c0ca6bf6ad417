"""/api/embed, the older /api/embeddings, and OpenAI's /v1/embeddings."""

import asyncio
import base64
import math
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from chargehand.doors.inference.embedded.backend import Failure
from chargehand.doors.inference.embedded.catalogue import Catalogue, Model
from chargehand.doors.inference.embedded.requests import (
    EmbeddingsRequest,
    EmbedRequest,
    ModelRequest,
    check_name,
    check_options,
    keep_alive_seconds,
    load_options,
    parse,
    quoted,
)
from chargehand.doors.inference.embedded.residents import Resident, Residents
from chargehand.doors.inference.embedded.shapes import dumps


class OpenAIEmbeddings(msgspec.Struct):
    model: str | None = None
    input: Any = None
    dimensions: int | None = None
    encoding_format: str | None = None


class Embeddings:
    def __init__(self, catalogue: Catalogue, residents: Residents, threads: int) -> None:
        self._catalogue = catalogue
        self._residents = residents
        self._threads = threads

    async def embed(self, request: web.Request) -> web.Response:
        started_at = time.monotonic_ns()
        asked = parse(await request.read(), EmbedRequest)
        vectors, tokens, loaded_at = await self._embed(asked)
        answer: dict[str, Any] = {"model": asked.model, "embeddings": vectors}
        if vectors:
            answer["total_duration"] = time.monotonic_ns() - started_at
            answer["load_duration"] = loaded_at - started_at
            answer["prompt_eval_count"] = tokens
        return reply(answer)

    async def embeddings(self, request: web.Request) -> web.Response:
        """Answer with one vector, not normalised."""
        asked = parse(await request.read(), EmbeddingsRequest)
        if not (asked.model or "").strip():
            raise Failure(400, "model is required")
        check_name(asked.model or "")
        model = self._catalogue.get(asked.model or "")
        if model is None:
            raise Failure(404, f"model {quoted(asked.model or '')} not found, try pulling it first")
        async with self._loaded(model, asked) as resident:
            if not asked.prompt:
                return reply({"embedding": []})
            text = await fitting(resident, asked.prompt, truncate=False)
            async with resident.places:
                vector, _ = await resident.running.embed(text)
            return reply({"embedding": vector})

    async def openai(self, request: web.Request) -> web.Response:
        asked = parse(await request.read(), OpenAIEmbeddings)
        if asked.input is None or asked.input == "":
            raise Failure(400, "invalid input")
        native = EmbedRequest(model=asked.model, input=asked.input, dimensions=asked.dimensions)
        vectors, tokens, _ = await self._embed(native)
        encoded = [base64_floats(vector) if asked.encoding_format == "base64" else vector for vector in vectors]
        items = [{"object": "embedding", "embedding": one, "index": index} for index, one in enumerate(encoded)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return reply({"object": "list", "data": items, "model": asked.model, "usage": usage})

    async def _embed(self, asked: EmbedRequest) -> tuple[list[list[float]], int, int]:
        """Return vectors of length 1, their total number of tokens, and when the model was loaded."""
        texts = as_texts(asked.input)
        name = asked.model or ""
        if name.strip():
            check_name(name)
        model = self._catalogue.get(name)
        if model is None:
            raise Failure(404, f"model '{name}' not found")
        async with self._loaded(model, asked) as resident:
            loaded_at = time.monotonic_ns()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(resident, text, asked)) for text in texts]
            results = [task.result() for task in tasks]
            return [vector for vector, _ in results], sum(tokens for _, tokens in results), loaded_at

    @asynccontextmanager
    async def _loaded(self, model: Model, asked: ModelRequest) -> AsyncIterator[Resident]:
        options = load_options(check_options(asked.options), model, self._threads, None)
        async with self._residents.use(model, options, keep_alive_seconds(asked.keep_alive)) as resident:
            yield resident


def as_texts(given: Any) -> list[str]:
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(text, str) for text in given):
        return list(given)
    raise Failure(400, "invalid input type")


async def one(resident: Resident, text: str, asked: EmbedRequest) -> tuple[list[float], int]:
    text = await fitting(resident, text, truncate=asked.truncate is not False)
    async with resident.places:
        vector, tokens = await resident.running.embed(text)
    vector = normalised(vector)
    if asked.dimensions and 0 < asked.dimensions < len(vector):
        vector = normalised(vector[: asked.dimensions])
    return vector, tokens


async def fitting(resident: Resident, text: str, *, truncate: bool) -> str:
    """Return the text, truncated to one batch less two tokens (begin and end), or raise Failure if that is not allowed."""
    limit = resident.options.num_batch - 2
    if len(text.encode()) < limit:
        return text
    tokens = await resident.running.tokenize(text)
    if len(tokens) <= limit:
        return text
    if not truncate:
        raise Failure(400, "the input length exceeds the context length")
    return await resident.running.detokenize(tokens[:limit])


def normalised(vector: Sequence[float]) -> list[float]:
    length = math.sqrt(math.fsum(value * value for value in vector))
    if not math.isfinite(length):
        raise Failure(400, "embedding contains NaN or Inf values")
    return [value / max(length, 1e-12) for value in vector]


def base64_floats(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def reply(value: Any) -> web.Response:
    return web.Response(body=dumps(value), content_type="application/json", charset="utf-8")
