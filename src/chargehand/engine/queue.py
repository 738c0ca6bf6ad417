"""Queues as values: the one that a job is in, and many at once for those who claim from many."""

from functools import lru_cache

import msgspec


class Queue(msgspec.Struct, frozen=True, array_like=True, order=True, cache_hash=True, gc=False):
    """Where a job waits: which door's it is, whose, and what it is called there. It exists once a job is in it.

    With a node: for jobs that only this one node can finish, since their caller holds a connection to it.
    """

    kind: str
    tenant: str
    name: str
    node: str = ""

    def __str__(self) -> str:
        """For metrics and logs."""
        return f"{self.kind}/{self.tenant}/{self.name}"

    @property
    def shared(self) -> "Queue":
        """The queue of the same name for all nodes."""
        return Queue(self.kind, self.tenant, self.name) if self.node else self


class Queues(msgspec.Struct, frozen=True, array_like=True, cache_hash=True, gc=False):
    """Many queues of a kind: those of a tenant, those of a name, or all. None means any.

    Queues of a single node are never among them.
    """

    kind: str
    tenant: str | None = None
    name: str | None = None

    def has(self, queue: Queue) -> bool:
        return (
            queue.kind == self.kind
            and self.tenant in (None, queue.tenant)
            and self.name in (None, queue.name)
            and not queue.node
        )


Wanted = Queue | Queues  # what a claim may name


@lru_cache(maxsize=4096)
def all_with(queue: Queue) -> tuple[Queues, ...]:
    """The values that mean this queue among others, the narrowest first."""
    if queue.node:
        return ()
    kind, tenant, name = queue.kind, queue.tenant, queue.name
    return Queues(kind, tenant), Queues(kind, None, name), Queues(kind)
