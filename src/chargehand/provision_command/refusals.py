"""What a refusal says: to a person in one line with what to do about it, in the words of these commands; to a program as JSON."""

import re
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import typer

if TYPE_CHECKING:  # what talks to servers is loaded by those commands that do
    from chargehand.client import ClientError
    from chargehand.client.errors import Detail

SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")
JOB_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
USAGE = "usage"  # the key of what these commands refuse themselves

_SCOPES = "provision:read to look, provision:write for jobs, provision:servers for servers"
_SCHEMA = "validation.schema"
_RECIPE = "/recipe"  # where in the request the recipe stands

# How the wire calls what people here know as options.
_WORDS = {
    "bmc_address": "--bmc",
    "bmc_username": "--user",
    "bmc_password": "the BMC's password",
    "system_uuid": "--uuid",
    "webhook.url": "--webhook",
    'register it with "unidentified": true': "add --unidentified",
}


_for_programs: ContextVar[bool] = ContextVar("for_programs", default=False)


class About(NamedTuple):
    """What was asked, as far as a refusal may be about it."""

    url: str
    token: str = ""
    serial: str = ""
    job: str = ""
    file: str = ""  # what the recipe is called


def refuse(message: str, error: str = USAGE, details: "Sequence[Detail]" = ()) -> NoReturn:
    """Ends the command."""
    from chargehand.provision_command.texts import clean

    if _for_programs.get():
        import msgspec

        told = {"error": error, "message": message, "details": list(details)}
        typer.echo(msgspec.json.encode(told).decode(), err=True)
    else:
        lines = [f"  {clean(each.path) or '/'}: {clean(each.message)}" for each in details]
        typer.echo("\n".join([f"chargehand: {clean(message)}{':' if lines else ''}", *lines]), err=True)
    raise typer.Exit(2)


def for_programs(wanted: bool) -> bool:
    """The option --json says so as it is read, so that what is refused far below knows."""
    _for_programs.set(wanted)
    return wanted


def check(about: About) -> None:
    """What could not even be asked for."""
    if about.serial and not SERIAL.fullmatch(about.serial):
        refuse(
            f"{about.serial[:80]!r} is not a serial: it has 1 to 64 letters, digits and . _ : + -, "
            "beginning with a letter or a digit"
        )
    if about.job and not JOB_ID.fullmatch(about.job):
        refuse(f"{about.job[:80]!r} is not the id of a job: it has 26 characters, as `submit` and `list` show them")


def explain(error: "ClientError", about: About) -> NoReturn:
    key = error.text if error.status and " " not in error.text else f"http.{error.status}"
    told = in_our_words(error.detail or error.text)
    if error.status == 0:
        refuse(_no_answer(error, about.url), error.cause or "no_answer")
    if error.status == 401:
        refuse(_unknown_caller(told, about.token), key)
    if error.status == 403:
        refuse(f"{told}; your token needs the right scope: {_SCOPES}", key)
    if error.status == 404 and not error.detail:
        why = (
            f"{about.url} knows nothing of provisioning ({told}): is it a Chargehand with provisioning.enabled = true?"
        )
        refuse(why, key)
    if error.status == 404 and (about.serial or key == "validation.server"):
        refuse(_unknown_server(about.serial), key)
    if key == _SCHEMA and error.details:
        refuse(not_valid(about.file or "the recipe", len(error.details)), key, _in_the_file(error.details))
    refuse(told, key, error.details if len(error.details) > 1 else ())


def not_valid(file: str, count: int) -> str:
    return f"{file} is not valid, {'one thing is' if count == 1 else f'{count} things are'} wrong"


def in_our_words(text: str) -> str:
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return text


def _no_answer(error: "ClientError", url: str) -> str:
    from chargehand.client.errors import CUT, NO_TLS, UNTRUSTED

    why = f" ({error.detail})" if error.detail else ""
    if error.cause == UNTRUSTED:
        return f"{url}: its certificate is not trusted{why}: set SSL_CERT_FILE to the file of its authority"
    if error.cause == NO_TLS:
        return f"{url} does not answer as HTTPS does{why}; does it speak plain HTTP? Then it is http://…"
    if error.cause == CUT and url.startswith("http://"):
        return f"{url} ended the connection without an answer; does it speak HTTPS? Then it is https://…"
    return f"{url} gives no answer{why}; start a server with `chargehand serve`, or name yours: --url or CHARGEHAND_URL"


def _unknown_caller(told: str, token: str) -> str:
    if not token:
        return "the server wants to know who you are: set CHARGEHAND_TOKEN to a token (`chargehand token` makes one)"
    if "JWT" in told:
        return told
    return (
        "the server does not know this token; `chargehand token` makes one, and its hash goes into the server's "
        "[[auth.tokens]]"
    )


def _unknown_server(serial: str) -> str:
    named = f"there is no server {serial}" if serial else "the server of this job is not registered any more"
    return f"{named}; register it: chargehand provision server add {serial or 'SERIAL'} --bmc URL"


def _in_the_file(details: "Sequence[Detail]") -> "list[Detail]":
    """Pointers that lead through the request lead through the file that its recipe came from."""
    from chargehand.client.errors import Detail

    return [Detail(each.path.removeprefix(_RECIPE), each.code, each.message) for each in details]
