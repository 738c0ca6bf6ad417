"""What the layer asks of an engine that runs models. `llama.py` is one; another would be a file beside it."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from chargehand.doors.inference.embedded.catalogue import Model

Messages = Sequence[Mapping[str, Any]]
Prompt = str | list[int]


class Failure(Exception):
    """An answer with a status other than 200, in Ollama's words."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True)
class LoadOptions:
    """What a model is loaded with. A request that wants others makes it load again."""

    num_ctx: int  # for each of the requests that run side by side
    num_batch: int  # tokens of a prompt that are read in one go; an embedding's input has to fit
    num_thread: int
    shift: bool  # whether a full context makes room for more, or ends the generation


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
    schema: Mapping[str, Any] | None = None  # the output fits this JSON Schema
    top_logprobs: int | None = None  # None: no probabilities are wanted


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
    """Of a generation: a token, as a rule. The last one has an end."""

    text: str
    end: End | None = None
    logprobs: Sequence[Mapping[str, Any]] = ()


class Running(Protocol):
    """A model in memory. To stop a generation, close its iterator or cancel who waits for it."""

    @property
    def alive(self) -> bool: ...
    def memory_bytes(self) -> int: ...
    async def render(self, messages: Messages) -> str:
        """The prompt that the model's own template makes of a conversation."""

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]: ...
    async def detokenize(self, tokens: Sequence[int]) -> str: ...
    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece]: ...
    async def embed(self, text: str) -> tuple[list[float], int]:
        """The vector, not normalised, and the number of tokens."""

    async def close(self) -> None:
        """Gives its memory back. May be called again."""


class Backend(Protocol):
    async def load(self, model: Model, options: LoadOptions) -> Running:
        """Returns when the model is ready. Cancelled, it leaves nothing behind."""
