"""Chat and generate: from a request to its answer."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from aiohttp import web

from chargehand.doors.inference.embedded.backend import End, Failure, Prompt, Running, Sampling
from chargehand.doors.inference.embedded.catalogue import Catalogue, Model
from chargehand.doors.inference.embedded.requests import (
    ChatRequest,
    GenerateRequest,
    Message,
    check_name,
    check_options,
    keep_alive_seconds,
    load_options,
    parse,
    quoted,
    sampling,
)
from chargehand.doors.inference.embedded.residents import Resident, Residents
from chargehand.doors.inference.embedded.shapes import Chat, Chunk, Generate, Shape, Stats, dumps, now_text

TOO_LONG: Final = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, "
    "adjust the context length in settings, or use a model with a longer context length"
)
THINKS: Final = (None, True, False, "low", "medium", "high", "max")

Asked = ChatRequest | GenerateRequest


@dataclass(frozen=True)
class Work:
    """A valid request with its model and options."""

    asked: Asked
    model: Model
    options: dict[str, object]
    keep_alive: float | None
    started_at: int  # nanoseconds of the monotonic clock


class Generations:
    def __init__(self, catalogue: Catalogue, residents: Residents, threads: int) -> None:
        self._catalogue = catalogue
        self._residents = residents
        self._threads = threads

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = parse(await request.read(), ChatRequest)
        return await self.answer(request, asked, Chat(asked.model or ""))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        asked = parse(await request.read(), GenerateRequest)
        return await self.answer(request, asked, Generate(asked.model or ""))

    async def answer(self, request: web.Request, asked: Asked, shape: Shape) -> web.StreamResponse:
        """Answer a request of any API: the main path."""
        work = self._checked(asked)
        if wants_unload(work):
            self._residents.expire(work.model)
            return whole(shape, Chunk("", reason="unload"))
        options = load_options(work.options, work.model, self._threads, asked.shift)
        async with self._residents.use(work.model, options, work.keep_alive) as resident:
            loaded_at = time.monotonic_ns()
            if is_empty(asked):
                return whole(shape, Chunk("", reason="load"))
            prompt = await render(resident, asked)
            if asked.debug_render_only:
                return rendered(asked, await as_text(resident.running, prompt))
            choices = sampling(work.options, asked, options.num_ctx)
            chunks = self._chunks(work, resident, prompt, choices, loaded_at)
            async with aclosing(chunks):
                if asked.stream is False:
                    return whole(shape, await joined(chunks))
                return await streamed(request, shape, chunks)

    def _checked(self, asked: Asked) -> Work:
        """Validate in Ollama's order, so that of two mistakes the same one is reported."""
        started_at = time.monotonic_ns()
        is_chat = isinstance(asked, ChatRequest)
        keep_alive = keep_alive_seconds(asked.keep_alive)
        if asked.think not in THINKS:
            legal = 'must be "high", "medium", "low", "max", true, or false'
            raise Failure(400, f"invalid think value: {quoted(str(asked.think))} ({legal})")
        if not 0 <= (asked.top_logprobs or 0) <= 20:
            raise Failure(400, "top_logprobs must be between 0 and 20")
        name = asked.model or ""
        if not name.strip():
            raise Failure(400, "model is required") if is_chat else Failure(404, "model '' not found")
        check_name(name)
        model = self._catalogue.get(name)
        if model is None:
            raise Failure(404, f"model '{name}' not found")
        work = Work(asked, model, {}, keep_alive, started_at)
        if not wants_unload(work):
            check_capabilities(asked, model)
        return replace(work, options=check_options(asked.options))

    async def _chunks(
        self, work: Work, resident: Resident, prompt: Prompt, choices: Sampling, loaded_at: int
    ) -> AsyncGenerator[Chunk]:
        """Yield the answer, token by token; the last chunk has the statistics."""
        said: list[str] = []
        async with resident.places, aclosing(resident.running.generate(prompt, choices)) as pieces:
            async for piece in pieces:
                if piece.end:
                    break
                if piece.text or piece.logprobs:
                    said.append(piece.text)
                    yield Chunk(piece.text, piece.logprobs)
            else:
                raise Failure(500, "the generation ended without its last piece")
        said.append(piece.text)
        context = await self._context(work.asked, resident.running, prompt, "".join(said))
        stats = statistics(work.started_at, loaded_at, piece.end)
        yield Chunk(piece.text, piece.logprobs, piece.end.reason, stats, context)

    async def _context(self, asked: Asked, running: Running, prompt: Prompt, said: str) -> list[int]:
        """Return the tokens that a caller of generate may send with the next prompt."""
        if isinstance(asked, ChatRequest) or asked.raw:
            return []
        return await running.tokenize(await as_text(running, prompt) + said)


# a request ------------------------------------------------------------------------------------------------------------


def is_empty(asked: Asked) -> bool:
    return not (asked.messages if isinstance(asked, ChatRequest) else asked.prompt)


def wants_unload(work: Work) -> bool:
    return is_empty(work.asked) and work.keep_alive == 0


