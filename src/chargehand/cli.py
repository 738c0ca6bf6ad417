"""The command line. Each command builds a Config and calls one function."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
import uvloop

from chargehand import __version__
from chargehand.config import Tenant, load_config
from chargehand.errors import ChargehandError, ConfigError
from chargehand.http.credentials import hash_password, hash_token, new_token, new_webhook_secret
from chargehand.listen import listen as receive
from chargehand.observability.logs import configure_logs
from chargehand.provision_command import app as provision

if TYPE_CHECKING:
    from chargehand.app import Server

app = typer.Typer(
    help="Chargehand takes jobs in, hands them to whoever can do them, and reports back by signed webhooks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(provision, name="provision")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"chargehand {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings; see config.default.toml.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen. [127.0.0.1:8484]")] = None,
    store: Annotated[str | None, typer.Option(metavar="URL", help="sqlite:///file.db or postgresql://…")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where files are kept. [./data]")] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="An Ollama server to put behind this one; may be repeated.")
    ] = None,
    embedded_model: Annotated[
        bool | None,
        typer.Option(
            "--embedded-model/--no-embedded-model",
            help="A small real model in a process of its own. Default: when no target is set.",
        ),
    ] = None,
) -> None:
    """Start the server. SIGTERM or Ctrl-C drains it."""
    from chargehand.app import serve as serve_app  # here, so that the other commands start in no time

    with _one_line_errors():
        embedded = None if embedded_model is None else "on" if embedded_model else "off"
        overrides = {
            "server.listen": listen,
            "store.url": store,
            "server.data_dir": data,
            "inference.embedded": embedded,
        }
        settings = load_config(config, overrides={**overrides, "inference.targets": target or None})
        configure_logs(settings.log.level, "human" if settings.log.format == "text" else settings.log.format)
        raise typer.Exit(uvloop.run(serve_app(settings, _say_where)))


def _say_where(server: "Server") -> None:
    """For people at a terminal; programs read the port from --listen or from the log."""
    config = server.config
    kind = "PostgreSQL" if not config.store_url.startswith("sqlite:") else config.store_url.removeprefix("sqlite:///")
    lines = [
        f"Chargehand {__version__} is running; Ctrl-C stops it.",
        f"  console  {server.url}/",
        f"  API      {server.url}/docs",
        f"  metrics  {server.url}/metrics",
        f"  store    {kind}",
        f"  auth     {'on' if config.has_auth else 'off: only this machine can connect, and everybody on it may do everything'}",
    ]
    if server.inference is not None:
        targets = server.inference.scheduler.targets.values()
        lines += [f"  target   {target.name} at {target.url}: {target.summary()}" for target in targets]
        if not targets:
            note = server.inference.note or "set inference.targets"
            lines.append(f"  target   none: jobs for models wait until there is one ({note})")
    lines += _machines(server)
    print("\n".join(lines), file=sys.stderr, flush=True)


def _machines(server: "Server") -> list[str]:
    """Only for whoever means to provision: a maintenance image says so."""
    settings = server.config.provisioning
    if not settings.enabled or not settings.maintenance_iso:
        return []
    if not Path(settings.maintenance_iso).is_file():
        why = f"provisioning.maintenance_iso is missing: there is no file {settings.maintenance_iso}"
        return [f"  machines none can be provisioned: {why}"]
    return [f"  machines boot {settings.maintenance_iso} from {settings.public_url or server.url}"]


@app.command()
def token(
    name: Annotated[str, typer.Option(help="Who it is for; shown in logs and as the owner of leases.")] = "token",
    tenant: Annotated[str, typer.Option(help="Whose jobs it may see.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="jobs:read, jobs:write, work, admin, metrics, codeq:produce, codeq:claim …, provision:read, "
            "provision:write, provision:servers, registry:pull, registry:push, or * for all; may be repeated. [*]"
        ),
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
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Make a token, a user or a webhook secret. Nothing is stored: the config gets the hash, you keep the rest."""
    if webhook_secret:
        secret = new_webhook_secret()
        made, config = {"webhook_secret": secret}, f'[webhooks]\nsecret = "{secret}"'
    else:
        with _one_line_errors():
            try:
                msgspec.convert(tenant, Tenant)
            except msgspec.ValidationError:
                raise ConfigError(
                    "--tenant must be 2 to 63 lower-case letters, digits and hyphens, beginning with a letter"
                ) from None
        scopes = ", ".join(_quoted(each) for each in scope or ["*"])
        if user:
            password = (
                sys.stdin.readline().rstrip("\n")
                if not sys.stdin.isatty()
                else typer.prompt("Password", hide_input=True)
            )
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


