"""`chargehand listen`: receive webhooks, check their signatures and print them."""

from typing import Annotated

import typer

from chargehand.commands.options import Json
from chargehand.commands.refusals import one_line_errors

app = typer.Typer()


@app.command()
def listen(
    port: Annotated[int, typer.Option(help="The port on 127.0.0.1; 0 takes any free port.", min=0, max=65535)] = 9000,
    secret: Annotated[
        str,
        typer.Option(help="webhooks.secret of the server, to check signatures.", envvar="CHARGEHAND_WEBHOOKS_SECRET"),
    ] = "",
    count: Annotated[int, typer.Option(help="Stop after so many webhooks; 0: never.", min=0)] = 0,
    answer: Annotated[
        int, typer.Option(help="The status to answer with: try 500, 410 or 302.", min=200, max=599)
    ] = 200,
    json: Json = False,
) -> None:
    """Receive webhooks on this machine, check their signatures and print them.

    Example: chargehand listen --port 9000
    """
    from chargehand.commands.listen.receiver import listen as receive
    from chargehand.errors import ConfigError

    with one_line_errors():
        try:
            receive("127.0.0.1", port, secret, as_json=json, count=count, answer=answer)
        except BrokenPipeError:
            raise  # typer then ends without a message
        except OSError as error:
            raise ConfigError(
                f"cannot listen on 127.0.0.1:{port}: {error.strerror}; choose another with --port"
            ) from None
