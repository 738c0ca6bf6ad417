"""Refuse a command: in one line with what to do about it, or with --json as an object. Errors of the client become such refusals."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from chargehand.commands.exit_codes import FAILED, INTERRUPTED, REFUSED, SUCCEEDED, UNSURE
from chargehand.commands.text import clean

if TYPE_CHECKING:  # only commands that call a server load the client
    from chargehand.client import ClientError
    from chargehand.client.errors import ErrorDetail

ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
MISUNDERSTOOD: type[Exception] = typer.BadParameter.__mro__[
    1
]  # the base of typer's usage errors, which has no public name
USAGE = "usage"  # the `error` of a refusal by the command itself
LOOK = "check whether it was done before you repeat it"

_for_programs: ContextVar[bool] = ContextVar("for_programs", default=False)


def for_programs(wanted: bool) -> bool:
    """The callback of --json: refusals are JSON from now on."""
    _for_programs.set(wanted)
    return wanted


def refuse(
    message: str,
    error: str = USAGE,
    details: "Sequence[ErrorDetail]" = (),
    *,
    code: int = REFUSED,
    facts: Mapping[str, str] = {},
) -> NoReturn:
    """End the command. `facts` are fields for programs, which should not have to parse the message."""
    if _for_programs.get():
        import msgspec

        told = {"error": error, "message": message, "details": list(details), **facts}
        typer.echo(msgspec.json.encode(told).decode(), err=True)
    else:
        lines = [f"  {clean(each.path) or '/'}: {clean(each.message)}" for each in details]
        typer.echo("\n".join([f"chargehand: {clean(message)}{':' if lines else ''}", *lines]), err=True)
    raise typer.Exit(code)


def each_of(ids: Iterable[str], do: Callable[[str], None]) -> None:
    """Do it for each id, also after a refusal, which is printed. The exit code is that of all, if they agree."""
    codes = []
    for each in dict.fromkeys(ids):
        try:
            do(each)
            codes.append(SUCCEEDED)
        except typer.Exit as ended:
            codes.append(ended.exit_code)
    if any(codes):
        raise typer.Exit(codes[0] if len(set(codes)) == 1 else UNSURE if UNSURE in codes else FAILED)


def misunderstood(error: Any, as_json: bool) -> int:
    """Print a usage error of typer as any refusal, and return the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message(), err=True, nl=False)
        return REFUSED
    for_programs(as_json)
    command = error.ctx.command_path if error.ctx else "chargehand"
    message = error.format_message().strip().rstrip(".").replace("\n", " ")
    try:
        refuse(f"{message[:1].lower()}{message[1:]}{'' if message.endswith('?') else ';'} see `{command} --help`")
    except typer.Exit as exit:
        return exit.exit_code


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Refuse in one line what a user can correct; a bug keeps its traceback."""
    from chargehand.errors import ChargehandError

    try:
        yield
    except ChargehandError as error:
        refuse(error.message, error.code)


@contextlib.contextmanager
def interruptible(message: str) -> Iterator[None]:
    """On Ctrl-C, end the command with a message that says what goes on without it."""
    try:
        yield
    except (KeyboardInterrupt, typer.Abort):
        typer.echo(f"\n{message}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def job_id_of(text: str, what: str = "a job", how_to_list: str = "chargehand jobs list") -> str:
    """The id, checked. OpenAI's clients write `batch_` before the id of a batch's job."""
    found = text.removeprefix("batch_").upper()
    if not ID.fullmatch(found):
        refuse(f"{text[:80]!r} is not the id of {what}: an id has 26 characters; `{how_to_list}` shows the ids")
    return found


def explain(
    error: "ClientError",
    url: str,
    token: str,
    how_to_list: str = "",
    *,
    in_doubt: str = "",
    facts: Mapping[str, str] = {},
) -> NoReturn:
    """Refuse with the server's reason. `how_to_list` is the command that lists what was not found.

    `in_doubt` says what to do if the server may have done what was asked; empty: it did not.
    """
    key = key_of(error)
    told = error.detail or error.text
    if in_doubt and error.away:
        refuse(perhaps_done(error, url, in_doubt), key, code=UNSURE, facts=facts)
    if error.status == 0:
        told = no_answer(error, url)
    elif error.status == 401:
        told = unknown_caller(told, token)
    elif error.status == 403:
        told = f"{told}; your token needs that scope: `chargehand token --help` lists the scopes"
    elif error.status == 404 and not _by_a_door(error):
        why = "is it a Chargehand server, and is the door enabled (`enabled` in its section of the settings)?"
        told = f"{url} has nothing at this path ({told}): {why}"
    elif error.status == 404 and how_to_list:
        told = f"{told}; to list what exists: {how_to_list}"
    refuse(told, key, error.details if len(error.details) > 1 else (), facts=facts)


def key_of(error: "ClientError") -> str:
    """The server's stable code of the error; some doors have it in place of a title."""
    if error.status == 0:
        return error.cause or "no_answer"
    return error.code or (error.text if " " not in error.text else f"http.{error.status}")


def _by_a_door(error: "ClientError") -> bool:
    """Whether a 404 is a door's, about a thing, and not the server's about a path: only a door gives a detail."""
    return error.code != "http.404" and (bool(error.detail) or error.text.endswith("not found"))


def no_answer(error: "ClientError", url: str) -> str:
    from chargehand.client.errors import CUT, NO_TLS, UNTRUSTED

    why = f" ({_why(error.detail)})" if error.detail else ""
    if error.cause == UNTRUSTED:
        return f"{url}: its certificate is not trusted{why}: set SSL_CERT_FILE to the file of its authority"
    if error.cause == NO_TLS:
        return f"{url} does not speak HTTPS{why}; if it speaks plain HTTP, its URL begins with http://"
    if error.cause == CUT and url.startswith("http://"):
        return f"{url} closed the connection without an answer; if it speaks HTTPS, its URL begins with https://"
    if error.sent:
        return f"{url} received the request and sent no answer{why}; the server's log may say why"
    return f"{url} cannot be reached{why}; start a server with `chargehand serve`, or give the URL of yours: --url or CHARGEHAND_URL"


def perhaps_done(error: "ClientError", url: str, in_doubt: str) -> str:
    from chargehand.client.errors import CUT

    why = _why(error.detail) or error.text
    told = f"{url} received the request and sent no good answer ({f'{error.status}: {why}' if error.status else why})"
    perhaps_https = error.cause == CUT and url.startswith("http://")
    hint = " (if it speaks HTTPS, its URL begins with https://)" if perhaps_https else ""
    return f"{told}: the server may have done what was asked{hint}; {in_doubt}"


def same_again(key: str) -> str:
    return f"the same command with --idempotency-key {key} makes no second job"


def _why(detail: str) -> str:
    """Replace asyncio's text for a port on which nothing listens by the usual one."""
    return "connection refused" if "Connect call failed" in detail else detail


def unknown_caller(told: str, token: str) -> str:
    if not token:
        return "the server requires a token: set CHARGEHAND_TOKEN to one (`chargehand token` makes one)"
    if "JWT" in told:
        return told
    return (
        "the server does not know this token; `chargehand token` makes one, and its hash goes into the server's "
        "[[auth.tokens]]"
    )
