"""Options and arguments that many commands have."""

import os
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

from chargehand.commands.refusals import for_programs, refuse

T = TypeVar("T", bound=str)

DEFAULT_URL = "http://127.0.0.1:8484"
HOW_TO_LIST_JOBS = "chargehand jobs list"
MAX_INPUT = 100_000_000  # as much as a server accepts by default for a model
COMPLETED_JOBS = 30
COMPLETION_SECONDS = 0.5
MAX_COMPLETION = 1 << 20


def job_ids(incomplete: str) -> list[tuple[str, str]]:
    """Complete the id of a job with the newest ones, if the server answers at once. Without the client, which is slow to import."""
    url = os.environ.get("CHARGEHAND_URL") or DEFAULT_URL
    token = os.environ.get("CHARGEHAND_TOKEN", "")
    if not url.startswith(("http://", "https://")):
        return []
    try:
        import urllib.request

        import msgspec

        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            f"{url.rstrip('/')}/engine/jobs?limit={COMPLETED_JOBS}",
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        with urllib.request.urlopen(request, timeout=COMPLETION_SECONDS) as answer:  # noqa: S310
            jobs = msgspec.json.decode(answer.read(MAX_COMPLETION))["jobs"]
        return [
            (job["id"], f"{job['kind']} {job['queue']}: {job['state']}")
            for job in jobs
            if job["id"].startswith(incomplete.upper())
        ]
    except Exception:  # whatever it is: a shell that completes cannot show it
        return []


Url = Annotated[str, typer.Option("--url", help="The URL of the server.", envvar="CHARGEHAND_URL", show_envvar=True)]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        help="Your token. The environment is safer: other users can see arguments.",
        envvar="CHARGEHAND_TOKEN",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print JSON for programs, and a refusal as one JSON object on stderr.", callback=for_programs
    ),
]
JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's id, as `submit` and `jobs list` show it.", autocompletion=job_ids),
]
JobIds = Annotated[
    list[str],
    typer.Argument(metavar="JOB…", help="Ids of jobs, as `submit` and `jobs list` show them.", autocompletion=job_ids),
]
Watch = Annotated[bool, typer.Option("--watch", help="Show what happens to the job until it ends, as `watch` does.")]


def one_of(option: str, given: str, allowed: tuple[T, ...]) -> T | None:
    """The value of an option that allows only some; None if it was not given."""
    for each in allowed:
        if given == each:
            return each
    if given:
        refuse(f"{option} {given} is not known: it must be one of {', '.join(allowed)}")
    return None


def show_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


def show_found(value: Any, json: bool, lines: Callable[[], Iterable[str]]) -> None:
    """Print what a command found: for programs the value, for people the lines."""
    if json:
        show_json(value)
    else:
        typer.echo("\n".join(lines()))


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
