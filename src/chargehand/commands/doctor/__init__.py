"""`chargehand doctor`: check everything that a server needs, and change nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.commands.exit_codes import FAILED
from chargehand.commands.options import Json, Token, show_found

if TYPE_CHECKING:
    from chargehand.commands.doctor.finding import Finding

app = typer.Typer()


@app.command("doctor")
def doctor(
    config: Annotated[Path | None, typer.Option(help="The file with settings that you give to `serve`.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="As for `serve`.")] = None,
    store: Annotated[str | None, typer.Option(metavar="URL", help="As for `serve`.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="As for `serve`.")] = None,
    url: Annotated[
        str, typer.Option(help="A running server's URL. [of the settings]", envvar="CHARGEHAND_URL", show_envvar=True)
    ] = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Check settings, store, disk, files, targets, egress, clock, port and parts, and say what to do about each problem.

    Give it the options that you give to `serve`. It changes nothing, and may be run beside a running server or before the first start.

    Exit code 0: nothing failed, though there may be warnings; 1: something failed.

    Example: chargehand doctor

    Example: chargehand doctor --config chargehand.toml --json
    """
    import asyncio

    from chargehand.commands.doctor.examination import examine

    overrides = {"server.listen": listen, "store.url": store, "server.data_dir": data}
    findings = asyncio.run(examine(config, overrides, url, token))
    well = not any(finding.state == "failed" for finding in findings)
    show_found({"ok": well, "findings": findings}, json, lambda: _lines(findings))
    raise typer.Exit(0 if well else FAILED)


def _lines(findings: "list[Finding]") -> list[str]:
    from chargehand.commands.text import OF_WORDS, columns, plural

    rows = columns([(each.state.value, each.check, each.text) for each in findings], styles=OF_WORDS)
    lines = []
    for row, finding in zip(rows, findings, strict=True):
        lines += [row, *([f"         {finding.advice}"] if finding.advice else [])]
    counts = {state: sum(each.state == state for each in findings) for state in ("ok", "warning", "failed")}
    warnings = plural(counts["warning"], "warning")
    return [*lines, "", f"{counts['ok']} ok, {warnings}, {counts['failed']} failed"]
