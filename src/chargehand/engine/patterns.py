"""Queues that a claim means without naming each: any of a tenant, or the same of every tenant."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from chargehand.engine.reads import DueQueue, JobReads, QueueHead

ANY = "*"
MAX_QUEUES = 100  # that a claim looks into; the most urgent job is in the first of them


def is_pattern(queue: str) -> bool:
    """Queues are `kind/tenant/name`; a pattern has a star for the tenant or the name."""
    return queue.endswith("/*") or "/*/" in queue


def prefix_of(pattern: str) -> str:
    """What the names of all queues that a pattern means begin with."""
    return pattern.partition(ANY)[0] if is_pattern(pattern) else pattern


def matches(pattern: str, queue: str) -> bool:
    if pattern == queue:
        return True
    wanted, found = pattern.split("/", 2), queue.split("/", 2)
    alike = is_pattern(pattern) and len(wanted) == len(found)
    return alike and all(w in (ANY, f) for w, f in zip(wanted, found, strict=True))


@lru_cache(maxsize=4096)
def patterns_of(queue: str) -> tuple[str, ...]:
    """The patterns that mean this queue."""
    parts = queue.split("/", 2)
    if len(parts) != 3:
        return ()
    kind, tenant, name = parts
    return f"{kind}/{tenant}/*", f"{kind}/*/{name}", f"{kind}/*/*"


async def due_by_tenant(store: JobReads, queues: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The queues with something due that are meant, by tenant: the most urgent of them."""
    found: dict[str, dict[str, QueueHead]] = {}
    for prefix in {prefix_of(queue) for queue in queues}:
        for head in await store.queue_heads(prefix, 1, wide=True):
            if head.ready and any(matches(queue, head.queue) for queue in queues):
                found.setdefault(head.queue.split("/", 2)[1], {})[head.queue] = head
    return {tenant: _most_urgent(heads.values()) for tenant, heads in found.items()}


def _most_urgent(heads: Iterable[QueueHead]) -> tuple[str, ...]:
    by_urgency = sorted(heads, key=lambda head: (-head.priority, head.oldest_at or 0))
    return tuple(head.queue for head in by_urgency[:MAX_QUEUES])


async def due_queues(store: JobReads, queues: Sequence[str], bound: int) -> list[DueQueue]:
    """What there is to do in queues that somebody waits for, by name or by pattern."""
    names = {queue for queue in queues if not is_pattern(queue)}
    patterns = {queue for queue in queues if is_pattern(queue)}
    due = await store.due_queues(list(names), bound)
    for prefix in {prefix_of(pattern) for pattern in patterns}:
        for head in await store.queue_heads(prefix, bound, wide=True):
            # Only what somebody waits for: each delayed job of another queue would make us look once more.
            if head.queue not in names and any(matches(pattern, head.queue) for pattern in patterns):
                names.add(head.queue)
                due.append(DueQueue(head.queue, head.ready, head.next_at))
    return due
