"""`chargehand demo`: show a server, a model and webhooks for half a minute."""

import typer

from chargehand.commands.exit_codes import FAILED
from chargehand.commands.options import Json
from chargehand.commands.refusals import one_line_errors, refuse

app = typer.Typer()


@app.command()
def demo(json: Json = False) -> None:
    """Run a real server with a real model for half a minute: a job and its webhooks, a target that goes away, a batch.

    Example: chargehand demo
    """
    import uvloop

    from chargehand.commands.demo.scenes import GaveUp, play
    from chargehand.observability.logs import configure_logs

    with one_line_errors():
        configure_logs("error", "human")
        try:
            uvloop.run(play(json))
        except GaveUp as error:
            refuse(str(error), "demo", code=FAILED)
