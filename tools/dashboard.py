"""The Grafana dashboard as a table of panels; `make docs` writes it as the JSON that Grafana imports.

Gauges of queues count the whole store on every node, so nodes are combined by max; counters are per node, so by sum.
"""

from typing import Any, NamedTuple

import msgspec

WIDTH = 24  # columns of Grafana's grid
COLUMNS = 3
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${source}"}


class Panel(NamedTuple):
    title: str
    unit: str  # Grafana's name of the unit
    lines: dict[str, str]  # legend -> expression


def slow(metric: str, by: str, share: float = 0.95) -> str:
    return f"histogram_quantile({share:g}, sum by ({by}, le) (rate({metric}_bucket[5m])))"


def each_second(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[5m]))"


# fmt: off
ROWS: dict[str, list[Panel]] = {
    "The server": [
        Panel("Store", "bool_yes_no", {"{{instance}}": "max by (instance) (chargehand_store_up)"}),
        Panel("Periodic work", "bool_yes_no", {"{{chore}} at {{instance}}": "max by (chore, instance) (chargehand_chore_up)"}),
        Panel("Turns of periodic work, one in twenty is slower", "s", {"{{chore}}": slow("chargehand_chore_seconds", "chore")}),
        Panel("Periodic work that fails", "ops", {"{{chore}}": each_second("chargehand_chore_failures_total", "chore")}),
        Panel("Requests", "reqps", {"{{status}}": each_second("chargehand_http_request_seconds_count", "status")}),
        Panel("Time to answer, one in twenty is slower", "s", {"{{method}} {{route}}": slow("chargehand_http_request_seconds", "method, route")}),
    ],
    "Jobs": [
        Panel("Waiting, by queue", "short", {"{{queue}}": 'max by (queue) (chargehand_queue_jobs{state="ready"})'}),
        Panel("Running, by queue", "short", {"{{queue}}": 'max by (queue) (chargehand_queue_jobs{state="running"})'}),
        Panel("Age of the oldest that waits", "s", {"{{queue}}": "max by (queue) (chargehand_queue_oldest_seconds)"}),
        Panel("Moves", "ops", {"{{kind}} {{move}}": each_second("chargehand_moves_total", "kind, move")}),
        Panel("From due to claimed, one in twenty is slower", "s", {"{{kind}}": slow("chargehand_claim_wait_seconds", "kind")}),
        Panel("From submission to the end, one in twenty is slower", "s", {"{{kind}} {{state}}": slow("chargehand_job_seconds", "kind, state")}),
    ],
    "Webhooks": [
        Panel("Tries", "ops", {"{{outcome}}": each_second("chargehand_deliveries_total", "outcome")}),
        Panel("From the event to its delivery, one in twenty is slower", "s", {"{{dialect}}": slow("chargehand_delivery_lag_seconds", "dialect")}),
        Panel("Overdue, and endpoints left alone", "short", {
            "seconds overdue": "max(chargehand_deliveries_oldest_due_seconds)",
            "left alone by {{instance}}": "max by (instance) (chargehand_breakers_open)",
            "in flight at {{instance}}": "max by (instance) (chargehand_deliveries_in_flight)",
        }),
    ],
    "Models": [
        Panel("Targets that are there", "bool_yes_no", {"{{target}} from {{instance}}": "max by (target, instance) (chargehand_inference_target_up)"}),
        Panel("Requests at targets", "short", {"{{target}}": "sum by (target) (chargehand_inference_in_flight)"}),
        Panel("Tokens", "ops", {"{{target}}": each_second("chargehand_inference_tokens_total", "target")}),
        Panel("To the first token, one in twenty is slower", "s", {"{{target}}": slow("chargehand_inference_first_token_seconds", "target")}),
        Panel("To load a model, one in twenty is slower", "s", {"{{target}}": slow("chargehand_inference_load_seconds", "target")}),
        Panel("Failures and evictions", "ops", {
            "{{kind}}": each_second("chargehand_inference_failures_total", "kind"),
            "evictions at {{target}}": each_second("chargehand_inference_evictions_total", "target"),
        }),
    ],
    "Tasks": [
        Panel("Ready, by command", "short", {"{{command}}": 'max by (command) (codeq_queue_depth{queue="ready"})'}),
        Panel("Created, claimed and ended", "ops", {
            "created": "sum(rate(codeq_task_created_total[5m]))",
            "claimed": "sum(rate(codeq_task_claimed_total[5m]))",
            "{{status}}": each_second("codeq_task_completed_total", "status"),
        }),
        Panel("Dead letters", "short", {"{{command}}": "max by (command) (codeq_dlq_depth)"}),
        Panel("From creation to the end, one in twenty is slower", "s", {"{{command}}": slow("codeq_task_processing_latency_seconds", "command")}),
        Panel("Leases that ran out", "ops", {"{{command}}": each_second("codeq_lease_expired_total", "command")}),
        Panel("Notifications and callbacks", "ops", {"{{kind}} {{outcome}}": each_second("codeq_webhook_deliveries_total", "kind, outcome")}),
    ],
    "Machines": [
        Panel("Jobs that changed to", "ops", {"{{to}}": each_second("job_transitions_total", "to")}),
        Panel("Failures, in an hour", "short", {"{{failed_step}}": "sum by (failed_step) (increase(provisioning_failures_total[1h]))"}),
        Panel("From submission to the end, one in twenty is slower", "s", {"{{outcome}}": slow("job_duration_seconds", "outcome")}),
        Panel("Requests to BMCs, one in twenty is slower", "s", {"{{vendor}} {{operation}}": slow("redfish_request_duration_seconds", "vendor, operation")}),
        Panel("Requests to BMCs that did not go well", "ops", {"{{vendor}} {{operation}}": each_second("redfish_request_failures_total", "vendor, operation")}),
        Panel("Status webhooks of machines", "ops", {"{{status}}": each_second("webhook_received_total", "status")}),
    ],
}
# fmt: on


def dashboard() -> str:
    model = {
        "uid": "chargehand",
        "title": "Chargehand",
        "tags": ["chargehand"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": _panels(),
    }
    return msgspec.json.format(msgspec.json.encode(model), indent=2).decode() + "\n"


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for row, panels in ROWS.items():
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        made.append(
            {"id": len(made) + 1, "type": "row", "title": row, "collapsed": False, "gridPos": place, "panels": []}
        )
        y += 1
        for index, panel in enumerate(panels):
            width = WIDTH // COLUMNS
            place = {"x": index % COLUMNS * width, "y": y + index // COLUMNS * HEIGHT, "w": width, "h": HEIGHT}
            made.append(_panel(len(made) + 1, panel, place))
        y += -(-len(panels) // COLUMNS) * HEIGHT
    return made


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(panel.lines.items())
        ],
    }
