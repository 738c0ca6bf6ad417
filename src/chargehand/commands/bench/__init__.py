"""`chargehand bench`: a short measure of a running server. `make bench` compares Chargehand with others."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.commands.options import DEFAULT_URL, Json, Token, Url, show_found
from chargehand.commands.refusals import interruptible

if TYPE_CHECKING:
    from chargehand.commands.bench.report import BenchReport

app = typer.Typer()


@app.command("bench")
def bench(
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="For how many seconds it submits jobs.")] = 3.0,
    connections: Annotated[int, typer.Option(min=1, max=256, help="How many callers submit at once.")] = 16,
    model: Annotated[
        str, typer.Option(help="The model whose first token is timed. [one that is in memory, else the first there is]")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Measure a running server for some seconds: how fast it accepts jobs, finishes them, sends webhooks, and how fast a model answers.

    It submits real jobs to a queue of its own, and claims and finishes all of them, or cancels them if it cannot: they stay,
    finished, until retention removes them. Run it where callers are; on the server's own machine the two share its cores.

    Example: chargehand bench

    Example: chargehand bench --seconds 10 --connections 64 --json
    """
    import asyncio

    from chargehand.client import ClientError
    from chargehand.commands.bench.report import lines
    from chargehand.commands.bench.run import run
    from chargehand.commands.refusals import explain

    def say(what: str) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r\033[K{what} …" if what else "\r\033[K", err=True, nl=False)

    with interruptible("Stopped. Its jobs are cancelled; to check that: chargehand jobs list --kind job"):
        try:
            report: BenchReport = asyncio.run(run(url, token, seconds, connections, model, say))
        except ClientError as error:
            say("")
            explain(error, url, token)
    say("")
    show_found(report, json, lambda: lines(report))
