"""The protocol of an engine that runs models. `llama.py` implements it; another engine would be a file beside it."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from chargehand.doors.inference.embedded.catalogue import Model

Messages = Sequence[Mapping[str, Any]]
Prompt = str | list[int]


class Failure(Exception):
    """An error answer: its status, and Ollama's text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True)
class LoadOptions:
    """Options with which a model is loaded. A request with other options makes it load again."""

    num_ctx: int  # for each of the parallel requests
    num_batch: int  # tokens of a prompt that are processed at once; the input of an embedding must fit
    num_thread: int
    shift: bool  # whether a full context drops old tokens, or ends the generation


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when to stop. The defaults are Ollama's."""

    num_predict: int = -1
    num_keep: int = 4
    seed: int = -1
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None  # the output must match this JSON Schema
    top_logprobs: int | None = None  # None: no probabilities


@dataclass(frozen=True)
class End:
    """How a generation ended."""

    reason: Literal["stop", "length"]
    prompt_tokens: int
    prompt_seconds: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Piece:
    """A piece of a generation, usually one token. The last one has an end."""

    text: str
    end: End | None = None
    logprobs: Sequence[Mapping[str, Any]] = ()


class Running(Protocol):
    """A model in memory. To stop a generation, close its iterator or cancel the task that waits for it."""

    @property
    def alive(self) -> bool: ...
    def memory_bytes(self) -> int: ...
    async def render(self, messages: Messages) -> str:
        """Return the prompt for a conversation, by the model's own template."""

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]: ...
    async def detokenize(self, tokens: Sequence[int]) -> str: ...
    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece]: ...
    async def embed(self, text: str) -> tuple[list[float], int]:
        """Return the vector, not normalised, and the number of tokens."""

    async def close(self) -> None:
        """Free its memory. May be called again."""


class Backend(Protocol):
    async def load(self, model: Model, options: LoadOptions) -> Running:
        """Load a model and return when it is ready. If cancelled, free everything."""
