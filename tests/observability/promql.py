"""An evaluator for the part of PromQL that our alert rules use, as in Prometheus 3, at a given instant.

Nothing on PyPI evaluates PromQL. Unsupported syntax is refused when a rule is read. `test_promql` compares results with those of
the real `promtool`.
"""

import itertools
import math
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

LOOKBACK_SECONDS = 300.0
NAME = "__name__"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Points = list[tuple[float, float]]


class Unknown(ValueError):
    """Not PromQL, or not the part of it that is supported here."""


# samples ----------------------------------------------------------------------------------------------------------------


class Series:
    """The scraped samples. A series that is missing from a scrape is stale from then on, as in Prometheus."""

    def __init__(self) -> None:
        self._points: dict[Labels, list[tuple[float, float | None]]] = {}
        self._live: dict[str, set[Labels]] = {}

    def scraped(self, target: str, at: float, samples: Mapping[Labels, float]) -> None:
        for gone in self._live.get(target, set()) - samples.keys():
            self._points[gone].append((at, None))
        self._live[target] = set(samples)
        for labels, value in samples.items():
            self._points.setdefault(labels, []).append((at, value))

    def now(self, matches: Callable[[Labels], bool], at: float) -> Vector:
        found = {}
        for labels, points in self._matching(matches):
            index = bisect_right(points, at, key=lambda point: point[0]) - 1
            if index >= 0 and points[index][0] > at - LOOKBACK_SECONDS and (value := points[index][1]) is not None:
                found[labels] = value
        return found

    def between(self, matches: Callable[[Labels], bool], after: float, until: float) -> dict[Labels, Points]:
        found = {}
        for labels, points in self._matching(matches):
            inside = [(at, value) for at, value in points if after < at <= until and value is not None]
            if inside:
                found[labels] = inside
        return found

    def _matching(self, matches: Callable[[Labels], bool]) -> Iterable[tuple[Labels, list[tuple[float, float | None]]]]:
        return [(labels, points) for labels, points in self._points.items() if matches(labels)]


def without_name(labels: Labels) -> Labels:
    return frozenset((name, value) for name, value in labels if name != NAME)


def only(labels: Labels, names: tuple[str, ...]) -> Labels:
    return frozenset((name, value) for name, value in labels if name in names)


# what an expression is made of ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    value: float

    def at(self, _series: Series, _at: float) -> float:
        return self.value


@dataclass(frozen=True)
class Selector:
    matchers: tuple[tuple[str, str, str], ...]
    range_seconds: float | None = None

    @cached_property
    def _named(self) -> Labels:
        """Return the labels that must match exactly, checked first because most series have another name."""
        return frozenset((name, wanted) for name, how, wanted in self.matchers if how == "=" and wanted)

    def matches(self, labels: Labels) -> bool:
        if not self._named <= labels:
            return False
        has = dict(labels)
        return all(MATCHERS[how](has.get(name, ""), wanted) for name, how, wanted in self.matchers)

    def at(self, series: Series, at: float) -> Vector:
        if self.range_seconds is not None:
            raise Unknown("a range is only an argument of a function")
        return series.now(self.matches, at)


@dataclass(frozen=True)
class OverTime:
    """A function over the points of a range."""

    name: str
    of: Selector

    def at(self, series: Series, at: float) -> Vector:
        seconds = self.of.range_seconds
        assert seconds is not None
        found = {}
        for labels, points in series.between(self.of.matches, at - seconds, at).items():
            value = RANGE_FUNCTIONS[self.name](points, at - seconds, at)
            if value is not None:
                found[without_name(labels)] = value
        return found


@dataclass(frozen=True)
class Quantile:
    share: float
    of: "Node"

    def at(self, series: Series, at: float) -> Vector:
        buckets: dict[Labels, list[tuple[float, float]]] = {}
        for labels, value in vector(self.of.at(series, at)).items():
            rest = without_name(frozenset(pair for pair in labels if pair[0] != "le"))
            buckets.setdefault(rest, []).append((float(dict(labels)["le"]), value))
        return {labels: quantile(self.share, sorted(found)) for labels, found in buckets.items()}


