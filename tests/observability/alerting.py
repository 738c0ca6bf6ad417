"""A small Prometheus: reads a rules file as strictly as the real one, stores scrapes, and returns which alerts fire."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from tests.observability.promql import NAME, SECONDS, Labels, Node, Series, parse, vector, without_name

RULES = Path(__file__).parent.parent.parent / "deploy/prometheus/alerting-rules.yml"
PLACE = re.compile(r"\{\{\s*\$(?:labels\.(\w+)|(value))\s*\}\}")


@dataclass(frozen=True)
class Rule:
    group: str
    alert: str
    expr: Node
    for_seconds: float
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@cache
def load_rules() -> list[Rule]:
    return read_rules(RULES.read_text())


def read_rules(text: str) -> list[Rule]:
    """Read the rules, and refuse whatever Prometheus would refuse."""
    rules = []
    for group in _members(yaml.safe_load(text), {"groups"})["groups"]:
        _members(group, {"name", "rules"})
        for rule in group["rules"]:
            _members(rule, {"alert", "expr", "for", "labels", "annotations"})
            for mapping in (rule["labels"], rule["annotations"]):
                if not all(isinstance(part, str) for pair in mapping.items() for part in pair):
                    raise ValueError(f"{rule['alert']}: labels and annotations are texts")
            wait = re.fullmatch(r"(\d+)([smhd])", rule["for"])
            if wait is None:
                raise ValueError(f"{rule['alert']}: no duration: {rule['for']}")
            seconds = float(int(wait[1]) * SECONDS[wait[2]])
            expr = parse(rule["expr"])
            rules.append(Rule(group["name"], rule["alert"], expr, seconds, rule["labels"], rule["annotations"]))
    return rules


def _members(value: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"must have {sorted(names)}, and nothing else: {value!r:.200}")
    return value


@dataclass(frozen=True)
class Alert:
    rule: Rule
    labels: Mapping[str, str]
    value: float

    @property
    def name(self) -> str:
        return self.rule.alert

    def text(self, annotation: str) -> str:
        """Return the text of the notification. A label that the alert does not have is an error."""
        return PLACE.sub(
            lambda place: f"{self.value:g}" if place[2] else self.labels[place[1]], self.rule.annotations[annotation]
        )


class Prometheus:
    """Gets scrapes with their time, and evaluates all rules with each."""

    def __init__(self, rules: list[Rule], job: str = "chargehand") -> None:
        self.series = Series()
        self._rules = rules
        self._job = job
        self._since: dict[tuple[str, Labels], float] = {}  # alerts that are pending or firing
        self.firing: list[Alert] = []

    def scraped(self, at: float, text: str | None, instance: str = "here:8484") -> None:
        """Add a scrape; None if there was no answer."""
        target = {"job": self._job, "instance": instance}
        samples = {} if text is None else _samples(text, target)
        self.series.scraped(instance, at, samples)
        up = {NAME: "up", **target}
        self.series.scraped(f"up of {instance}", at, {frozenset(up.items()): float(text is not None)})

    def evaluate(self, at: float) -> list[Alert]:
        found: dict[tuple[str, Labels], Alert] = {}
        for rule in self._rules:
            for labels, value in vector(rule.expr.at(self.series, at)).items():
                key = rule.alert, without_name(labels)
                found[key] = Alert(rule, dict(key[1]), value)
        self._since = {key: self._since.get(key, at) for key in found}
        self.firing = [alert for key, alert in found.items() if at - self._since[key] >= alert.rule.for_seconds]
        return self.firing

    @property
    def pending(self) -> set[str]:
        """Return the names of alerts whose condition holds now, for however long."""
        return {name for name, _ in self._since}


def _samples(text: str, target: Mapping[str, str]) -> dict[Labels, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if clash := sample.labels.keys() & target.keys():
                raise ValueError(f"{sample.name} has labels that Prometheus would rename: {clash}")
            if not math.isnan(sample.value):
                found[frozenset({NAME: sample.name, **sample.labels, **target}.items())] = sample.value
    return found
