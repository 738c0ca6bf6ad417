"""`chargehand provision submit`, watch, list, show, cancel, retry and events."""

import sys
import uuid
from typing import Annotated

import typer

from chargehand.commands.exit_codes import FAILED, OF_OUTCOMES
from chargehand.commands.options import (
    DEFAULT_URL,
    JobId,
    Json,
    Token,
    Url,
    Watch,
    called,
    one_of,
    read_file,
    show_found,
    show_json,
)
from chargehand.commands.provision.connection import provisioning
from chargehand.commands.provision.refusals import About, check
from chargehand.commands.refusals import interruptible, job_id_of, refuse, same_again

STATUSES = ("queued", "provisioning", "succeeded", "failed", "complete")

app = typer.Typer()


@app.command("submit")
def submit(
    serial: Annotated[str, typer.Argument(metavar="SERIAL", help="The server, by its serial.")],
    recipe: Annotated[str, typer.Argument(metavar="FILE", help="The recipe, a JSON file; - is standard input.")],
    watch: Watch = False,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Gets every change of status.")] = None,
    idempotency_key: Annotated[
        str, typer.Option(help="The same key with the same recipe gives the same job: a script may safely run twice.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Provision a server by a recipe. Prints the job's id when the job is on the server's disk.

    Example: chargehand provision submit SN-1 linux.json --watch
    """
    import msgspec

    check(About(url, serial=serial))
    given, name = read_file(recipe), called(recipe)
    try:
        msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refuse(f"{name} is not JSON: {error}")
    key = idempotency_key or str(uuid.uuid4())
    in_doubt, facts = same_again(key), {"idempotency_key": key}

    with (
        interruptible(f"The job may have been submitted; {in_doubt}"),
        provisioning(url, token, serial=serial, file=name, in_doubt=in_doubt, facts=facts) as client,
    ):
        made = client.provisioning.submit(serial, given, webhook=webhook, idempotency_key=key)
    if json:
        show_json({"type": "submitted", "kind": "provision", **msgspec.to_builtins(made)})
    elif watch:
        typer.echo(f"job {made.job_id}", err=True)
    else:
        typer.echo(made.job_id)
        if sys.stdout.isatty():
            typer.echo(f"to watch it: chargehand provision watch {made.job_id}", err=True)
    if watch:
        _watch(made.job_id, url, token, json)


@app.command("watch")
def watch_job(job: JobId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a job step by step until it is complete: live on a terminal, else a line for each event; --json: an object a line.

    Events go to stderr, and the outcome to stdout. With --json: lines whose `type` is event or end.

    Exit code 0: succeeded; 1: failed; 3: cancelled. The command waits for a server that restarts. Ctrl-C leaves the job
    running.

    Example: chargehand provision watch 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    _watch(job_id_of(job), url, token, json)


@app.command("list")
def list_jobs(
    status: Annotated[str, typer.Option(metavar="|".join(STATUSES), help="Only jobs with this status.")] = "",
    server: Annotated[str, typer.Option(metavar="SERIAL", help="Only jobs of this server.")] = "",
    limit: Annotated[int, typer.Option(help="How many at most.", min=1)] = 50,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """List jobs, newest first.

    Example: chargehand provision list --server SN-1 --status provisioning
    """
    one_of("--status", status, STATUSES)
    with provisioning(url, token, serial=server) as client:
        jobs = list(client.provisioning.jobs(status=status, serial=server, limit=limit))
        if server and not jobs:
            client.provisioning.server(server)  # refuses an unknown server; a server that was removed may have jobs
    from chargehand.commands.provision.job_text import jobs_table

    none = "No job matches." if status or server else "No jobs yet: chargehand provision submit SERIAL FILE"
    show_found(jobs, json, lambda: jobs_table(jobs) if jobs else [none])


@app.command("show")
def show(job: JobId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a job: its status, its steps with their times, and if it failed, why and what to do.

    Example: chargehand provision show 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    job_id = job_id_of(job)
    with provisioning(url, token) as client:
        found = client.provisioning.job(job_id)
    from chargehand.commands.provision.job_text import job_lines

    show_found(found, json, lambda: job_lines(found))


@app.command("cancel")
def cancel(job: JobId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Cancel a job. Its media are ejected before it is complete.

    A machine that is at work already is left as it is unless the recipe's on_failure says otherwise.

    Example: chargehand provision cancel 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    job_id = job_id_of(job)
    with provisioning(url, token, in_doubt=_to_look(job_id)) as client:
        found = client.provisioning.cancel(job_id)
    done = "cancelled" if found.status == "complete" else "cancelled; its media are being ejected"
    show_found(found, json, lambda: [f"{found.job_id} is {done}."])


@app.command("retry")
def retry(job: JobId, watch: Watch = False, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Start a job that failed or was cancelled again, from the beginning, with the same recipe.

    Example: chargehand provision retry 01K8Z4T5Y6M7QW3RX2B9VN0HCD --watch
    """
    job_id = job_id_of(job)
    with provisioning(url, token, in_doubt=_to_look(job_id)) as client:
        found = client.provisioning.retry(job_id)
    if json:
        show_json({"type": "retried", "job_id": job_id, "kind": "provision"} if watch else found)
    else:
        typer.echo(f"{found.job_id} is {found.status} again.", err=watch)
    if watch:
        _watch(job_id, url, token, json)


@app.command("events")
def events(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", help="Print new events too, until the job is complete.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Print what happened to a job, a line for each event.

    Example: chargehand provision events 01K8Z4T5Y6M7QW3RX2B9VN0HCD --follow
    """
    job_id = job_id_of(job)
    from chargehand.commands.provision.watch import print_event
    from chargehand.commands.watch.notices import AwayNotices

    notices = AwayNotices()
    with interruptible(f"The job continues: chargehand provision watch {job_id}"), provisioning(url, token) as client:
        calls = client.provisioning
        found = calls.watch(job_id, away=notices.away, back=notices.back) if follow else calls.events(job_id)
        for event in found:
            print_event(event, json)


def _to_look(job_id: str) -> str:
    return f"to check: chargehand provision show {job_id}"


def _watch(job_id: str, url: str, token: str, json: bool) -> None:
    if json:  # the same lines as of any job
        from chargehand.commands.doors import TABLE
        from chargehand.commands.watch import watch_to_the_end

        watch_to_the_end(job_id, url, token, json, TABLE["provision"])
    from chargehand.commands.provision.watch import watch

    ending = f"Job {job_id} continues. To watch it again: chargehand provision watch {job_id}; to cancel it: chargehand provision cancel {job_id}"
    with interruptible(ending), provisioning(url, token) as client:
        outcome = watch(client, job_id)
    raise typer.Exit(OF_OUTCOMES.get(outcome or "", FAILED))
