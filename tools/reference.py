"""Writes the reference pages from the code: `python -m tools.reference` writes them, `--check` says whether they are current."""

import sys
import tomllib
from importlib.resources import files
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from chargehand import errors
from chargehand.doors.inference import failures
from chargehand.doors.inference.views import TOPICS
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.tasks.metrics import TaskMetrics
from chargehand.engine.job import State
from chargehand.engine.moves import TABLE
from chargehand.observability.metrics import Metrics
from chargehand.observability.tally import Tally
from tools import provisioning_reference

DOCS = Path(__file__).parent.parent / "docs"
MADE = "<!-- Made from the code by `make docs`; edit the code, not this page. -->\n\n"


def states() -> str:
    lines = [
        "# States and moves",
        "",
        "A job is in one of five states. A running job may have a stage, in its door's words. It changes only by one of the moves",
        "below, and a move happens only if the job is still as the mover saw it: in the right state, and under the mover's lease.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "  [*] --> queued: submit",
        *[f"  {state} --> {move.to}: {move.name}" for move in TABLE for state in sorted(move.source)],
        "```",
        "",
        "| move | from | to | lease | attempt | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
        *[
            f"| `{m.name}` | {', '.join(sorted(m.source))} | {m.to} | {m.lease.value} | {m.attempt.value} | {m.meaning} |"
            for m in TABLE
        ],
        "",
        "A lapsed lease is an outcome like any other: `retry` while attempts are left, else `fail`. Later is `run_at`, not a state.",
        "",
        "Every move but `beat` writes an event with the job's next sequence number and, where somebody asked to be told, a",
        "delivery, all in one commit. A job that was claimed but has no stage yet shows no new state, so nobody is told a guess.",
        "",
        f"Final states: {', '.join(f'`{s}`' for s in State if s not in ('queued', 'running'))}.",
        "",
        "## In the words of the inference door",
        "",
        "| it says | of a job that is |",
        "| --- | --- |",
        *[f"| `{state}` | {', '.join(f'`{topic}`' for topic in topics)} |" for state, topics in TOPICS.items()],
        "",
        "What was observed before each of them is told: [inference.md](inference.md#what-each-state-means).",
    ]
    return "\n".join(lines) + "\n"


def settings() -> str:
    text = (files("chargehand") / "config.default.toml").read_text()
    defaults = tomllib.loads(text)
    comments = _comments(text)
    lines = [
        "# Settings",
        "",
        "From the weakest to the strongest: the defaults, the file given with `--config`, environment variables, options of the",
        "command line. An unknown name or a bad value stops the start with a message that names it.",
        "",
    ]
    for section, keys in defaults.items():
        lines += [
            f"## {section}",
            "",
            "| setting | environment variable | default | meaning |",
            "| --- | --- | --- | --- |",
        ]
        for key, default in keys.items():
            meaning = comments[f"{section}.{key}"].replace("|", "\\|")
            variable = f"CHARGEHAND_{section}_{key}".upper()
            lines.append(f"| `{section}.{key}` | `{variable}` | `{default!r}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _comments(text: str) -> dict[str, str]:
    """The comment above each key of the defaults file. What is indented in it is an example, and keeps its lines."""
    found: dict[str, str] = {}
    section, comment = "", list[str]()
    for line in text.splitlines():
        if line.startswith("#   "):
            comment.append(f"<br>`{line[4:]}`")
        elif line.startswith("#"):
            follows_example = bool(comment) and comment[-1].startswith("<br>`")
            comment.append(("<br>" if follows_example else "") + line.lstrip("# "))
        elif line.startswith("["):
            section, comment = line.strip("[]"), []
        elif "=" in line:
            found[f"{section}.{line.partition('=')[0].strip()}"] = " ".join(comment)
            comment = []
        elif not line.strip():
            comment = []
    return found


def error_codes() -> str:
    lines = [
        "# Errors",
        "",
        "Every error is an RFC 9457 problem document (`application/problem+json`). `code` is stable and made for programs; `detail`",
        "says what was wrong and what to do; `field` names the part of the request where there is one. Under `/api/` and `/v1/` an",
        "error has the shape that clients of Ollama, of OpenAI or of Anthropic read; what a target refused arrives in its own words.",
        "",
        "| code | status | meaning |",
        "| --- | --- | --- |",
        *[f"| `{kind.code}` | {kind.status} | {kind.title} |" for kind in _tree(errors.ChargehandError)],
    ]
    return "\n".join(lines) + "\n"


def _tree(kind: type[errors.ChargehandError]) -> list[type[errors.ChargehandError]]:
    ours = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return [kind, *(each for child in ours for each in _tree(child))]


def failure_table() -> str:
    lines = [
        "# What can go wrong at a target",
        "",
        "What was seen, what kind of failure it is called in a job's `evidence.failure` and in the metric",
        "`chargehand_inference_failures_total`, and what is done about it. The first row that fits decides.",
        "",
        "| what was seen | kind | what is done |",
        "| --- | --- | --- |",
        *[
            f"| {row.observation} | {row.kind} | {row.action.value}{f'. Said with it: {row.advice}' if row.advice else ''} |"
            for row in failures.TABLE
        ],
        "",
        "An attempt that does not count is given back: the job waits as if it had not begun, however often that happens. One that",
        "counts is followed by a pause that grows (`engine.backoff_base_seconds`), until `max_attempts` are used up.",
        "",
        "A synchronous request has one attempt: what would count fails it, and its caller gets the target's own words. What does not",
        "count is waited for as long as the caller waits, until the first byte was passed on; from then on the caller's stream breaks",
        "off where the target's did.",
    ]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    lines = [
        "# Metrics",
        "",
        "At `/metrics`, in the Prometheus text format. [Alerts](../operations.md#alerts) on them come along.",
        "",
        "Those that begin with `codeq_` are of the tasks door, under codeQ's names. `command` is spelt as its first producer spelt it. Those",
        "that begin otherwise than with `codeq_` or `chargehand_` are of the provisioning door.",
        "A node counts what it did itself; depths and subscriptions are those of the whole store, all tenants together.",
        "",
        "| metric | type | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    rows = []
    doors = (TaskMetrics(CollectorRegistry()), ProvisioningMetrics(CollectorRegistry()))
    for metric in [*vars(Metrics()).values(), *(each for door in doors for each in vars(door).values())]:
        if isinstance(metric, Tally):
            rows.append((metric.name, metric.kind, metric.labels, metric.documentation))
        elif isinstance(metric, Counter | Gauge):
            [family] = metric.describe()
            suffix = "_total" if family.type == "counter" else ""
            rows.append((family.name + suffix, family.type, metric._labelnames, family.documentation))
    lines += [
        f"| `{name}` | {kind} | {', '.join(labels) or '-'} | {meaning} |"
        for name, kind, labels, meaning in sorted(rows)
    ]
    return "\n".join(lines) + "\n"


PAGES = {
    "states.md": states,
    "reference/settings.md": settings,
    "reference/errors.md": error_codes,
    "reference/metrics.md": metrics,
    "reference/failures.md": failure_table,
    "reference/provisioning-errors.md": provisioning_reference.errors,
    "reference/recipe.md": provisioning_reference.recipe,
}


def main() -> None:
    stale = [name for name, make in PAGES.items() if not _current(name, make())]
    if "--check" in sys.argv:
        sys.exit(f"not current, run `make docs`: {', '.join(stale)}" if stale else 0)
    for name, make in PAGES.items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(MADE + make())


def _current(name: str, text: str) -> bool:
    path = DOCS / name
    return path.exists() and path.read_text() == MADE + text


if __name__ == "__main__":
    main()
