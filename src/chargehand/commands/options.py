"""Options and arguments that many commands have."""

import sys
from typing import Annotated, Any

import typer

from chargehand.commands.completing import job_ids
from chargehand.commands.refusals import for_programs, refuse

Url = Annotated[str, typer.Option("--url", help="The server.", envvar="CHARGEHAND_URL", show_envvar=True)]
Token = Annotated[
    str,
    typer.Option(
        "--token", help="Your token. Safer in the environment: arguments can be seen.", envvar="CHARGEHAND_TOKEN"
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="For programs; refusals too, as one object on stderr.", callback=for_programs),
]
JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's id, as `submit` and `jobs list` show it.", autocompletion=job_ids),
]
JobIds = Annotated[
    list[str],
    typer.Argument(metavar="JOB…", help="Ids of jobs, as `submit` and `jobs list` show them.", autocompletion=job_ids),
]
Watch = Annotated[bool, typer.Option("--watch", help="Stay and show what happens, as `watch` does.")]
DEFAULT_URL = "http://127.0.0.1:8484"
MAX_INPUT = 100_000_000  # as much as a server takes by default for a model


def show_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


def called(file: str) -> str:
    return "standard input" if file == "-" else file


def read_file(name: str) -> bytes:
    try:
        if name == "-":
            read = sys.stdin.buffer.read(MAX_INPUT + 1)
        else:
            with open(name, "rb") as file:
                read = file.read(MAX_INPUT + 1)
    except OSError as error:
        refuse(f"{called(name)} cannot be read: {error.strerror}")
    if len(read) > MAX_INPUT:
        refuse(f"{called(name)} has more than {MAX_INPUT} bytes")
    return read
