"""The results of `chargehand bench`, and their text. What could not be measured says why."""

from collections.abc import Sequence

import msgspec

from chargehand.commands.bench.load import quantiles
from chargehand.commands.text import columns


class Throughput(msgspec.Struct, frozen=True):
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


class BenchReport(msgspec.Struct, kw_only=True):
    url: str
    version: str
    connections: int
    accept: Throughput
    work: Throughput
    deliveries: Throughput | None = None
    first_token: FirstToken | None = None
    not_measured: dict[str, str] = {}


def rate(durations: Sequence[float], seconds: float) -> Throughput:
    median, p99 = quantiles(durations)
    per_second = round(len(durations) / seconds, 1) if seconds else 0.0
    return Throughput(len(durations), round(seconds, 3), per_second, round(1000 * median, 2), round(1000 * p99, 2))


def lines(report: BenchReport) -> list[str]:
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


def _told(rate: Throughput, what: str) -> str:
    took = f"half within {rate.median_ms:.1f} ms, 99 % within {rate.p99_ms:.1f} ms"
    return f"{rate.per_second:,.0f} a second ({rate.count} {what}); {took}"
