"""`chargehand jobs`: what there is, one of them, and the two things that may be done to it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.commands.options import DEFAULT_URL, JobId, JobIds, Json, Token, Url, Watch, show_json
from chargehand.commands.refusals import each_of, job_id_of, refuse
from chargehand.commands.watch import HOW_TO_LIST, watch_to_the_end

if TYPE_CHECKING:
    from chargehand.commands.calling import Api
    from chargehand.commands.calling import Json as Told
    from chargehand.commands.doors import Door

PAGE = 500  # the most that a server gives at once
STATES = ("queued", "running", "succeeded", "failed", "cancelled")
KINDS = ("inference", "task", "provision", "batch", "job")

app = typer.Typer(help="Jobs of all doors: list them, look at one, cancel it, try it again.", no_args_is_help=True)


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
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 20,
    before: Annotated[
        str, typer.Option(metavar="JOB", help="Only those older than this one: the next page, as `next` names it.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """List jobs of all doors, newest first.

    Example: chargehand jobs list --state failed

    Example: chargehand jobs list --kind task --queue resize --limit 100 --json
    """
    _one_of("--state", state, STATES)
    _one_of("--kind", kind, KINDS)
    if queue and not kind:
        refuse(f"--queue {queue}: say of which kind, too: --kind {'|'.join(KINDS)}")
    from chargehand.commands.calling import ask
    from chargehand.commands.jobs.text import jobs_table

    async def do(api: "Api") -> "tuple[list[Told], str | None]":
        found: list[Told] = []
        name = queue.strip().lower() if kind == "task" else queue  # commands are the same in any case
        by = {key: value for key, value in (("state", state), ("kind", kind), ("queue", name)) if value}
        cursor: str | None = job_id_of(before) if before else ""
        while cursor is not None and len(found) < limit:
            size = {"limit": str(min(PAGE, limit - len(found)))}
            page = await api.get("/engine/jobs", {**by, **size, **({"cursor": cursor} if cursor else {})})
            found += page["jobs"]
            cursor = page["next"]
        return found, cursor

    found, following = ask(url, token, do)
    if json:
        show_json({"jobs": found, "next": following})
        return
    if not found:
        typer.echo("There are none." if state or kind or before else "There are none yet: chargehand submit --help")
        return
    typer.echo("\n".join(jobs_table(found)))
    if following:
        typer.echo(f"There may be more: --before {following}, or a higher --limit.", err=True)


@app.command("show")
def show(job: JobId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a job: where it is, why it waits, what was asked and what came of it, and what happened when.

    With --json: the job as the engine has it, with its `events`, and under `door` as its door shows it.

    Example: chargehand jobs show 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    job_id = job_id_of(job)
    from chargehand.commands.calling import ask
    from chargehand.commands.doors import all_events, find
    from chargehand.commands.jobs.text import job_lines

    async def do(api: "Api") -> "tuple[Told, Told, list[Told], list[Told]]":
        door, found = await find(api, job_id)
        own = found if door.job.startswith("/engine") else await api.get(door.job.format(id=job_id))
        events = await all_events(api, job_id)
        deliveries = (await api.get("/engine/deliveries", {"job": job_id}))["deliveries"]
        return found, own, events, deliveries

    found, own, events, deliveries = ask(url, token, do, how_to_list=HOW_TO_LIST)
    if json:
        show_json({**found, "events": events, "deliveries": deliveries, "door": own})
    else:
        typer.echo("\n".join(job_lines(found, own, events, deliveries)))


@app.command("cancel")
def cancel(jobs: JobIds, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Cancel jobs. What runs is stopped; of a server its media are ejected first.

    One that is refused does not keep the others: exit code 1 if only some were cancelled.

    Example: chargehand jobs cancel 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    from chargehand.commands.doors import cancel as do

    def one(job_id: str) -> None:
        _, found = _changed(do, job_id, url, token)
        if json:
            show_json(found)
        else:
            done = "cancelled" if found["state"] == "cancelled" else f"being cancelled, and still {found['state']}"
            typer.echo(f"{found['id']} is {done}.")

    each_of([job_id_of(each) for each in jobs], one)


@app.command("retry")
def retry(jobs: JobIds, watch: Watch = False, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Give jobs that failed or were cancelled all their attempts again.

    One that is refused does not keep the others: exit code 1 if only some are tried again.

    Example: chargehand jobs retry 01K8Z4T5Y6M7QW3RX2B9VN0HCD --watch
    """
    from chargehand.commands.doors import retry as do

    if watch and len(jobs) > 1:
        refuse("--watch: one job can be watched at a time")

    def one(job_id: str) -> None:
        door, found = _changed(do, job_id, url, token)
        if json:
            show_json({"type": "retried", "job_id": job_id, "kind": door.kind} if watch else found)
        else:
            typer.echo(f"{found['id']} is {found['state']} again.", err=watch)
        if watch:
            watch_to_the_end(found["id"], url, token, json, door)

    each_of([job_id_of(each) for each in jobs], one)


def _changed(
    do: "Callable[[Api, str], Awaitable[tuple[Door, Told]]]", job_id: str, url: str, token: str
) -> "tuple[Door, Told]":
    from chargehand.commands.calling import ask

    return ask(
        url,
        token,
        lambda api: do(api, job_id),
        how_to_list=HOW_TO_LIST,
        in_doubt=f"to look: chargehand jobs show {job_id}",
        facts={"job_id": job_id},
    )


def _one_of(option: str, given: str, allowed: tuple[str, ...]) -> None:
    if given and given not in allowed:
        refuse(f"{option} {given}: say one of {', '.join(allowed)}")
