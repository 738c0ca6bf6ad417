"""`chargehand token`: make a token, a user or a webhook secret, and store none of them."""

import sys
from typing import Annotated

import typer

from chargehand.commands.options import Json
from chargehand.commands.refusals import one_line_errors, refuse
from chargehand.http.scopes import SCOPES

app = typer.Typer()


@app.command()
def token(
    name: Annotated[str, typer.Option(help="Who it is for; shown in logs and as the owner of leases.")] = "token",
    tenant: Annotated[str, typer.Option(help="The tenant whose jobs it may see.")] = "default",
    scope: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(SCOPES)}, or * for all; may be repeated. [*]")
    ] = None,
    event_type: Annotated[
        list[str] | None, typer.Option(help="A command that a worker of tasks may claim; may be repeated. [*]")
    ] = None,
    worker_group: Annotated[str, typer.Option(help="The pool a worker belongs to, for notifications.")] = "",
    user: Annotated[
        bool, typer.Option("--user", help="A user with a password for HTTP Basic; the password is read from stdin.")
    ] = False,
    webhook_secret: Annotated[
        bool, typer.Option("--webhook-secret", help="A secret for signing webhooks instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Make a token, a user or a webhook secret. Nothing is stored: add what is printed to the configuration file.

    Example: chargehand token --name ci --scope jobs:read --scope jobs:write

    Example: chargehand token --name operator --user
    """
    import msgspec

    from chargehand.config import Tenant
    from chargehand.errors import ConfigError
    from chargehand.http.credentials import hash_password, hash_token, new_token, new_webhook_secret

    if webhook_secret:
        secret = new_webhook_secret()
        made, config = {"webhook_secret": secret}, f'[webhooks]\nsecret = "{secret}"'
    else:
        with one_line_errors():
            try:
                msgspec.convert(tenant, Tenant)
            except msgspec.ValidationError:
                raise ConfigError(
                    "--tenant must be 2 to 63 lower-case letters, digits and hyphens, beginning with a letter"
                ) from None
        scopes = ", ".join(_quoted(each) for each in scope or ["*"])
        if user:
            password = _password()
            made = {"user": name, "password_hash": hash_password(password)}
            config = f'[[auth.users]]\nname = {_quoted(name)}\npassword_hash = "{made["password_hash"]}"'
        else:
            fresh = new_token()
            made = {"token": fresh, "hash": hash_token(fresh)}
            config = f'[[auth.tokens]]\nname = {_quoted(name)}\nhash = "{made["hash"]}"'
        config += f'\ntenant = "{tenant}"\nscopes = [{scopes}]'
        if event_type and not user:
            config += f"\nevent_types = [{', '.join(map(_quoted, event_type))}]"
        if worker_group and not user:
            config += f"\nworker_group = {_quoted(worker_group)}"
    if json:
        typer.echo(msgspec.json.encode({**made, "config": config}).decode())
        return
    if "token" in made:
        typer.echo(f"The token (shown once):\n\n  {made['token']}\n")
    typer.echo(f"For the configuration file:\n\n{config}")


def _password() -> str:
    """Asked for twice on a terminal, where what is typed is not shown; else a line of standard input."""
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n") or refuse("the password is empty: give it as a line on standard input")


def _quoted(text: str) -> str:
    """A JSON string is a TOML string too."""
    import msgspec

    return msgspec.json.encode(text).decode()
