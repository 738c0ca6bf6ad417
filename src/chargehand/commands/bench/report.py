"""What was measured, and how it is told. What could not be measured says why."""

import math
from collections.abc import Sequence

import msgspec

from chargehand.commands.text import columns


class Rate(msgspec.Struct, frozen=True):
    """Many of the same thing."""

    count: int
    seconds: float
    per_second: float
    median_ms: float
    p99_ms: float


class FirstToken(msgspec.Struct, frozen=True):
    model: str
    median_seconds: float
    samples: int
    cold_seconds: float  # of the request before, which may have loaded the model


class Report(msgspec.Struct, kw_only=True):
    url: str
    version: str
    connections: int
    accept: Rate
    work: Rate
    deliveries: Rate | None = None
    first_token: FirstToken | None = None
    not_measured: dict[str, str] = {}


def rate(durations: Sequence[float], seconds: float) -> Rate:
    ordered = sorted(durations)
    count = len(ordered)
    return Rate(
        count,
        round(seconds, 3),
        round(count / seconds, 1) if seconds else 0.0,
        round(1000 * percentile(ordered, 50), 2),
        round(1000 * percentile(ordered, 99), 2),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent are not above."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def lines(report: Report) -> list[str]:
    rows = [
        ("accept", _told(report.accept, "jobs on disk")),
        ("work", _told(report.work, "jobs claimed and succeeded")),
    ]
    if report.deliveries:
        rows.append(("deliveries", _told(report.deliveries, "webhooks, from the acceptance to their arrival")))
    if first := report.first_token:
        told = f"{1000 * first.median_seconds:.0f} ms, median of {first.samples}, with {first.model}; the one before took {first.cold_seconds:.2f} s"
        rows.append(("first token", told))
    rows += [(what, f"not measured: {why}") for what, why in report.not_measured.items()]
    head = f"{report.url}, version {report.version}, {report.connections} connections, seen from here"
    return [head, *columns(rows, "  ")]


def _told(rate: Rate, what: str) -> str:
    took = f"half within {rate.median_ms:.1f} ms, 99 % within {rate.p99_ms:.1f} ms"
    return f"{rate.per_second:,.0f} a second ({rate.count} {what}); {took}"
