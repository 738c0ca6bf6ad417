"""Refusals about servers, recipes and their jobs, which name the options of these commands."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from chargehand.commands.exit_codes import UNSURE
from chargehand.commands.refusals import key_of, no_answer, perhaps_done, refuse, unknown_caller

if TYPE_CHECKING:  # only commands that call a server load the client
    from chargehand.client import ClientError
    from chargehand.client.errors import ErrorDetail

SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")

_SCOPES = "provision:read to read, provision:write for jobs, provision:servers for servers"
_SCHEMA = "validation.schema"
_RECIPE = "/recipe"  # the pointer to the recipe in a request

# Names in the API, and the options of these commands.
_WORDS = {
    "bmc_address": "--bmc",
    "bmc_username": "--user",
    "bmc_password": "the BMC's password",
    "system_uuid": "--uuid",
    "webhook.url": "--webhook",
    'register it with "unidentified": true': "add --unidentified",
}


class About(NamedTuple):
    """What a refusal may have to name."""

    url: str
    token: str = ""
    serial: str = ""
    file: str = ""  # of the recipe


def check(about: About) -> None:
    """Refuse a serial that no server can have."""
    if about.serial and not SERIAL.fullmatch(about.serial):
        refuse(
            f"{about.serial[:80]!r} is not a serial: it has 1 to 64 letters, digits and . _ : + -, "
            "beginning with a letter or a digit"
        )


def explain(error: "ClientError", about: About, *, in_doubt: str = "", facts: Mapping[str, str] = {}) -> NoReturn:
    """Refuse with the server's reason. `in_doubt` says what to do if the server may have done what was asked; empty: it did not."""
    key = key_of(error)
    told = in_our_words(error.detail or error.text)
    if in_doubt and error.away:
        refuse(perhaps_done(error, about.url, in_doubt), key, code=UNSURE, facts=facts)
    if error.status == 0:
        refuse(no_answer(error, about.url), key)
    if error.status == 401:
        refuse(unknown_caller(told, about.token), key)
    if error.status == 403:
        refuse(f"{told}; your token needs the right scope: {_SCOPES}", key)
    if error.status == 404 and not error.detail:
        why = f"{about.url} does not serve provisioning ({told}): is it a Chargehand server with provisioning.enabled = true?"
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


def _unknown_server(serial: str) -> str:
    named = f"there is no server {serial}" if serial else "the server of this job is not registered any more"
    return f"{named}; register it: chargehand provision server add {serial or 'SERIAL'} --bmc URL"


def _in_the_file(details: "Sequence[ErrorDetail]") -> "list[ErrorDetail]":
    """Turn pointers into the request into pointers into the recipe's file."""
    from chargehand.client.errors import ErrorDetail

    return [ErrorDetail(each.path.removeprefix(_RECIPE), each.code, each.message) for each in details]
