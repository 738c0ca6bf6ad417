"""`chargehand jobs`: list, show, cancel and retry jobs of all doors."""

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.commands.connection import connected
from chargehand.commands.options import (
    DEFAULT_URL,
    HOW_TO_LIST_JOBS,
    JobId,
    JobIds,
    Json,
    Limit,
    Token,
    Url,
    Watch,
    one_of,
    show_found,
    show_json,
    show_page,
)
from chargehand.commands.refusals import each_of, job_id_of, refuse
from chargehand.commands.watch import watch_to_the_end

if TYPE_CHECKING:
    from chargehand.client import Client
    from chargehand.client.types.engine import Job, State
    from chargehand.commands.doors import Door

MAX_EVENTS = 20_000  # `watch --json` prints more
SHOWN_DELIVERIES = 50
STATES: "tuple[State, ...]" = ("queued", "running", "succeeded", "failed", "cancelled")
KINDS = ("inference", "task", "provision", "batch", "flow", "job")

app = typer.Typer(help="Jobs of all doors: list, show, cancel and retry them.", no_args_is_help=True)


@app.command("list")
def list_jobs(
    state: Annotated[
        str, typer.Option(metavar="|".join(STATES), help="Only jobs in this state.", autocompletion=lambda: STATES)
    ] = "",
    kind: Annotated[
        str, typer.Option(metavar="|".join(KINDS), help="Only jobs of this door.", autocompletion=lambda: KINDS)
    ] = "",
    queue: Annotated[
        str, typer.Option(help="Only jobs of this queue: a model, a command, a server's serial or a name; with --kind.")
    ] = "",
    limit: Limit = 20,
    before: Annotated[
        str, typer.Option(metavar="JOB", help="Only jobs older than this one: the next page, as `next` names it.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """List jobs of all doors, newest first.

    Example: chargehand jobs list --state failed

    Example: chargehand jobs list --kind task --queue resize --limit 100 --json
    """
    by_state = one_of("--state", state, STATES)
    one_of("--kind", kind, KINDS)
    if queue and not kind:
        refuse(f"--queue {queue} needs the kind of the queue too: --kind {'|'.join(KINDS)}")
    from chargehand.commands.jobs.text import jobs_table

    name = queue.strip().lower() if kind == "task" else queue  # commands are the same in any case
    cursor = job_id_of(before) if before else ""
    with connected(url, token) as client:
        jobs = client.engine.jobs(state=by_state, kind=kind, queue=name, before=cursor, limit=limit + 1)
        found = list(islice(jobs, limit + 1))
    none = "No job matches." if state or kind or before else "No jobs yet: chargehand submit --help"
    show_page("jobs", found, limit, json, jobs_table, none)


@app.command("show")
def show(job: JobId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a job: its state, why it waits, its request, its result, and its events.

    With --json: the job as the engine has it, with its `events`, and under `door` as its door shows it.

    Example: chargehand jobs show 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    job_id = job_id_of(job)
    import msgspec

    from chargehand.commands.doors import find, own_job
    from chargehand.commands.jobs.text import job_lines

    with connected(url, token, how_to_list=HOW_TO_LIST_JOBS) as client:
        door, found = find(client, job_id)
        own = own_job(client, door, found)
        events = list(islice(client.engine.events(job_id), MAX_EVENTS))
        deliveries = list(client.deliveries.find(job=job_id, limit=SHOWN_DELIVERIES))
    whole = {**msgspec.to_builtins(found), "events": events, "deliveries": deliveries, "door": own}
    show_found(whole, json, lambda: job_lines(found, own, events, deliveries))


@app.command("cancel")
def cancel(jobs: JobIds, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Cancel jobs. A running job is stopped; a provisioning job ejects its media first.

    If one is refused, the command goes on with the others: exit code 1 if only some were cancelled.

    Example: chargehand jobs cancel 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    from chargehand.commands.doors import cancel as do
    from chargehand.commands.jobs.text import cancelled_line

    def one(job_id: str) -> None:
        _, found = _changed(do, job_id, url, token)
        show_found(found, json, lambda: [cancelled_line(found.id, found.state)])

    each_of([job_id_of(each) for each in jobs], one)


@app.command("retry")
def retry(jobs: JobIds, watch: Watch = False, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Give jobs that failed or were cancelled all their attempts again.

    If one is refused, the command goes on with the others: exit code 1 if only some are tried again.

    Example: chargehand jobs retry 01K8Z4T5Y6M7QW3RX2B9VN0HCD --watch
    """
    from chargehand.commands.doors import retry as do

    if watch and len(jobs) > 1:
        refuse("--watch: only one job can be watched at a time")

    def one(job_id: str) -> None:
        door, found = _changed(do, job_id, url, token)
        if json:
            show_json({"type": "retried", "job_id": job_id, "kind": door.kind} if watch else found)
        else:
            typer.echo(f"{found.id} is {found.state} again.", err=watch)
        if watch:
            watch_to_the_end(found.id, url, token, json, door)

    each_of([job_id_of(each) for each in jobs], one)


def _changed(do: "Callable[[Client, str], tuple[Door, Job]]", job_id: str, url: str, token: str) -> "tuple[Door, Job]":
    look = f"to check: chargehand jobs show {job_id}"
    facts = {"job_id": job_id}
    with connected(url, token, how_to_list=HOW_TO_LIST_JOBS, in_doubt=look, facts=facts) as client:
        return do(client, job_id)