@dataclass(frozen=True)
class Aggregation:
    name: str
    by: tuple[str, ...]
    of: "Node"

    def at(self, series: Series, at: float) -> Vector:
        groups: dict[Labels, list[float]] = {}
        for labels, value in vector(self.of.at(series, at)).items():
            groups.setdefault(only(labels, self.by), []).append(value)
        return {labels: AGGREGATIONS[self.name](values) for labels, values in groups.items()}


@dataclass(frozen=True)
class Binary:
    sign: str
    left: "Node"
    right: "Node"
    on: tuple[str, ...] | None = None

    def at(self, series: Series, at: float) -> Vector:
        left, right = vector(self.left.at(series, at)), self.right.at(series, at)
        if self.sign in ("and", "unless"):
            keys = {self._key(labels) for labels in vector(right)}
            return {
                labels: value for labels, value in left.items() if (self._key(labels) in keys) == (self.sign == "and")
            }
        if isinstance(right, float):
            return self._combine({labels: (labels, value, right) for labels, value in left.items()})
        others = self._one_each(right)
        mine = self._one_each(left)
        return self._combine(
            {key: (labels, value, others[key][1]) for key, (labels, value) in mine.items() if key in others}
        )

    def _combine(self, pairs: Mapping[Labels, tuple[Labels, float, float]]) -> Vector:
        if self.sign in COMPARISONS:
            return {labels: left for labels, left, right in pairs.values() if COMPARISONS[self.sign](left, right)}
        return {self._key(labels): divide(left, right) for labels, left, right in pairs.values()}

    def _one_each(self, side: Vector) -> dict[Labels, tuple[Labels, float]]:
        found = {self._key(labels): (labels, value) for labels, value in side.items()}
        if len(found) < len(side):
            raise Unknown("several series on one side have the same labels")
        return found

    def _key(self, labels: Labels) -> Labels:
        return without_name(labels) if self.on is None else only(labels, self.on)


Node = Number | Selector | OverTime | Quantile | Aggregation | Binary


def vector(value: Vector | float) -> Vector:
    if isinstance(value, float):
        raise Unknown("a number where series are needed")
    return value


# arithmetic -------------------------------------------------------------------------------------------------------------


def increase(points: Points, begin: float, end: float) -> float | None:
    """Return the increase, extrapolated to the whole range unless a series begins or ends well inside it; counters begin at 0 or more."""
    if len(points) < 2:
        return None
    (first_at, first), (last_at, last) = points[0], points[-1]
    total = last - first + sum(a for (_, a), (_, b) in itertools.pairwise(points) if b < a)
    sampled = last_at - first_at
    usual = sampled / (len(points) - 1)
    before, after = first_at - begin, end - last_at
    if before >= usual * 1.1:
        before = usual / 2
    if total > 0 and first >= 0:
        before = min(before, sampled * first / total)
    if after >= usual * 1.1:
        after = usual / 2
    return total * (sampled + before + after) / sampled


def rate(points: Points, begin: float, end: float) -> float | None:
    found = increase(points, begin, end)
    return None if found is None else found / (end - begin)


def largest(points: Points, _begin: float, _end: float) -> float | None:
    return max(value for _, value in points)


def quantile(share: float, buckets: list[tuple[float, float]]) -> float:
    """Return the quantile, interpolated linearly within its bucket; in the last bucket, its lower bound."""
    if len(buckets) < 2 or buckets[-1][0] != math.inf or not buckets[-1][1] > 0:
        return math.nan
    rank = share * buckets[-1][1]
    index = next(i for i, (_, count) in enumerate(buckets) if count >= rank)
    if index == len(buckets) - 1:
        return buckets[-2][0]
    bound, count = buckets[index]
    if index == 0:
        return bound * rank / count if bound > 0 else bound
    below_bound, below = buckets[index - 1]
    return below_bound + (bound - below_bound) * (rank - below) / (count - below)


def divide(left: float, right: float) -> float:
    if right:
        return left / right
    return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left)


