"""Queues that a claim means without naming each: any of a tenant, or the same of every tenant."""

from functools import lru_cache

ANY = "*"


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
