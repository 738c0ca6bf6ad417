"""`chargehand targets`: show the model servers behind this server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from chargehand.commands.connection import connected
from chargehand.commands.options import DEFAULT_URL, Json, Token, Url, show_found
from chargehand.commands.text import ago, clean, paint, table

if TYPE_CHECKING:
    from chargehand.client.types.inference import ModelTarget

app = typer.Typer()
SHOWN_MODELS = 12


@app.command("targets")
def targets(url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show the model servers behind this one: which are up, what is in their memory, what they have installed.

    Example: chargehand targets
    """
    with connected(url, token) as client:
        found = client.targets()
    show_found({"targets": found}, json, lambda: target_lines(found))


def target_lines(targets: "Sequence[ModelTarget]") -> list[str]:
    if not targets:
        return ["No targets: start the server with `chargehand serve --target http://127.0.0.1:11434`"]
    rows = [("TARGET", "STATE", "SINCE", "VERSION", "IN MEMORY", "URL")]
    rows += [(each.name, each.state, ago(each.since), each.version or "-", _memory(each), each.url) for each in targets]
    lines = table(rows)
    for each in targets:
        if each.problem:
            lines.append(f"{each.name}: {clean(each.problem)}; jobs for its models wait, and run when it is back")
        if names := each.installed:
            more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
            shown = clean(", ".join(sorted(names)[:SHOWN_MODELS]))
            lines.append(f"{each.name} has {shown}{more}")
        if each.decision:
            lines.append(paint(f"{each.name}: {clean(each.decision)}", "dim"))
    return lines


def _memory(target: "ModelTarget") -> str:
    parts = [
        f"{each.model} ({each.in_flight} of {target.parallel} at work)" if each.in_flight else each.model
        for each in target.resident
    ]
    parts += [f"{model} (loading)" for model in target.loading]
    return f"{', '.join(parts) or 'nothing'}; {target.slots} slots"
