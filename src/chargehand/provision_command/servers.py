"""`chargehand provision server`: which machines there are, and what their BMCs can do."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.provision_command.calling import DEFAULT_URL, Json, Token, Url, ask, refuse, show_json

if TYPE_CHECKING:
    from chargehand.client import Provisioning
    from chargehand.client.machines import Probe, Server

PASSWORD = "CHARGEHAND_BMC_PASSWORD"  # noqa: S105 - the name of a variable

app = typer.Typer(help="Register servers, and ask their BMCs what they can do.", no_args_is_help=True)

Serial = Annotated[
    str, typer.Argument(metavar="SERIAL", help="The serial number, as the machine's BMC and its DMI report it.")
]


@app.command("add")
def add(
    serial: Serial,
    bmc: Annotated[str, typer.Option(metavar="URL", help="Where its BMC is, such as https://10.0.0.5.")],
    user: Annotated[str, typer.Option(help="The BMC's user; without one, no password is asked for.")] = "",
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the BMC's password from stdin, one line.")
    ] = False,
    keep_password: Annotated[
        bool, typer.Option("--keep-password", help="Of a server that is known: leave the password as it is.")
    ] = False,
    tls: Annotated[
        str,
        typer.Option(
            metavar="verify|insecure|sha256:HEX",
            help="How its certificate is checked: by its authority, not at all, or by its fingerprint.",
        ),
    ] = "verify",
    uuid: Annotated[str | None, typer.Option(help="The system's UUID, where the BMC reports no serial.")] = None,
    vendor: Annotated[str | None, typer.Option(help="dell, hpe, supermicro …, where the BMC does not say it.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")] = None,
    unidentified: Annotated[
        bool,
        typer.Option(
            "--unidentified", help="The BMC reports neither serial nor UUID: take its one system for this server."
        ),
    ] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Ask the BMC at once what it can do.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Register a server, or change one.

    The BMC's password comes from CHARGEHAND_BMC_PASSWORD, from stdin with --password-stdin, or is asked for: never from an
    argument, which others on the machine could see. The server keeps it encrypted and never gives it out.

    Example: chargehand provision server add SN-1 --bmc https://10.0.0.5 --user admin --tls insecure --probe
    """
    labels = dict(_label(each) for each in label or ())
    password = None if keep_password else _password(user, password_stdin)

    async def do(api: "Provisioning") -> "tuple[Server, Probe | None]":
        server = await api.register(
            serial,
            bmc,
            username=user,
            password=password,
            system_uuid=uuid,
            vendor=vendor,
            tls=tls,
            unidentified=unidentified,
            labels=labels,
        )
        return server, await api.probe(serial) if probe else None

    server, found = ask(url, token, do)
    if json:
        show_json({"server": server, "probe": found} if probe else server)
    else:
        typer.echo(f"{server.server_serial} is registered: {server.bmc_address}")
    if found is not None:
        _show_probe(found, quiet=json)


@app.command("list")
def list_servers(url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """List the servers, by serial.

    Example: chargehand provision server list
    """

    async def do(api: "Provisioning") -> "list[Server]":
        return [server async for server in api.servers()]

    servers = ask(url, token, do)
    if json:
        show_json(servers)
    elif servers:
        from chargehand.provision_command.texts import servers_table

        typer.echo("\n".join(servers_table(servers)))
    else:
        typer.echo("There are none yet: chargehand provision server add SERIAL --bmc URL --user NAME")


@app.command("show")
def show(serial: Serial, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a server, and what was found when it was last probed.

    Example: chargehand provision server show SN-1
    """
    server = ask(url, token, lambda api: api.server(serial))
    if json:
        show_json(server)
        return
    from chargehand.provision_command.texts import server_lines

    typer.echo("\n".join(server_lines(server)))


@app.command("probe")
def probe_server(serial: Serial, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Ask a server's BMC what it is and what it can do. Nothing is changed at the machine.

    Exit code 1: the BMC could not be asked, and the reason is shown.

    Example: chargehand provision server probe SN-1
    """
    found = ask(url, token, lambda api: api.probe(serial))
    if json:
        show_json(found)
    _show_probe(found, quiet=json)


@app.command("remove")
def remove(
    serial: Serial,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Forget a server. Its jobs stay; the machine is not touched. Not while a job is active for it.

    Example: chargehand provision server remove SN-1 --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            refuse("nobody is there to be asked; say --yes")
        typer.confirm(f"Forget {serial} and its BMC's password?", abort=True)
    ask(url, token, lambda api: api.remove_server(serial))
    if json:
        show_json({"server_serial": serial, "removed": True})
    else:
        typer.echo(f"{serial} is forgotten.")


def _show_probe(found: "Probe", quiet: bool) -> None:
    if not quiet:
        from chargehand.provision_command.texts import probe_lines

        typer.echo("\n".join(probe_lines(found)))
    if not found.ok:
        raise typer.Exit(1)


def _label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        refuse(f"--label {text}: write it as NAME=VALUE")
    return name, value


def _password(user: str, from_stdin: bool) -> str | None:
    if from_stdin:
        if line := sys.stdin.readline().rstrip("\r\n"):
            return line
        refuse("--password-stdin: stdin has no line")
    if PASSWORD in os.environ:
        return os.environ[PASSWORD]
    if not user:
        return None
    if not sys.stdin.isatty():
        refuse(
            f"the password of {user} is needed: set {PASSWORD}, or give it with --password-stdin (or --keep-password)"
        )
    return str(typer.prompt(f"Password of {user} at the BMC", hide_input=True, err=True))
