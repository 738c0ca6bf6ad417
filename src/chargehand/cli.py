"""The command line: the table of all commands, each of which is a file or a room in `commands/`."""

import os
import sys
from typing import Annotated

import typer

from chargehand import __version__
from chargehand.commands import (
    bench,
    completion,
    deliveries,
    demo,
    doctor,
    flows,
    jobs,
    listen,
    provision,
    serve,
    submit,
    targets,
    token,
    watch,
    worker,
)
from chargehand.commands.exit_codes import INTERRUPTED
from chargehand.commands.refusals import MISUNDERSTOOD, misunderstood

app = typer.Typer(
    help="Chargehand takes jobs in, hands them to whoever can do them, and reports back by signed webhooks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,  # `completion` prints the script; typer's own options write into users' files
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order of --help: what a new user needs first comes first.
PANELS = {
    "Begin": (serve, demo, doctor),
    "Jobs": (submit, watch),
    "Webhooks": (listen,),
    "Work": (worker, targets),
    "More": (token, bench, completion),
}
GROUPS = {
    "Jobs": {"jobs": jobs, "flows": flows},
    "Webhooks": {"deliveries": deliveries},
    "Work": {"provision": provision},
}

for panel, commands in PANELS.items():
    for command in commands:
        [registered] = command.app.registered_commands
        registered.rich_help_panel = panel
        app.registered_commands.append(registered)
    for name, group in GROUPS.get(panel, {}).items():
        app.add_typer(group.app, name=name, rich_help_panel=panel)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"chargehand {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 succeeded, 1 failed, 2 refused, 3 cancelled, 4 may have been done, 130 Ctrl-C. See docs/command-line.md."
)
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    if completion.VARIABLE in os.environ:
        completion.prepare()
    try:
        code = app(standalone_mode=False)
    except MISUNDERSTOOD as error:
        code = misunderstood(error, as_json="--json" in sys.argv)
    except typer.Abort:
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)
