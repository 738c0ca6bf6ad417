"""Names of models. `Llama3.2`, `llama3.2` and `llama3.2:latest` are one model, with one canonical name."""

from functools import lru_cache

from chargehand.engine.queue import Queue
from chargehand.errors import Forbidden, InvalidField

TAG = "inference"
KIND = "inference"  # of jobs that a model answers; batches have a kind of their own
MAX_NAME = 200


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    name = name.strip().lower().removeprefix("registry.ollama.ai/").removeprefix("library/")
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last if ':' in last else last + ':latest'}"


def spellings(name: str) -> tuple[str, ...]:
    """Return all lower-case spellings of a model: its jobs may be in a queue of any of them."""
    whole = canonical(name)
    tags = (whole, whole.removesuffix(":latest")) if whole.endswith(":latest") else (whole,)
    homes = ("", "library/", "registry.ollama.ai/", "registry.ollama.ai/library/")
    return tuple(home + tag for tag in tags for home in homes)


def is_cloud(name: str) -> bool:
    """Return whether the model runs at ollama.com: it takes no memory of the target and is never listed as resident."""
    tag = canonical(name).rpartition(":")[2]
    return tag == "cloud" or tag.endswith("-cloud")


def checked(field: str, name: str) -> str:
    """Return the name as given, or raise InvalidField."""
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidField(field, f"must have 1 to {MAX_NAME} printable characters")
    return name


def check_model(model: str, allow_cloud: bool) -> None:
    checked("model", model)
    if is_cloud(model) and not allow_cloud:
        raise Forbidden(f"{model} would run in the cloud, which is switched off here (inference.allow_cloud)")


def queue_of(tenant: str, name: str, node: str = "") -> Queue:
    """Return the queue for a model as the caller spells it; the scheduler knows which spellings are one model.

    With a node: for callers who hold a connection to it, so that no other node claims what only that one can answer.
    """
    return Queue(KIND, tenant, name.strip(), node)


def model_of(queue: Queue) -> str:
    return canonical(queue.name)
