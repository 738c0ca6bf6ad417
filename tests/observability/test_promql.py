"""The evaluator returns what Prometheus' own `promtool test rules` (2.42) returned for the same series and instants.

None of the instants falls on a sample, where Prometheus 2 and 3 differ.
"""

import math
import re

import pytest

from tests.observability.promql import NAME, Labels, Series, Unknown, parse, vector

STEP_SECONDS = 30.0
NOTHING = None
SAMPLES: dict[str, list[float | None]] = {
    'hits_total{job="a",code="200"}': [7 * n for n in range(41)],
    'hits_total{job="a",code="500"}': [NOTHING] * 6 + [n * n for n in range(1, 36)],
    'hits_total{job="b",code="200"}': [
        0,
        10,
        20,
        30,
        5,
        15,
        25,
        3,
        9,
        9,
        9,
        12,
        18,
        18,
        40,
        *[NOTHING] * 5,
        41,
        50,
        61,
    ],
    'depth{job="a",queue="ready"}': [5, 0, 3, NOTHING, NOTHING, 9, *[2] * 30],
    'depth{job="b",queue="ready"}': [1] * 8,
    'depth{job="b",queue="dlq"}': [120] * 41,
    'seconds_bucket{job="a",le="0.1"}': list(range(41)),
    'seconds_bucket{job="a",le="60"}': [4 * n for n in range(41)],
    'seconds_bucket{job="a",le="120"}': [10 * n for n in range(41)],
    'seconds_bucket{job="a",le="+Inf"}': [10 * n for n in range(41)],
    'seconds_bucket{job="b",le="0.1"}': [0] * 41,
    'seconds_bucket{job="b",le="60"}': [2 * n for n in range(41)],
    'seconds_bucket{job="b",le="120"}': [2 * n for n in range(41)],
    'seconds_bucket{job="b",le="+Inf"}': [5 * n for n in range(41)],
    'idle_bucket{le="1"}': [3] * 41,
    'idle_bucket{le="+Inf"}': [3] * 41,
}
READY_A, READY_B = 'depth{job="a",queue="ready"}', 'depth{job="b",queue="ready"}'
DEAD_B = 'depth{job="b",queue="dlq"}'
KNOWN: list[tuple[str, float, dict[str, float]]] = [
    ("rate(hits_total[5m])", 37, {'{code="200",job="a"}': 0.0287777777778, '{code="200",job="b"}': 0.0411111111111}),
    (
        "rate(hits_total[5m])",
        307,
        {'{code="200",job="a"}': 0.233333333333, '{code="200",job="b"}': 0.2, '{code="500",job="a"}': 0.088},
    ),
    (
        "rate(hits_total[5m])",
        433,
        {
            '{code="200",job="a"}': 0.233333333333,
            '{code="200",job="b"}': 0.185185185185,
            '{code="500",job="a"}': 0.284444444444,
        },
    ),
    ("rate(hits_total[5m])", 1187, {'{code="200",job="a"}': 0.233333333333, '{code="500",job="a"}': 1.96666666667}),
    ("increase(hits_total[5m])", 187, {'{code="200",job="a"}': 43.6333333333, '{code="200",job="b"}': 57.1388888889}),
    (
        "increase(hits_total[5m])",
        433,
        {'{code="200",job="a"}': 70, '{code="200",job="b"}': 55.5555555556, '{code="500",job="a"}': 85.3333333333},
    ),
    (
        "increase(hits_total[10m])",
        307,
        {'{code="200",job="a"}': 71.6333333333, '{code="200",job="b"}': 65.4933333333, '{code="500",job="a"}': 26.4},
    ),
    (
        "increase(hits_total[10m])",
        433,
        {
            '{code="200",job="a"}': 101.033333333,
            '{code="200",job="b"}': 97.9404761905,
            '{code="500",job="a"}': 85.3333333333,
        },
    ),
    ('max_over_time(hits_total{job="b"}[2m])', 433, {'{code="200",job="b"}': 40}),
    ("sum by (job) (rate(hits_total[5m]))", 701, {'{job="a"}': 1.13333333333, '{job="b"}': 0.0875}),
    ('sum(rate(hits_total{code=~"5.."}[5m]))', 307, {"{}": 0.088}),
    ("max by (queue) (depth)", 187, {'{queue="dlq"}': 120, '{queue="ready"}': 2}),
    ("max by (queue) (depth)", 701, {'{queue="dlq"}': 120, '{queue="ready"}': 2}),
    ("max(depth) > 100", 433, {"{}": 120}),
    ('depth{queue!="dlq"} > 1', 127, {READY_A: 3}),
    (
        'sum by (job) (rate(hits_total{code="500"}[5m])) / sum by (job) (rate(hits_total[5m])) > 0.1',
        307,
        {'{job="a"}': 0.273858921162},
    ),
    (
        'sum by (job) (rate(hits_total{code="500"}[5m])) / sum by (job) (rate(hits_total[5m])) > 0.1',
        1187,
        {'{job="a"}': 0.893939393939},
    ),
    (
        'sum by (job) (rate(hits_total{code="500"}[5m])) / sum by (job) (rate(hits_total[5m]))',
        433,
        {'{job="a"}': 0.549356223176},
    ),
    (
        "histogram_quantile(0.95, sum by (job, le) (rate(seconds_bucket[10m])))",
        187,
        {'{job="a"}': 115, '{job="b"}': 120},
    ),
    (
        "histogram_quantile(0.95, sum by (job, le) (rate(seconds_bucket[10m])))",
        433,
        {'{job="a"}': 115, '{job="b"}': 120},
    ),
    (
        "histogram_quantile(0.05, sum by (job, le) (rate(seconds_bucket[10m])))",
        433,
        {'{job="a"}': 0.05, '{job="b"}': 7.5875},
    ),
    ("histogram_quantile(0.2, rate(seconds_bucket[10m])) > 60", 433, {}),
    ("histogram_quantile(0.5, rate(idle_bucket[5m]))", 433, {"{}": math.nan}),
    (
        'max by (job) (depth{queue="ready"}) > 0 unless on (job) sum by (job) (increase(hits_total{code="500"}[5m])) > 0',
        127,
        {'{job="a"}': 3, '{job="b"}': 1},
    ),
    (
        'max by (job) (depth{queue="ready"}) > 0 unless on (job) sum by (job) (increase(hits_total{code="500"}[5m])) > 0',
        433,
        {'{job="b"}': 1},
    ),
    ("depth > 1 and on () sum(rate(hits_total[5m])) > 0.1", 187, {READY_A: 2, DEAD_B: 120}),
    ('depth{queue="ready"} and on (job) depth{queue="dlq"} == 120', 187, {READY_B: 1}),
    ('depth{queue="ready"} unless depth', 187, {}),
]


