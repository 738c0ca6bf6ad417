"""What is due in the queues that somebody wants, where many are meant at once."""

from collections.abc import Iterable, Sequence

from chargehand.engine.queue import Queue, Queues, Wanted
from chargehand.engine.reads import DueQueue, JobReads, QueueHead

MAX_QUEUES = 100  # that a claim looks into; the most urgent job is in the first of them


async def due_by_tenant(store: JobReads, wanted: Sequence[Wanted]) -> dict[str, tuple[Queue, ...]]:
    """The wanted queues with something due, by tenant: the most urgent of them."""
    found: dict[str, dict[Queue, QueueHead]] = {}
    for kind, tenant in {(each.kind, each.tenant) for each in wanted}:
        for head in await store.queue_heads(kind, 1, tenant, wide=True):
            if head.ready and any(_means(each, head.queue) for each in wanted):
                found.setdefault(head.queue.tenant, {})[head.queue] = head
    return {tenant: _most_urgent(heads.values()) for tenant, heads in found.items()}


def _means(wanted: Wanted, queue: Queue) -> bool:
    return wanted.has(queue) if isinstance(wanted, Queues) else wanted == queue


def _most_urgent(heads: Iterable[QueueHead]) -> tuple[Queue, ...]:
    by_urgency = sorted(heads, key=lambda head: (-head.priority, head.oldest_at or 0))
    return tuple(head.queue for head in by_urgency[:MAX_QUEUES])


async def due_queues(store: JobReads, wanted: Sequence[Wanted], bound: int) -> list[DueQueue]:
    """What there is to do in queues that somebody waits for, one by one or many at once."""
    named = {queue for queue in wanted if isinstance(queue, Queue)}
    many = [queues for queues in wanted if isinstance(queues, Queues)]
    due = await store.due_queues(list(named), bound)
    for kind, tenant in {(queues.kind, queues.tenant) for queues in many}:
        for head in await store.queue_heads(kind, bound, tenant, wide=True):
            # Only what somebody waits for: each delayed job of another queue would make us look once more.
            if head.queue not in named and any(queues.has(head.queue) for queues in many):
                named.add(head.queue)
                due.append(DueQueue(head.queue, head.ready, head.next_at))
    return due
