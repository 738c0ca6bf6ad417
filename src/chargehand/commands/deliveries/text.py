"""Deliveries and endpoints as text."""

from collections.abc import Sequence

from chargehand.client.types.deliveries import Delivery, DeliveryWithTries, Endpoint
from chargehand.commands.text import OF_WORDS, ago, clean_lines, clock, columns, day, table

SHOWN_ANSWER = 300


def deliveries_table(deliveries: Sequence[Delivery]) -> list[str]:
    rows = [("DELIVERY", "JOB", "STATE", "TRIES", "CREATED", "URL", "NOTE")]
    rows += [
        (each.id, each.job_id, each.state, str(each.tries), ago(each.created_at), each.url, _note(each))
        for each in deliveries
    ]
    return table(rows)


def _note(delivery: Delivery) -> str:
    due = f"due {ago(delivery.due_at)}" if delivery.state == "pending" and delivery.tries else ""
    return "; ".join(filter(None, (delivery.reason, due)))


def delivery_lines(delivery: DeliveryWithTries) -> list[str]:
    rows = [
        ("delivery", delivery.id),
        ("about", f"job {delivery.job_id}, event {delivery.sequence}"),
        ("to", f"{delivery.url}, dialect {delivery.dialect}"),
        ("endpoint", delivery.endpoint_id),
        ("state", delivery.state),
        ("created", f"{day(delivery.created_at)}, {ago(delivery.created_at)}"),
    ]
    rows += [("due", f"{day(delivery.due_at)}, {ago(delivery.due_at)}")] if delivery.state == "pending" else []
    rows += [("reason", delivery.reason)] if delivery.reason else []
    lines = columns(rows, styles=OF_WORDS)
    tries = delivery.attempts
    if tries:
        lines += ["", "tries, newest first"]
        said = [
            (
                str(each.number),
                clock(each.at),
                str(each.status or "-"),
                f"{each.duration_seconds * 1000:.0f} ms",
                each.error,
            )
            for each in tries
        ]
        lines += columns(said, "  ")
        if answer := clean_lines(tries[0].answer[:SHOWN_ANSWER]).strip():
            lines += ["", "the last answer began with", *(f"  | {line}" for line in answer.splitlines())]
    if delivery.state == "dead":
        lines += ["", f"to send it once more: chargehand deliveries replay {delivery.id}"]
    return lines


def endpoints_table(endpoints: Sequence[Endpoint]) -> list[str]:
    rows = [("ENDPOINT", "STATE", "DUE", "DEAD", "OLDEST DUE", "URL", "NOTE")]
    rows += [
        (each.id, each.state, str(each.pending), str(each.dead), ago(each.oldest_due_at), each.url, each.reason)
        for each in endpoints
    ]
    return table(rows)