def labels_of(text: str) -> Labels:
    name, _, rest = text.partition("{")
    return frozenset([*({(NAME, name)} if name else ()), *re.findall(r'(\w+)="([^"]*)"', rest)])


@pytest.fixture(scope="module")
def series() -> Series:
    found = Series()
    for text, values in SAMPLES.items():
        for step, value in enumerate(values):
            if value is not None:
                found.scraped(text, step * STEP_SECONDS, {labels_of(text): value})
    return found


@pytest.mark.parametrize(("expression", "at", "expected"), KNOWN)
def test_the_evaluator_returns_what_prometheus_returns(
    series: Series, expression: str, at: float, expected: dict[str, float]
) -> None:
    found = vector(parse(expression).at(series, at))
    assert found == pytest.approx({labels_of(text): value for text, value in expected.items()}, rel=1e-9, nan_ok=True)


def test_a_series_that_is_missing_from_a_scrape_is_gone_at_once() -> None:
    series, depth = Series(), labels_of("depth{}")
    series.scraped("here", 0.0, {depth: 4.0})
    assert vector(parse("depth").at(series, 29.0)) == {depth: 4.0}
    series.scraped("here", 30.0, {})
    assert vector(parse("depth").at(series, 30.0)) == {}
    assert vector(parse("max_over_time(depth[5m])").at(series, 30.0)) == {frozenset(): 4.0}


def test_a_series_that_is_no_longer_scraped_is_stale_after_five_minutes() -> None:
    series, depth = Series(), labels_of("depth{}")
    series.scraped("here", 0.0, {depth: 4.0})
    assert vector(parse("depth").at(series, 299.0)) == {depth: 4.0}
    assert vector(parse("depth").at(series, 300.0)) == {}


def test_a_division_by_zero_is_nan_or_infinite_and_no_error() -> None:
    series = Series()
    series.scraped("here", 0.0, {labels_of("a{}"): 0.0, labels_of("b{}"): 0.0, labels_of("c{}"): 2.0})
    assert math.isnan(vector(parse("a / b").at(series, 1.0))[frozenset()])
    assert vector(parse("c / b").at(series, 1.0)) == {frozenset(): math.inf}
    assert vector(parse("a / b > 0").at(series, 1.0)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "depth >",
        "depth > 1 2",
        "(depth",
        "depth{queue=ready}",
        'depth{queue~"ready"}',
        'depth{queue="a\\"b"}',
        "depth[5m",
        "depth[5]",
        "depth + 1",
        "depth offset 5m",
        "irate(depth[5m])",
        "rate(depth)",
        "avg by (job) (depth)",
        "sum without (job) (depth)",
        "depth or up",
        "depth > bool 1",
        "a / ignoring (x) b",
        "a / on (x) group_left b",
        "1.5.2",
        "5minutes",
    ],
)
def test_unsupported_promql_is_refused(text: str) -> None:
    with pytest.raises(Unknown):
        parse(text)


@pytest.mark.parametrize("text", ["depth[5m]", "1 > depth", "sum(1)", "hits_total / on (job) hits_total"])
def test_an_expression_with_wrong_types_is_refused_when_evaluated(series: Series, text: str) -> None:
    with pytest.raises(Unknown):
        parse(text).at(series, 401.0)
