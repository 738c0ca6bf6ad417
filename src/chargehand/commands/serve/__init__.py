"""`chargehand serve`: start the server."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chargehand import __version__
from chargehand.commands.options import Json, show_json
from chargehand.commands.refusals import one_line_errors

if TYPE_CHECKING:
    from chargehand.app import Server
    from chargehand.config import Config

app = typer.Typer()


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings; see config.default.toml.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen. [127.0.0.1:8484]")] = None,
    store: Annotated[str | None, typer.Option(metavar="URL", help="sqlite:///file.db or postgresql://…")] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="With PostgreSQL: how many processes serve, each on a core. [1]")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where files are kept. [./data]")] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="An Ollama server that runs models; may be repeated.")
    ] = None,
    embedded_model: Annotated[
        bool | None,
        typer.Option(
            "--embedded-model/--no-embedded-model",
            help="Run the small model that comes with Chargehand, in a process of its own. Default: if no target is set.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Start the server. SIGTERM or Ctrl-C drains it.

    With --json: an object on stdout when it is ready, which says where, and the log as JSON on stderr.

    Example: chargehand serve

    Example: chargehand serve --listen 127.0.0.1:9090 --target http://laptop.lan:11434
    """
    import asyncio

    import uvloop

    from chargehand.config import load_config
    from chargehand.observability.logs import configure_logs

    with one_line_errors():
        embedded = None if embedded_model is None else "on" if embedded_model else "off"
        overrides = {
            "server.listen": listen,
            "store.url": store,
            "server.processes": processes,
            "server.data_dir": data,
            "inference.embedded": embedded,
        }
        settings = load_config(config, overrides={**overrides, "inference.targets": target or None})
        form = "json" if json else "human" if settings.log.format == "text" else settings.log.format
        configure_logs(settings.log.level, form)
        say = _print_ready if json else _print_banner
        if settings.server.processes > 1:
            from chargehand.commands.serve.parent import run_processes

            code = asyncio.run(run_processes(settings, form, lambda url: say(settings, url), as_json=json))
        else:
            from chargehand.app import serve as serve_app

            code = uvloop.run(serve_app(settings, lambda server: say(settings, server.url, server)))
        raise typer.Exit(code)


def _print_ready(config: "Config", url: str, _server: "Server | None" = None) -> None:
    """For programs, which read the port of --listen HOST:0 here."""
    show_json({"type": "ready", "version": __version__, "url": url, "pid": os.getpid(), "auth": config.has_auth})


def _print_banner(config: "Config", url: str, server: "Server | None" = None) -> None:
    """For people at a terminal."""
    kind = "PostgreSQL" if not config.store_url.startswith("sqlite:") else config.store_url.removeprefix("sqlite:///")
    lines = [
        f"Chargehand {__version__} is running; Ctrl-C stops it.",
        f"  console  {url}/",
        f"  API      {url}/docs",
        f"  metrics  {url}/metrics",
        f"  store    {kind}",
        f"  auth     {'on' if config.has_auth else 'off: only this machine can connect, and everybody on it may do everything'}",
    ]
    if server is None:
        lines.append(f"  nodes    {config.server.processes} processes")
    elif server.inference is not None:
        targets = server.inference.scheduler.targets.values()
        lines += [f"  target   {target.name} at {target.url}: {target.summary()}" for target in targets]
        if not targets:
            note = server.inference.note or "set inference.targets"
            lines.append(f"  target   none: jobs for models wait until there is one ({note})")
    lines += _machines(config, url)
    print("\n".join(lines), file=sys.stderr, flush=True)


def _machines(config: "Config", url: str) -> list[str]:
    """Nothing without a maintenance image: then this server provisions no machines."""
    settings = config.provisioning
    if not settings.enabled or not settings.maintenance_iso:
        return []
    if not Path(settings.maintenance_iso).is_file():
        why = f"provisioning.maintenance_iso is missing: there is no file {settings.maintenance_iso}"
        return [f"  machines none can be provisioned: {why}"]
    return [f"  machines boot {settings.maintenance_iso} from {settings.public_url or url}"]
