"""`chargehand watch`: follow a job of any door until it ends."""

from typing import TYPE_CHECKING, NoReturn

import typer

from chargehand.commands.connection import connected
from chargehand.commands.exit_codes import FAILED, OF_OUTCOMES
from chargehand.commands.options import DEFAULT_URL, HOW_TO_LIST_JOBS, JobId, Json, Token, Url
from chargehand.commands.refusals import interruptible, job_id_of

if TYPE_CHECKING:
    from chargehand.commands.doors import Door

app = typer.Typer()


@app.command("watch")
def watch(job: JobId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a job of any door as it happens, until it ends: its states, its steps, a chat's answer word by word.

    States go to stderr and the result to stdout, so that it can be piped. The command waits for a server that restarts;
    Ctrl-C leaves the job running. With --json: an object a line, whose `type` is event, token or end; a token that is
    `restarted` takes the place of all before it.

    Exit code 0: succeeded; 1: failed; 3: cancelled.

    Example: chargehand watch 01K8Z4T5Y6M7QW3RX2B9VN0HCD

    Example: chargehand watch 01K8Z4T5Y6M7QW3RX2B9VN0HCD > answer.txt
    """
    watch_to_the_end(job_id_of(job), url, token, json)


def watch_to_the_end(job_id: str, url: str, token: str, json: bool, door: "Door | None" = None) -> NoReturn:
    """End the command with the exit code of the outcome. `door`: that of the job, if the caller knows it."""
    from chargehand.commands.doors import find
    from chargehand.commands.watch.follow import follow

    noun, group, how_to_list = (door.noun, door.group, door.how_to_list) if door else ("job", "jobs", HOW_TO_LIST_JOBS)
    again = f"To watch it again: chargehand watch {job_id}; to cancel it: chargehand {group} cancel {job_id}"
    goes_on = f"{noun.capitalize()} {job_id} continues. {again}"
    with interruptible(goes_on), connected(url, token, how_to_list=how_to_list) as client:
        outcome = follow(client, door or find(client, job_id)[0], job_id, as_json=json)
    raise typer.Exit(OF_OUTCOMES.get(outcome, FAILED))
