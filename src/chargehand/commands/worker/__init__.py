"""`chargehand worker`: run a program for each task."""

from typing import Annotated

import typer

from chargehand.commands.options import DEFAULT_URL, Json, Token, Url
from chargehand.commands.refusals import one_line_errors

app = typer.Typer()


@app.command(context_settings={"allow_interspersed_args": False})  # what follows the program is the program's
def worker(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM…", help="A program and its arguments: the payload is its stdin, the result its stdout."
        ),
    ],
    command: Annotated[list[str], typer.Option(help="The command whose tasks it does; may be repeated.")],
    concurrency: Annotated[int, typer.Option(help="How many tasks run at once.", min=1, max=1000)] = 1,
    lease: Annotated[
        float, typer.Option(help="Seconds after which the task of a worker that died goes to another.", min=1)
    ] = 60,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a try may take. [no limit]", min=0.01)] = None,
    fail_on: Annotated[
        list[int] | None,
        typer.Option(help="An exit code that fails the task without another try; may be repeated.", min=1, max=255),
    ] = None,
    grace: Annotated[float, typer.Option(help="Seconds that running tasks have after SIGTERM or Ctrl-C.", min=0)] = 30,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Run a program for each task: exit code 0 completes the task, after any other the task is tried again.

    Example: chargehand worker --command resize -- ./resize.sh

    Example: chargehand worker --command greet --concurrency 4 -- jq '{text: ("Hello, " + .name)}'
    """
    import uvloop

    from chargehand.commands.worker.program import Program, work
    from chargehand.observability.logs import configure_logs

    with one_line_errors():
        configure_logs("warning", "json" if json else "human")
        done_by = Program(program, timeout, frozenset(fail_on or ()))
        uvloop.run(work(done_by, command, url, token, concurrency, lease, grace, as_json=json))
