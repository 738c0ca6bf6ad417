"""How the commands reach a server, and how they say what went wrong: in one line, with what to do about it."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:  # what talks to servers is loaded by those commands that do
    from chargehand.client import ClientError, Provisioning

T = TypeVar("T")

Url = Annotated[str, typer.Option("--url", help="The server.", envvar="CHARGEHAND_URL", show_envvar=True)]
Token = Annotated[
    str,
    typer.Option(
        "--token", help="Your token. Safer in the environment: arguments can be seen.", envvar="CHARGEHAND_TOKEN"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
DEFAULT_URL = "http://127.0.0.1:8484"
RETRIES = 2  # a person waits

_SCOPES = "provision:read to look, provision:write for jobs, provision:servers for servers"


def ask(url: str, token: str, do: "Callable[[Provisioning], Awaitable[T]]") -> T:
    """What the server says; a refusal ends the command."""
    from chargehand.client import Client, ClientError

    async def asked() -> T:
        async with Client(url, token, retries=RETRIES) as client:
            return await do(client.provisioning)

    try:
        return asyncio.run(asked())
    except ClientError as error:
        refuse(reason(error, url))


def reason(error: "ClientError", url: str) -> str:
    told = error.detail or error.text
    if error.status == 0:
        why = f" ({error.detail})" if error.detail else ""
        return f"{url} gives no answer{why}; start a server with `chargehand serve`, or name yours: --url or CHARGEHAND_URL"
    if error.status == 401:
        return "the server wants to know who you are: set CHARGEHAND_TOKEN to a token (`chargehand token` makes one)"
    if error.status == 403:
        return f"{told}; your token needs the right scope: {_SCOPES}"
    if error.status == 404 and not error.detail:
        return f"{url} knows nothing of provisioning ({told}): is it a Chargehand with provisioning.enabled = true?"
    wrong = [f"  {each.path or '/'}: {each.message}" for each in error.details]
    return "\n".join([told, *(wrong if len(wrong) > 1 else [])])


def refuse(message: str) -> NoReturn:
    typer.echo(f"chargehand: {message}", err=True)
    raise typer.Exit(2)


def show_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


def read_file(name: str) -> bytes:
    """`-` is stdin."""
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        refuse(f"{name} cannot be read: {error.strerror}")


@contextlib.contextmanager
def interruptible(message: str) -> Any:
    """Ctrl-C ends the command and nothing else: the message says what goes on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\n{message}", err=True)
        raise typer.Exit(130) from None
