"""Send what is submitted, once, print its id, and watch it if asked to."""

import sys
import uuid
from collections.abc import Callable, Mapping
from typing import NoReturn

import typer

from chargehand.client import ClientError
from chargehand.commands.connection import connected
from chargehand.commands.doors import TABLE
from chargehand.commands.options import show_json
from chargehand.commands.refusals import interruptible, same_again
from chargehand.commands.submit.requests import Submission
from chargehand.commands.watch import watch_to_the_end

Explain = Callable[[ClientError, str], NoReturn]


def send(
    made: Submission,
    key: str,
    url: str,
    token: str,
    *,
    watch: bool,
    json: bool,
    refusals: Callable[[Mapping[str, str]], Explain] | None = None,
) -> None:
    """`refusals` explains the errors of a door that has words of its own; it gets the facts for programs."""
    # The command makes a key where none is given, so that the client can repeat a request whose answer is lost without a second
    # job, and the user, who is shown the key, can do so after the command has given up.
    name = key or str(uuid.uuid4())
    door, in_doubt, facts = TABLE[made.kind], same_again(name), {"idempotency_key": name}
    with (
        interruptible(f"The {door.noun} may have been submitted; {in_doubt}"),
        connected(
            url, token, in_doubt=in_doubt, facts=facts, explain_otherwise=refusals(facts) if refusals else None
        ) as client,
    ):
        job_id = made.send(client, name)
    if json:
        show_json({"type": "submitted", "job_id": job_id, "kind": made.kind})
    elif watch:
        typer.echo(f"{door.noun} {job_id}", err=True)
    else:
        typer.echo(job_id)
        if sys.stdout.isatty():
            typer.echo(f"to watch it: chargehand watch {job_id}", err=True)
    if watch:
        watch_to_the_end(job_id, url, token, json, door)