def _quoted(text: str) -> str:
    """A string of JSON is one of TOML too."""
    return msgspec.json.encode(text).decode()


@app.command()
def listen(
    port: Annotated[int, typer.Option(help="Where to listen on 127.0.0.1; 0 takes any free port.")] = 9000,
    secret: Annotated[
        str,
        typer.Option(help="webhooks.secret of the server, to check signatures.", envvar="CHARGEHAND_WEBHOOKS_SECRET"),
    ] = "",
    count: Annotated[int, typer.Option(help="Stop after so many webhooks; 0: never.")] = 0,
    answer: Annotated[
        int, typer.Option(help="The status to answer with: try 500, 410 or 302.", min=200, max=599)
    ] = 200,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Receive webhooks on this machine, check their signatures and print them."""
    with _one_line_errors():
        try:
            receive("127.0.0.1", port, secret, as_json=json, count=count, answer=answer)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on 127.0.0.1:{port}: {error.strerror}; choose another with --port"
            ) from None


@app.command(context_settings={"allow_interspersed_args": False})  # what follows the program is the program's
def worker(
    program: Annotated[
        list[str], typer.Argument(help="What does a task, and its arguments. Payload on stdin, result on stdout.")
    ],
    command: Annotated[list[str], typer.Option(help="The command to work on; may be repeated.")],
    url: Annotated[str, typer.Option(help="The server.", envvar="CHARGEHAND_URL")] = "http://127.0.0.1:8484",
    token: Annotated[
        str,
        typer.Option(
            help="A worker's token. Safer in the environment: arguments can be seen.", envvar="CHARGEHAND_TOKEN"
        ),
    ] = "",
    concurrency: Annotated[int, typer.Option(help="How many tasks at once.", min=1, max=1000)] = 1,
    lease: Annotated[
        float, typer.Option(help="Seconds after which the task of a worker that died goes to another.", min=1)
    ] = 60,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a try may take; else no limit.", min=0.01)] = None,
    fail_on: Annotated[
        list[int] | None,
        typer.Option(help="An exit code after which there is no other try; may be repeated.", min=1, max=255),
    ] = None,
    grace: Annotated[float, typer.Option(help="Seconds that running tasks have after SIGTERM or Ctrl-C.", min=0)] = 30,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a task, on stdout.")] = False,
) -> None:
    """Have tasks done by a program: exit code 0 completes one, any other makes it be tried again."""
    from chargehand.worker_command import Program, work

    with _one_line_errors():
        configure_logs("warning", "json" if json else "human")
        done_by = Program(program, timeout, frozenset(fail_on or ()))
        uvloop.run(work(done_by, command, url, token, concurrency, lease, grace, as_json=json))


@app.command()
def demo(json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False) -> None:
    """Half a minute of a real server with a real model: a job and its webhooks, a target that goes away, a batch."""
    from chargehand.demo import demo as show

    with _one_line_errors():
        configure_logs("error", "human")
        raise typer.Exit(uvloop.run(show(json)))


class _one_line_errors(contextlib.AbstractContextManager[None]):
    """What a user can mend is said in one line; a fault of ours keeps its traceback."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ChargehandError):
            typer.echo(f"chargehand: {error.message}", err=True)
            raise typer.Exit(2)


def main() -> None:
    app()
