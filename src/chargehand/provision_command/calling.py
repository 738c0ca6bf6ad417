"""How the commands reach a server, and what all of them do alike."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from chargehand.provision_command.refusals import About, check, explain, for_programs, refuse

if TYPE_CHECKING:  # what talks to servers is loaded by those commands that do
    from chargehand.client import Provisioning

T = TypeVar("T")

Url = Annotated[str, typer.Option("--url", help="The server.", envvar="CHARGEHAND_URL", show_envvar=True)]
Token = Annotated[
    str,
    typer.Option(
        "--token", help="Your token. Safer in the environment: arguments can be seen.", envvar="CHARGEHAND_TOKEN"
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="For programs; refusals too, as one object on stderr.", callback=for_programs),
]
DEFAULT_URL = "http://127.0.0.1:8484"
RETRIES = 2  # a person waits
INTERRUPTED = 130


def ask(
    url: str,
    token: str,
    do: "Callable[[Provisioning], Awaitable[T]]",
    *,
    serial: str = "",
    job: str = "",
    file: str = "",
) -> T:
    """What the server says; a refusal ends the command, and says what it is about."""
    about = About(url, token, serial, job, file)
    check(about)
    from chargehand.client import Client, ClientError

    async def asked() -> T:
        async with Client(url, token, retries=RETRIES) as client:
            return await do(client.provisioning)

    try:
        return asyncio.run(asked())
    except ClientError as error:
        explain(error, about)


def show_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


def called(file: str) -> str:
    return "standard input" if file == "-" else file


def read_file(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        refuse(f"{called(name)} cannot be read: {error.strerror}")


@contextlib.contextmanager
def interruptible(message: str) -> Any:
    """Ctrl-C ends the command and nothing else: the message says what goes on."""
    try:
        yield
    except (KeyboardInterrupt, typer.Abort):
        typer.echo(f"\n{message}", err=True)
        raise typer.Exit(INTERRUPTED) from None
