"""Every line of the Grafana dashboard is PromQL on metrics and labels that exist, and no two panels overlap."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.observability.promql import NAME, Aggregation, Binary, Node, Number, OverTime, Quantile, Selector, parse
from tools.reference import everything

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "deploy/grafana/chargehand.json"
ALWAYS = {"job", "instance"}  # Prometheus adds them
SUFFIXES = ("_bucket", "_count", "_sum")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text())["panels"]
    return found


def lines() -> list[tuple[str, str, str]]:
    """Return title, legend and expression of every line."""
    shown = [panel for panel in panels() if panel["type"] != "row"]
    return [(panel["title"], each["legendFormat"], each["expr"]) for panel in shown for each in panel["targets"]]


def documented() -> dict[str, set[str]]:
    """Return the labels of the documented metrics, by the name in an expression."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([^|]+) \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE
    )
    found = {}
    for name, kind, labels in rows:
        of = set(labels.split(", ")) - {"-"} | ALWAYS
        for suffix in SUFFIXES if kind == "histogram" else ("",):
            found[name + suffix] = of | ({"le"} if suffix == "_bucket" else set())
    return found


def selectors(node: Node) -> list[Selector]:
    match node:
        case Selector():
            return [node]
        case Number():
            return []
        case Binary():
            return [*selectors(node.left), *selectors(node.right)]
        case OverTime() | Quantile() | Aggregation():
            return selectors(node.of)


def test_the_dashboard_file_is_what_its_generator_writes() -> None:
    assert FILE.read_text() == everything()[FILE], "run `make docs`"


@pytest.mark.parametrize(("title", "legend", "expression"), lines())
def test_every_line_uses_metrics_and_labels_that_exist(title: str, legend: str, expression: str) -> None:
    known = documented()
    node = parse(expression)
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped - {"le"}
    used = selectors(node)
    assert used
    for selector in used:
        wanted = {name: value for name, _, value in selector.matchers}
        labels = known[wanted.pop(NAME)]
        assert set(wanted) | grouped <= labels


def test_every_door_has_its_row_and_no_two_panels_overlap() -> None:
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert {"Models", "Tasks", "Machines", "Webhooks", "Jobs"} <= set(rows)
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for one, other in combinations([panel["gridPos"] for panel in panels()], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
