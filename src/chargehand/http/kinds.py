"""What a caller needs, besides the scope of the route, for a job of a certain kind.

The engine's own API, the outbox and the console show jobs of all doors. None of them is a way around what the job's own door
asks for: each kind says which scopes read, cancel and requeue its jobs, and any one of those named is enough.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from chargehand.engine.flow import KIND as FLOW
from chargehand.engine.job import Job
from chargehand.engine.reads import JobReads, StepFilter
from chargehand.errors import Forbidden


class KindScopes(NamedTuple):
    read: tuple[str, ...]
    cancel: tuple[str, ...]
    requeue: tuple[str, ...]


UNKNOWN = KindScopes(("admin",), ("admin",), ("admin",))  # of a job that another release left behind


class Scoped(Protocol):
    def may(self, scope: str) -> bool: ...


class Kinds:
    """Every kind of job there is, those of doors that are switched off among them."""

    def __init__(self, scopes: Mapping[str, KindScopes]) -> None:
        self._scopes = dict(scopes)

    def of(self, kind: str) -> KindScopes:
        return self._scopes.get(kind, UNKNOWN)

    def readable(self, caller: Scoped) -> tuple[str, ...]:
        """The kinds whose jobs this caller may see."""
        return tuple(kind for kind, scopes in self._scopes.items() if _holds_one(caller, scopes.read))

    def may_read(self, caller: Scoped, kind: str) -> bool:
        return _holds_one(caller, self.of(kind).read)

    async def require_throughout(
        self, caller: Scoped, jobs: JobReads, job: Job, scopes: Callable[[KindScopes], tuple[str, ...]]
    ) -> None:
        """Refuse a caller without the scopes for a job or, if it is a flow, for its steps: whoever changes the flow changes them."""
        kinds = {job.kind}
        if job.kind == FLOW:
            counts = (await jobs.list_steps(StepFilter(job.id, limit=0, counted=True))).counts
            kinds.update(kind for kind, _ in counts)
        for kind in kinds:
            require(caller, scopes(self.of(kind)))


def require(caller: Scoped, scopes: tuple[str, ...]) -> None:
    if not _holds_one(caller, scopes):
        named = " or ".join(f"`{each}`" for each in scopes)
        raise Forbidden(f"missing scope: for a job of this kind this needs {named}")


def _holds_one(caller: Scoped, scopes: tuple[str, ...]) -> bool:
    return any(caller.may(scope) for scope in scopes)
