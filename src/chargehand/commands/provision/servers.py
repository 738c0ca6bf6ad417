"""`chargehand provision server`: which machines there are, and what their BMCs can do."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.commands.options import DEFAULT_URL, Json, Token, Url, show_found, show_json
from chargehand.commands.provision import options
from chargehand.commands.provision.connection import provisioning
from chargehand.commands.refusals import interruptible, refuse

if TYPE_CHECKING:
    from chargehand.client.types.provisioning import ProbeReport

app = typer.Typer(help="Register servers, and ask their BMCs what they can do.", no_args_is_help=True)

Serial = Annotated[
    str, typer.Argument(metavar="SERIAL", help="The serial number, as the machine's BMC and its DMI report it.")
]


@app.command("add")
def add(
    serial: Serial,
    bmc: Annotated[str | None, typer.Option(metavar="URL", help="Its BMC's URL, such as https://10.0.0.5.")] = None,
    user: Annotated[str | None, typer.Option(help="The BMC's user. Its password is asked for.")] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the BMC's password from standard input, one line.")
    ] = False,
    keep_password: Annotated[
        bool, typer.Option("--keep-password", help="Of a registered server: leave the password as it is.")
    ] = False,
    tls: Annotated[
        str | None,
        typer.Option(
            metavar="verify|insecure|sha256:HEX",
            help="How its certificate is checked: by its authority, not at all, or by its fingerprint. [verify]",
        ),
    ] = None,
    uuid: Annotated[str | None, typer.Option(help="The system's UUID, where the BMC reports no serial.")] = None,
    vendor: Annotated[str | None, typer.Option(help="dell, hpe, supermicro …, where the BMC does not say it.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label; may be repeated. NAME= removes it.")
    ] = None,
    unidentified: Annotated[
        bool | None,
        typer.Option(
            "--unidentified/--identified",
            help="The BMC reports neither serial nor UUID: take its one system for this server, or do not. "
            "[identified]",
        ),
    ] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask the BMC at once what it can do.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Register a server, or change one: what is not given stays as it is.

    The BMC's password comes from CHARGEHAND_BMC_PASSWORD, from standard input with --password-stdin, or is asked for: never
    from an argument, which others on the machine could see. The server keeps it encrypted and never gives it out.

    Example: chargehand provision server add SN-1 --bmc https://10.0.0.5 --user admin --tls insecure --probe
    """
    options.check(bmc, uuid)
    from chargehand.commands.provision import registration

    given = registration.ServerChanges(
        bmc=bmc,
        user=user,
        uuid=uuid,
        vendor=vendor,
        tls=options.tls(tls),
        unidentified=unidentified,
        labels=dict(options.label(each) for each in label or ()),
        password=options.password(user, password_stdin, keep_password),
    )
    with provisioning(url, token, serial=serial) as client:
        before = registration.known(client.provisioning, serial)
    if before is None and keep_password:
        refuse(f"--keep-password: {serial} is not registered yet, so there is no password to keep")
    if before is None and bmc is None:
        refuse(f"{serial} is not registered yet: give its BMC with --bmc URL")
    if before is not None and given.password is None and (what := registration.asks_again(before, given)):
        given = given._replace(password=options.asked_for(user or before.bmc_username, f"{what} changes: "))

    with provisioning(url, token, serial=serial) as client:
        server = registration.put(client.provisioning, serial, before, given)
    if not json:
        typer.echo(registration.summary(before, server, given))
    found = _probed(serial, url, token) if probe else None
    if json:
        show_json({"server": server, "probe": found} if probe else server)
    if found is not None:
        _show_probe(found, serial, quiet=json)


@app.command("list")
def list_servers(url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """List the servers, by serial.

    Example: chargehand provision server list
    """
    with provisioning(url, token) as client:
        servers = list(client.provisioning.servers())
    from chargehand.commands.provision.server_text import servers_table

    none = "No servers yet: chargehand provision server add SERIAL --bmc URL --user NAME"
    show_found(servers, json, lambda: servers_table(servers) if servers else [none])


@app.command("show")
def show(serial: Serial, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a server, and what was found when it was last probed.

    Example: chargehand provision server show SN-1
    """
    with provisioning(url, token, serial=serial) as client:
        server = client.provisioning.server(serial)
    from chargehand.commands.provision.server_text import server_lines

    show_found(server, json, lambda: server_lines(server))


@app.command("probe")
def probe_server(serial: Serial, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Ask a server's BMC what it is and what it can do. Nothing is changed at the machine.

    Exit code 1: the BMC could not be asked, and the reason is shown.

    Example: chargehand provision server probe SN-1
    """
    found = _probed(serial, url, token)
    if json:
        show_json(found)
    _show_probe(found, serial, quiet=json)


@app.command("remove")
def remove(
    serial: Serial,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Remove a server. Its jobs stay; the machine is not touched. Not while a job is active for it.

    Example: chargehand provision server remove SN-1 --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            refuse("standard input is no terminal, so nobody can confirm this: add --yes")
        with interruptible("Nothing was done."):
            sure = typer.confirm(f"Remove {serial} and its BMC's password?", err=True)
        if not sure:
            typer.echo("Nothing was done.", err=True)
            raise typer.Exit(1)
    with provisioning(url, token, serial=serial) as client:
        client.provisioning.remove_server(serial)
    show_found({"server_serial": serial, "removed": True}, json, lambda: [f"{serial} is removed."])


def _probed(serial: str, url: str, token: str) -> "ProbeReport":
    """Without retries: a BMC may take minutes, and a person waits."""
    if sys.stderr.isatty():
        typer.echo(f"asking the BMC of {serial} …", err=True)
    with provisioning(url, token, serial=serial, in_doubt="", retries=0) as client:
        return client.provisioning.probe(serial)


def _show_probe(found: "ProbeReport", serial: str, quiet: bool) -> None:
    if not quiet:
        from chargehand.commands.provision.server_text import probe_lines

        typer.echo("\n".join(probe_lines(found, serial)))
    if not found.ok:
        raise typer.Exit(1)
