"""Translate requests of OpenAI's and Anthropic's APIs into native ones. `shapes` formats the answers."""

import itertools
from typing import Any

import msgspec
from aiohttp import web

from chargehand.doors.inference.embedded.backend import Failure
from chargehand.doors.inference.embedded.generations import Generations
from chargehand.doors.inference.embedded.requests import ChatRequest, GenerateRequest, Message, parse
from chargehand.doors.inference.embedded.shapes import ChatCompletion, Completion, Messages

SAMPLING = ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")


class Sampled(msgspec.Struct):
    """Fields that all three requests have."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_tokens: int | None = None

    def options(self, stop: str | list[str] | None, limit: int | None = None) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        if (limit := self.max_tokens or limit) is not None:
            options["num_predict"] = limit
        if stop:
            options["stop"] = [stop] if isinstance(stop, str) else stop
        return options


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class OpenAIRequest(Sampled):
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class Said(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatCompletionRequest(OpenAIRequest):
    messages: list[Said] | None = None
    max_completion_tokens: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionRequest(OpenAIRequest):
    prompt: str | None = None
    suffix: str | None = None


class MessagesRequest(Sampled):
    messages: list[Said] | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[Any] | None = None


class Compatible:
    def __init__(self, generations: Generations) -> None:
        self._generations = generations
        self._numbers = itertools.count(1)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        asked = parse(await request.read(), ChatCompletionRequest)
        if not asked.messages:
            raise Failure(400, "[] is too short - 'messages'")
        native = ChatRequest(
            model=asked.model,
            messages=[Message(said.role, as_text(said.content)) for said in asked.messages],
            stream=bool(asked.stream),
            format=native_format(asked.response_format or {}),
            tools=asked.tools,
            think=True if asked.reasoning_effort not in (None, "", "none") else None,
            options=asked.options(asked.stop, asked.max_completion_tokens),
            logprobs=asked.logprobs,
            top_logprobs=asked.top_logprobs,
        )
        shape = ChatCompletion(asked.model or "", next(self._numbers), usage=asked.wants_usage)
        return await self._generations.answer(request, native, shape)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer with the prompt in the model's template, as Ollama does: it is not used raw."""
        asked = parse(await request.read(), CompletionRequest)
        native = GenerateRequest(
            model=asked.model,
            prompt=asked.prompt,
            suffix=asked.suffix,
            stream=bool(asked.stream),
            options=asked.options(asked.stop),
        )
        shape = Completion(asked.model or "", next(self._numbers), usage=asked.wants_usage)
        return await self._generations.answer(request, native, shape)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Answer; ignore `thinking`, as Ollama does here for models that cannot."""
        asked = parse(await request.read(), MessagesRequest)
        if not asked.model:
            raise Failure(400, "model is required")
        if (asked.max_tokens or 0) <= 0:
            raise Failure(400, "max_tokens is required and must be positive")
        if not asked.messages:
            raise Failure(400, "messages is required")
        system = [Message("system", as_text(asked.system))] if asked.system else []
        native = ChatRequest(
            model=asked.model,
            messages=[*system, *[Message(said.role, as_text(said.content)) for said in asked.messages]],
            stream=bool(asked.stream),
            tools=asked.tools,
            options=asked.options(asked.stop_sequences),
        )
        return await self._generations.answer(request, native, Messages(asked.model, next(self._numbers)))


def as_text(content: str | list[dict[str, Any]] | None) -> str:
    """Return the text of a message, or raise Failure for other parts: our models read only text."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content or ():
        if not isinstance(part.get("text"), str):
            raise Failure(400, "invalid message format")
        texts.append(part["text"])
    return "\n".join(texts)


def native_format(form: dict[str, Any]) -> Any:
    match form:
        case {"type": "json_object"}:
            return "json"
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return schema
        case _:
            return None
