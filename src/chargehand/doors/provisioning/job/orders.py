"""The payload of a job: a server and a recipe. The recipe is stored encrypted, since it holds passwords, beside the part that may be shown."""

from functools import lru_cache
from typing import Any

import msgspec

from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.recipe.text import Text
from chargehand.doors.provisioning.vault import Vault
from chargehand.engine.job import NOT_SHOWN, Job, shown_payload


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first part of a job's payload. The whole recipe follows it, as encrypted bytes."""

    server_serial: str
    recipe: dict[str, Any]  # without its secrets
    sealed: bytes = b""  # the whole recipe, in releases before 0.2


class JobMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of a job: enough for a list."""

    server_serial: str = ""
    task_target: str = ""
    system_uuid: str | None = None  # from the server's record: the machine may check that it is the right one
    metadata: dict[str, Any] = {}  # the caller's own


_orders = msgspec.json.Decoder(Order)
_asked = msgspec.json.Decoder(JobMetadata)


class Orders:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def seal(self, job_id: str, server_serial: str, shown: Recipe, recipe: Text) -> bytes:
        head = msgspec.json.encode(Order(server_serial, shown.plain))
        return self._vault.seal(_context(job_id), recipe, head + NOT_SHOWN)

    def open(self, job: Job) -> Recipe:
        sealed = memoryview(job.payload)[len(shown_payload(job.payload)) + len(NOT_SHOWN) :]
        return Recipe.of(msgspec.json.decode(self._vault.open(_context(job.id), sealed or order_of(job).sealed)))


def order_of(job: Job) -> Order:
    return _orders.decode(shown_payload(job.payload))


def metadata_of(job: Job) -> JobMetadata:
    return _decode_asked(job.metadata or b"{}")


@lru_cache(maxsize=4096)
def _decode_asked(metadata: bytes) -> JobMetadata:
    return _asked.decode(metadata)


def _context(job_id: str) -> str:
    return f"recipe/{job_id}"
