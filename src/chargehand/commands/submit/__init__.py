"""`chargehand submit`: a chat, a task, a recipe for a server, or a job of the engine's own queues."""

from functools import partial
from typing import Annotated

import typer

from chargehand.commands.options import DEFAULT_URL, Json, Token, Url, Watch, called, read_file
from chargehand.commands.refusals import refuse

app = typer.Typer()


@app.command("submit")
def submit(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="The prompt of a chat, the payload as JSON (@FILE reads it from a file), or with --server the file of the "
            "recipe; - reads any of them from standard input.",
        ),
    ],
    model: Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help="A chat with this model.")] = "",
    command: Annotated[
        str, typer.Option("--command", "-c", metavar="COMMAND", help="A task for the workers of this command.")
    ] = "",
    server: Annotated[str, typer.Option("--server", metavar="SERIAL", help="A recipe for this server.")] = "",
    queue: Annotated[
        str, typer.Option("--queue", metavar="QUEUE", help="A job for the workers of this queue of the engine.")
    ] = "",
    watch: Watch = False,
    webhook: Annotated[
        str, typer.Option(metavar="URL", help="Gets every change of state as a webhook; of a task, its end.")
    ] = "",
    system: Annotated[str, typer.Option(metavar="TEXT", help="Of a chat: the system prompt.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Of a chat: an option of Ollama's, such as temperature=0; may be repeated."
        ),
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="9 goes first.")] = None,
    delay: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Start after so many seconds.")] = 0.0,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Attempts before it fails for good.")
    ] = None,
    limit_key: Annotated[
        str,
        typer.Option(metavar="KEY", help="Of a task or a job: whose limits hold, if there are limits for each key."),
    ] = "",
    idempotency_key: Annotated[
        str, typer.Option(metavar="KEY", help="The same key gives the same job: a script may safely run twice.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Submit a job, and print its id when it is on the server's disk. Give one of --model, --command, --server, --queue.

    Example: chargehand submit --model tiny-stories "Tell me a story about a fox." --watch

    Example: chargehand submit --command resize '{"file": "cat.png"}' --webhook http://127.0.0.1:9000/done

    Example: chargehand submit --server SN-1 linux.json --watch

    Example: git diff | chargehand submit --model llama3.2 --system "Review this." - --watch > review.txt
    """
    chosen = [name for name, value in (("--model", model), ("--command", command), ("--server", server), ("--queue", queue)) if value]  # fmt: skip
    if len(chosen) != 1:
        refuse(
            f"{' and '.join(chosen)}: give only one of them"
            if chosen
            else "give one of --model M for a chat, --command C for a task, --server SERIAL for a recipe and --queue Q for a job"
        )
    if not model and (system or option):
        refuse(f"{'--system' if system else '--option'} is for chats only: give --model")
    if server and (delay or max_attempts):
        refuse(f"{'--delay' if delay else '--max-attempts'}: a recipe starts when its server is free, and runs once")
    if limit_key and not (command or queue):
        refuse("--limit-key is for tasks and jobs only: give --command or --queue")
    from chargehand.commands.provision.connection import provisioning_refusals
    from chargehand.commands.submit import requests
    from chargehand.commands.submit.sending import send

    given = _given(text, bool(server), bool(model))
    asked = requests.SubmitOptions(
        given, webhook, priority, delay, max_attempts, system, tuple(option or ()), limit_key
    )
    made = (
        requests.chat(model, asked)
        if model
        else requests.task(command, asked)
        if command
        else requests.recipe(server, called(text), asked)
        if server
        else requests.job(queue, asked)
    )
    refusals = partial(provisioning_refusals, url, token, server, called(text)) if server else None
    send(made, idempotency_key, url, token, watch=watch, json=json, refusals=refusals)


def _given(text: str, is_file: bool, is_prompt: bool) -> bytes:
    if text == "-" or is_file:
        return read_file(text)
    if text.startswith("@") and not is_prompt:  # no JSON begins with @, but a prompt may
        return read_file(text[1:])
    return text.encode("utf-8", "surrogateescape")
