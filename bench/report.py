"""The results of runs, and the table of them."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import median
from typing import Literal

import msgspec


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run: operations, seconds and their cost. All times are in seconds, CPU is that of the whole run."""

    operations: int
    seconds: float
    p50: float
    p99: float
    server_cpu: float = 0.0
    store_cpu: float = 0.0  # of SQLite's writer, or of all of PostgreSQL
    client_cpu: float = 0.0
    others_cpu: float = 0.0  # CPU of other programs during the run
    server_bytes: int = 0  # peak of resident memory
    store_bytes: int = 0
    received_bytes: int = 0  # of streams, where p50 and p99 are those of the first byte

    @property
    def rate(self) -> float:
        return self.operations / self.seconds

    @property
    def p50_milliseconds(self) -> float:
        return self.p50 * 1e3

    @property
    def server_microseconds(self) -> float:
        """Return the CPU of one operation."""
        return self.server_cpu / self.operations * 1e6

    @property
    def store_microseconds(self) -> float:
        return self.store_cpu / self.operations * 1e6

    @property
    def client_microseconds(self) -> float:
        return self.client_cpu / self.operations * 1e6

    def __str__(self) -> str:
        received = f"   {megabytes(self.received_bytes / self.seconds):5.2f} MB/s" if self.received_bytes else ""
        return (
            f"{self.rate:>9,.0f}/s{received}   p50 {self.p50 * 1e3:7.2f} ms   p99 {self.p99 * 1e3:7.2f} ms"
            f"   CPU server {self.server_microseconds:4.0f}, store {self.store_microseconds:4.0f}"
            f", client {self.client_microseconds:3.0f} µs"
            f"   others {self.others_cpu / self.seconds * 100:3.0f} %"
            f"   peak {megabytes(self.server_bytes):3.0f} + {megabytes(self.store_bytes):3.0f} MB"
        )


Get = Callable[[Sample], float]


class Target(msgspec.Struct, frozen=True):
    sign: Literal["≥", "≤", "<"]
    bound: float

    def met_by(self, value: float) -> bool:
        return {"≥": value >= self.bound, "≤": value <= self.bound, "<": value < self.bound}[self.sign]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table. The target bounds the ratio if there is one, or else the value."""

    measurement: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    target: Target | None = None
    samples: dict[str, Sequence[Sample]] = {}

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met_by(self.value if self.ratio is None else self.ratio)

    def cells(self) -> tuple[str, ...]:
        target = "" if self.target is None else f"{self.target.sign} {self.target.bound:g}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        met = {None: "", True: "yes", False: "NO"}[self.met]
        return (self.measurement, self._shown(self.value), self._shown(self.baseline), ratio, target, met)

    def _shown(self, value: float | None) -> str:
        return "" if value is None else f"{value:,.{0 if value >= 100 else 2}f} {self.unit}"


def rates(measurement: str, samples: Sequence[Sample]) -> Row:
    return Row(measurement=measurement, value=median(s.rate for s in samples), unit="/s", samples={"measured": samples})


def compared_rates(
    measurement: str, samples: Sequence[Sample], baseline: Sequence[Sample], target: Target | None = None
) -> Row:
    rate: Get = attrgetter("rate")
    return compared(measurement, "/s", (samples, rate), (baseline, rate), target)


def compared(
    measurement: str,
    unit: str,
    measured: tuple[Sequence[Sample], Get],
    baseline: tuple[Sequence[Sample], Get],
    target: Target | None = None,
) -> Row:
    """Compare round by round, by a value of each sample."""
    values, bases = ([get(sample) for sample in samples] for samples, get in (measured, baseline))
    return Row(
        measurement=measurement,
        value=median(values),
        unit=unit,
        baseline=median(bases),
        ratio=median(value / base for value, base in zip(values, bases, strict=True)),
        target=target,
        samples={"measured": measured[0], "baseline": baseline[0]},
    )


def table(rows: Sequence[Row]) -> str:
    lines = [("measurement", "value", "baseline", "ratio", "target", "met?"), *[row.cells() for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *[cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]]
        ).rstrip()
        for line in lines
    )


def megabytes(count: float) -> float:
    return count / 1e6


def at(connections: int) -> str:
    return "1 connection" if connections == 1 else f"{connections} connections"
