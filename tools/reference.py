"""Generate the reference pages and the dashboard from the code: `python -m tools.reference` writes them, `--check` checks that they are current."""

import sys
import tomllib
from importlib.resources import files
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from chargehand import errors
from chargehand.api.settings import meanings
from chargehand.doors.inference import failures
from chargehand.doors.inference.views import TOPICS
from chargehand.doors.provisioning.job.position import TOPICS as PROVISIONING_TOPICS
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.tasks.metrics import TaskMetrics
from chargehand.doors.tasks.names import ALL_TENANTS
from chargehand.doors.tasks.views import STATUS as TASK_STATUS
from chargehand.engine.job import State
from chargehand.engine.moves import TABLE
from chargehand.http.scopes import SCOPES
from chargehand.observability.metrics import Metrics
from chargehand.observability.tally import Tally, TallyCounter
from tools import command_line_reference, dashboard, events_reference, provisioning_reference

ROOT = Path(__file__).parent.parent
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
        "",
        "## In the words of the tasks door",
        "",
        "| it says | of a job that is |",
        "| --- | --- |",
        *[
            f"| `{status}` | {', '.join(f'`{state}`' for state, said in TASK_STATUS.items() if said == status)} |"
            for status in dict.fromkeys(TASK_STATUS.values())
        ],
        "",
        "A dead letter is `failed` in the stage `dead`; a cancelled task is `FAILED` with the error `CANCELLED`: [tasks.md](tasks.md).",
        "",
        "## In the words of the provisioning door",
        "",
        "| it says | of a job that is |",
        "| --- | --- |",
        *[
            f"| `{status}` | {', '.join(f'`{topic}`' for topic in topics)} |"
            for status, topics in PROVISIONING_TOPICS.items()
        ],
        "",
        "`succeeded` and `failed` are shown while the machine is being put in order; `outcome` says how a complete job ended:",
        "[provisioning.md](provisioning.md).",
    ]
    return "\n".join(lines) + "\n"


def settings() -> str:
    defaults = tomllib.loads((files("chargehand") / "config.default.toml").read_text())
    lines = [
        "# Settings",
        "",
        "From the weakest to the strongest: the defaults, the file given with `--config`, environment variables, options of the",
        "command line. An unknown name or a bad value stops the start with a message that names it. A variable with `_FILE` at its end",
        "(`CHARGEHAND_WEBHOOKS_SECRET_FILE`) names a file that holds the value, which is how secrets are best handed over.",
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
            meaning = _in_markdown(meanings()[f"{section}.{key}"]).replace("|", "\\|")
            variable = f"CHARGEHAND_{section}_{key}".upper()
            lines.append(f"| `{section}.{key}` | `{variable}` | `{default!r}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _in_markdown(meaning: str) -> str:
    """Convert a docstring to Markdown; indented text is an example and keeps its lines."""
    shown, after_example = list[str](), False
    for line in meaning.split("\n"):
        example = line.startswith("  ")
        shown.append(f"<br>`{line[2:]}`" if example else f"{'<br>' * after_example}{line}")
        after_example = example
    return " ".join(shown)


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


def scopes() -> str:
    lines = [
        "# Scopes",
        "",
        "What a token, a user or a JWT may do. `*` allows everything but what must be named, and `jobs:*` everything that begins with",
        "`jobs:`. [security.md](../security.md) says how callers prove who they are.",
        "",
        "| scope | allows |",
        "| --- | --- |",
        *[f"| `{scope}` | {meaning} |" for scope, meaning in SCOPES.items()],
        "",
        f"`{ALL_TENANTS}` must be named: `*` does not include it. Whoever has a scope has it for its own tenant, and sees nothing of another's;",
        "`/metrics`, `/engine/chores` and `/targets` are the server's and know no tenants.",
        "",
        "The engine's own API, deliveries and the console show jobs of all doors. For a job of another door they need a scope of that door",
        "besides: `codeq:produce` or `codeq:admin` to read or cancel a task, `codeq:admin` to requeue it, `provision:read` to read a provisioning",
        "job and `provision:write` to cancel or requeue it. Lists leave out what the caller may not read.",
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
        if isinstance(metric, Tally | TallyCounter):
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
    "reference/events.md": events_reference.events,
    "reference/scopes.md": scopes,
    "reference/command-line.md": command_line_reference.command_line,
    "reference/provisioning-errors.md": provisioning_reference.errors,
    "reference/recipe.md": provisioning_reference.recipe,
}


def everything() -> dict[Path, str]:
    """Return every generated file with its content."""
    made = {ROOT / "docs" / name: MADE + make() for name, make in PAGES.items()}
    return made | {ROOT / "deploy/grafana/chargehand.json": dashboard.dashboard()}


def main() -> None:
    made = everything()
    if "--check" in sys.argv:
        stale = [str(path.relative_to(ROOT)) for path, text in made.items() if not _current(path, text)]
        sys.exit(f"not current, run `make docs`: {', '.join(stale)}" if stale else 0)
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def _current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    main()
