"""Connect a command to the provisioning door of a server."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from chargehand.commands.connection import RETRIES, connected
from chargehand.commands.provision.refusals import About, check, explain
from chargehand.commands.refusals import LOOK

if TYPE_CHECKING:
    from chargehand.client import Client, ClientError


@contextmanager
def provisioning(
    url: str,
    token: str,
    *,
    serial: str = "",
    file: str = "",
    in_doubt: str = LOOK,
    facts: Mapping[str, str] = {},
    retries: int = RETRIES,
) -> "Iterator[Client]":
    """As `connected`; a refusal names the server and the file of the recipe."""
    refusals = provisioning_refusals(url, token, serial, file, facts)
    with connected(url, token, in_doubt=in_doubt, retries=retries, explain_otherwise=refusals) as client:
        yield client


def provisioning_refusals(
    url: str, token: str, serial: str, file: str, facts: Mapping[str, str]
) -> "Callable[[ClientError, str], NoReturn]":
    about = About(url, token, serial, file)
    check(about)
    return lambda error, in_doubt: explain(error, about, in_doubt=in_doubt, facts=facts)
