"""`chargehand worker`: run a program for each task, or the functions that an app declares."""

from typing import Annotated

import typer

from chargehand.commands.options import DEFAULT_URL, Json, Token, Url
from chargehand.commands.refusals import one_line_errors, refuse

app = typer.Typer()


@app.command(context_settings={"allow_interspersed_args": False})  # what follows the program is the program's
def worker(
    context: typer.Context,
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="APP|PROGRAM…",
            help="An app, MODULE:APP or a package that has one; or with --command a program and its arguments: the payload is its stdin, the result its stdout.",
        ),
    ],
    command: Annotated[
        list[str] | None, typer.Option(help="The command whose tasks the program does; may be repeated.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="One of the app's queues; may be repeated. [all of them]")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what the server has by what the app declares.")
    ] = False,
    processes: Annotated[
        int,
        typer.Option(help="Run the app's functions in so many processes, in place of --concurrency.", min=0, max=1000),
    ] = 0,
    max_tasks_per_child: Annotated[
        int | None, typer.Option(help="Replace such a process after so many tasks. [never]", min=1)
    ] = None,
    max_memory_per_child: Annotated[
        int | None,
        typer.Option(help="Replace such a process after a task that left it above so many bytes. [never]", min=1),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="How many tasks run at once.", min=1, max=1000)] = 1,
    lease: Annotated[
        float, typer.Option(help="Seconds after which the task of a worker that died goes to another.", min=1)
    ] = 60,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a try may take. [no limit]", min=0.01)] = None,
    soft_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds after which SoftTimeLimit is raised in the app's function. [no limit]", min=0.01),
    ] = None,
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

    Or run the functions that an app declares, whose modules called tasks are imported.

    Example: chargehand worker --command resize -- ./resize.sh

    Example: chargehand worker --command greet --concurrency 4 -- jq '{text: ("Hello, " + .name)}'

    Example: chargehand worker --concurrency 4 shop.app:app
    """
    import uvloop

    from chargehand.commands.worker.declared import find_app, serve, worker_of
    from chargehand.commands.worker.program import Program, work
    from chargehand.observability.logs import configure_logs

    with one_line_errors():
        configure_logs("warning", "json" if json else "human")
        if command:
            if queue or overwrite or processes or max_tasks_per_child or max_memory_per_child or soft_timeout:
                refuse(
                    "--queue, --overwrite, --processes, --max-tasks-per-child, --max-memory-per-child and --soft-timeout "
                    "are for an app, --command is for a program"
                )
            done_by = Program(program, timeout, frozenset(fail_on or ()))
            uvloop.run(work(done_by, command, url, token, concurrency, lease, grace, as_json=json))
            return
        if len(program) > 1 or fail_on:
            refuse(
                f"{program[0]}: a program needs --command, the command whose tasks it does; an app comes last, after "
                "its options, and --fail-on is none of them"
            )
        app = find_app(program[0])
        if _given(context, "url") or _given(context, "token"):
            app.connect(url, token or None)
        options = {"lease_seconds": lease, "grace_seconds": grace, "timeout": timeout, "soft_timeout": soft_timeout}
        options |= {
            "processes": processes or None,
            "max_tasks_per_child": max_tasks_per_child,
            "max_memory_per_child": max_memory_per_child,
            "concurrency": concurrency,
        }
        working = worker_of(app, queue or (), options, overwrite=overwrite, as_json=json)
        uvloop.run(serve(working, as_json=json))


def _given(context: typer.Context, name: str) -> bool:
    """Return whether the option was given on the command line: what the environment says, an app reads itself."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