def check_capabilities(asked: Asked, model: Model) -> None:
    """Raise Failure for what our models cannot do: tools, thinking, vision, insertion."""
    if isinstance(asked, GenerateRequest):
        if asked.raw and (asked.template or asked.system or asked.context):
            raise Failure(400, "raw mode does not support template, system, or context")
        if asked.template:
            raise Failure(
                400, f"{quoted(model.name)} does not support template: the embedded target has no Go templates"
            )
        images = bool(asked.images)
        lacking = ["insert"] if asked.suffix else []
        what = "generate"
    else:
        images = any(message.images for message in asked.messages or ())
        lacking = ["tools"] if asked.tools else []
        what = "chat"
    if asked.think:
        raise Failure(400, f"{quoted(asked.model or '')} does not support thinking")
    if "completion" not in model.capabilities:
        raise Failure(400, f"{quoted(asked.model or '')} does not support {what}")
    lacking += ["vision"] if images else []
    if lacking:
        raise Failure(400, f"{model.name} does not support {lacking[0]}")


# its prompt -----------------------------------------------------------------------------------------------------------


async def render(resident: Resident, asked: Asked) -> Prompt:
    """Return the prompt, truncated to the context unless that is forbidden: a chat by its oldest messages, else by tokens."""
    running, options = resident.running, resident.options
    if isinstance(asked, ChatRequest):
        messages = asked.messages or []
        if asked.truncate is not False:
            messages = await recent(running, messages, options.num_ctx)
        return await running.render([message.for_template() for message in messages])
    text = asked.prompt or ""
    if not asked.raw:
        text = await render_generate(running, asked)
    if asked.truncate is False or len(text.encode()) < options.num_ctx:
        return text
    tokens = await running.tokenize(text, special=True)
    if len(tokens) < options.num_ctx:
        return text
    if not options.shift:
        raise Failure(400, TOO_LONG)
    keep = min(int(check_options(asked.options).get("num_keep", 4)) + 1, options.num_ctx - 1)
    # Drop as many tokens as a full context drops at its first shift.
    limit = options.num_ctx - max((options.num_ctx - keep) // 2, 1)
    return tokens[:keep] + tokens[len(tokens) - (limit - keep) :]


async def render_generate(running: Running, asked: GenerateRequest) -> str:
    system = [{"role": "system", "content": asked.system}] if asked.system else []
    prompt = await running.render([*system, {"role": "user", "content": asked.prompt or ""}])
    before = await running.detokenize(asked.context) if asked.context else ""
    return before + prompt


async def recent(running: Running, messages: list[Message], context: int) -> list[Message]:
    """Return the system messages, and as many of the last others as fit, at least one."""

    def since(start: int) -> list[Message]:
        return [message for message in messages[:start] if (message.role or "").lower() == "system"] + messages[start:]

    async def fits(start: int) -> bool:
        prompt = await running.render([message.for_template() for message in since(start)])
        return len(prompt.encode()) < context or len(await running.tokenize(prompt)) <= context

    first, last = 0, len(messages) - 1
    if last < 1 or await fits(first):
        return messages
    while last - first > 1:  # binary search: there may be very many, and each try renders all the rest
        middle = (first + last) // 2
        first, last = (first, middle) if await fits(middle) else (middle, last)
    return since(last)


async def as_text(running: Running, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else await running.detokenize(prompt)


# its answer -----------------------------------------------------------------------------------------------------------


def statistics(started_at: int, loaded_at: int, end: End) -> Stats:
    return Stats(
        total_duration=time.monotonic_ns() - started_at,
        load_duration=loaded_at - started_at,
        prompt_eval_count=end.prompt_tokens,
        prompt_eval_duration=round(end.prompt_seconds * 1e9),
        eval_count=end.tokens,
        eval_duration=round(end.seconds * 1e9),
    )


async def joined(chunks: AsyncIterator[Chunk]) -> Chunk:
    every = [chunk async for chunk in chunks]
    logprobs = [one for chunk in every for one in chunk.logprobs]
    return replace(every[-1], text="".join(chunk.text for chunk in every), logprobs=logprobs)


def whole(shape: Shape, chunk: Chunk) -> web.Response:
    return web.Response(body=shape.whole(chunk), content_type="application/json", charset="utf-8")


def rendered(asked: Asked, prompt: str) -> web.Response:
    info = {"rendered_template": prompt}
    body = {"model": asked.model, "created_at": now_text(), "done": False, "_debug_info": info}
    return web.Response(body=dumps(body), content_type="application/json", charset="utf-8")


async def streamed(request: web.Request, shape: Shape, chunks: AsyncIterator[Chunk]) -> web.StreamResponse:
    """Stream the chunks. Headers are sent with the first token, so that an earlier failure has its own status."""
    response = web.StreamResponse(headers={"Content-Type": shape.stream_type})
    try:
        async for chunk in chunks:
            if not response.prepared:
                await response.prepare(request)
            await response.write(shape.chunk(chunk))
    except Failure as failure:
        if not response.prepared:
            raise
        if text := shape.broken(failure.text):
            await response.write(text)
    return response
