"""`chargehand watch JOB`."""

from typing import TYPE_CHECKING, NoReturn

import typer

from chargehand.commands.exit_codes import FAILED, OF_OUTCOMES
from chargehand.commands.options import DEFAULT_URL, JobId, Json, Token, Url
from chargehand.commands.refusals import interruptible, job_id_of

if TYPE_CHECKING:
    from chargehand.commands.calling import Api
    from chargehand.commands.doors import Door

app = typer.Typer()
HOW_TO_LIST = "chargehand jobs list"


@app.command("watch")
def watch(job: JobId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a job of any door as it happens, until it ends: its states, its steps, a chat's answer word by word.

    States go to stderr and the result to stdout, so that it can be piped. A server that restarts meanwhile is waited for;
    Ctrl-C leaves the job running. With --json: an object a line, whose `type` is event, token or end; a token that is
    `restarted` takes the place of all before it.

    Exit code 0: succeeded; 1: failed; 3: cancelled.

    Example: chargehand watch 01K8Z4T5Y6M7QW3RX2B9VN0HCD

    Example: chargehand watch 01K8Z4T5Y6M7QW3RX2B9VN0HCD > answer.txt
    """
    watch_to_the_end(job_id_of(job), url, token, json)


def watch_to_the_end(job_id: str, url: str, token: str, json: bool, door: "Door | None" = None) -> NoReturn:
    """Ends the command with the exit code of the outcome. Whoever submitted a job knows its door already."""
    from chargehand.commands.calling import ask
    from chargehand.commands.doors import find
    from chargehand.commands.watch.show import watch as shown

    async def do(api: "Api") -> str:
        found = door or (await find(api, job_id))[0]
        return await shown(api, found, job_id, token, as_json=json)

    goes_on = (
        f"Job {job_id} goes on. To see it again: chargehand watch {job_id}; to end it: chargehand jobs cancel {job_id}"
    )
    with interruptible(goes_on):
        outcome = ask(url, token, do, how_to_list=HOW_TO_LIST)
    raise typer.Exit(OF_OUTCOMES.get(outcome, FAILED))
