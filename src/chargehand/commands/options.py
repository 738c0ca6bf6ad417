"""Options and arguments that many commands have."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from chargehand.commands.refusals import ID, for_programs, refuse

T = TypeVar("T", bound=str)

DEFAULT_URL = "http://127.0.0.1:8484"
HOW_TO_LIST_JOBS = "chargehand jobs list"
HOW_TO_LIST_FLOWS = "chargehand flows list"
MAX_INPUT = 100_000_000  # as much as a server accepts by default for a model
COMPLETED_JOBS = 30
COMPLETION_SECONDS = 0.5
MAX_COMPLETION = 1 << 20


def job_ids(incomplete: str) -> list[tuple[str, str]]:
    """Complete the id of a job with the newest ones."""
    return _newest(incomplete)


def flow_ids(incomplete: str) -> list[tuple[str, str]]:
    return _newest(incomplete, "&kind=flow")


def step_names(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete the name of a step of the flow that stands before it on the command line."""
    words = [
        str(context.params.get("flow")),
        *context.args,
    ]  # an option without a value keeps the arguments from being parsed
    flow = next(filter(ID.fullmatch, map(str.upper, words)), "")
    steps = _asked(f"/engine/flows/{flow}", "steps") if flow else []
    return [(step["name"], step["state"]) for step in steps if step["name"].startswith(incomplete)]


def _newest(incomplete: str, which: str = "") -> list[tuple[str, str]]:
    return [
        (job["id"], f"{job['kind']} {job['queue']}: {job['state']}")
        for job in _asked(f"/engine/jobs?limit={COMPLETED_JOBS}{which}", "jobs")
        if job["id"].startswith(incomplete.upper())
    ]


def _asked(path: str, member: str) -> list[dict[str, Any]]:
    """Read a list if the server answers at once. Without the client, which is slow to import."""
    url = os.environ.get("CHARGEHAND_URL") or DEFAULT_URL
    token = os.environ.get("CHARGEHAND_TOKEN", "")
    if not url.startswith(("http://", "https://")):
        return []
    try:
        import urllib.request

        import msgspec

        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            f"{url.rstrip('/')}{path}",
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        with urllib.request.urlopen(request, timeout=COMPLETION_SECONDS) as answer:  # noqa: S310
            found: list[dict[str, Any]] = msgspec.json.decode(answer.read(MAX_COMPLETION))[member]
            return found
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
FlowId = Annotated[
    str,
    typer.Argument(
        metavar="FLOW", help="The flow's id, as `flows submit` and `flows list` show it.", autocompletion=flow_ids
    ),
]
FlowIds = Annotated[
    list[str],
    typer.Argument(
        metavar="FLOW…", help="Ids of flows, as `flows submit` and `flows list` show them.", autocompletion=flow_ids
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")]
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


def show_page(
    member: str,
    found: Sequence[Any],
    limit: int,
    json: bool,
    lines: Callable[[Sequence[Any]], Iterable[str]],
    none: str,
) -> None:
    """Print a list of at most `limit`, of which one more was asked for, so that it is known whether there are more."""
    shown, following = found[:limit], found[limit - 1].id if len(found) > limit else None
    if json:
        show_json({member: shown, "next": following})
    elif shown:
        typer.echo("\n".join(lines(shown)))
        if following:
            typer.echo(f"There may be more: --before {following}, or a higher --limit.", err=True)
    else:
        typer.echo(none)


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