MATCHERS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
    "!~": lambda value, wanted: re.fullmatch(wanted, value) is None,
}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, "<": operator.lt, "==": operator.eq}
RANGE_FUNCTIONS = {"rate": rate, "increase": increase, "max_over_time": largest}
AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max}
STRENGTH = {"unless": 1, "and": 1, ">": 2, "<": 2, "==": 2, "/": 3}


# parsing ----------------------------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r"""\s*(?:(?P<duration>\d+[smhd])(?![\w.])|(?P<number>\d+(?:\.\d+)?)(?![\w.])|(?P<word>[A-Za-z_:][\w:]*)
        |(?P<text>"(?:[^"\\]|\\.)*")|(?P<sign>=~|!~|!=|==|[=<>/(){}\[\],]))""",
    re.VERBOSE,
)


def parse(text: str) -> Node:
    reader = _Reader(text)
    node = reader.expression(0)
    if reader.tokens:
        raise Unknown(f"not expected: {reader.tokens[0][1]!r} in {text!r}")
    return node


@dataclass
class _Reader:
    text: str
    tokens: list[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = []
        rest = self.text.rstrip()
        while rest:
            token = TOKEN.match(rest)
            if token is None or token.lastgroup is None:
                raise Unknown(f"cannot be read: {rest!r}")
            self.tokens.append((token.lastgroup, token[token.lastgroup]))
            rest = rest[token.end() :]

    def next(self, *kinds: str) -> str:
        if not self.tokens or self.tokens[0][0] not in kinds:
            raise Unknown(f"{' or '.join(kinds)} expected at {self.tokens[:1]} in {self.text!r}")
        return self.tokens.pop(0)[1]

    def take(self, *signs: str) -> str:
        """Consume and return the next token if it is one of these."""
        return self.tokens.pop(0)[1] if self.tokens and self.tokens[0][1] in signs else ""

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise Unknown(f"{sign!r} expected at {self.tokens[:1]} in {self.text!r}")

    def expression(self, least: int) -> Node:
        left = self.operand()
        while self.tokens and STRENGTH.get(self.tokens[0][1], 0) > least:
            sign = self.tokens.pop(0)[1]
            on = self.names() if self.take("on") else None
            left = Binary(sign, left, self.expression(STRENGTH[sign]), on)
        return left

    def operand(self) -> Node:
        if self.take("("):
            node = self.expression(0)
            self.expect(")")
            return node
        if self.tokens and self.tokens[0][0] == "number":
            return Number(float(self.next("number")))
        word = self.next("word")
        if word in AGGREGATIONS:
            by = self.names() if self.take("by") else ()
            return Aggregation(word, by, self.argument())
        if word in RANGE_FUNCTIONS:
            of = self.argument()
            if not (isinstance(of, Selector) and of.range_seconds is not None):
                raise Unknown(f"{word} is of a range")
            return OverTime(word, of)
        if word == "histogram_quantile":
            self.expect("(")
            share = float(self.next("number"))
            self.expect(",")
            inner = self.expression(0)
            self.expect(")")
            return Quantile(share, inner)
        return self.selector(word)

    def argument(self) -> Node:
        self.expect("(")
        node = self.expression(0)
        self.expect(")")
        return node

    def names(self) -> tuple[str, ...]:
        self.expect("(")
        names = []
        while not self.take(")"):
            names.append(self.next("word"))
            if not self.take(","):
                self.expect(")")
                break
        return tuple(names)

    def selector(self, metric: str) -> Selector:
        if self.tokens and self.tokens[0][1] == "(":
            raise Unknown(f"the function {metric} is not supported")
        matchers = [(NAME, "=", metric)]
        if self.take("{"):
            while not self.take("}"):
                name, how, wanted = self.next("word"), self.next("sign"), self.next("text")[1:-1]
                if how not in MATCHERS or "\\" in wanted:
                    raise Unknown(f"{name}{how}{wanted!r}")
                matchers.append((name, how, wanted))
                if not self.take(","):
                    self.expect("}")
                    break
        seconds = None
        if self.take("["):
            length = self.next("duration")
            seconds = float(int(length[:-1]) * SECONDS[length[-1]])
            self.expect("]")
        return Selector(tuple(matchers), seconds)
