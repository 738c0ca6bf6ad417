"""Connect a command to its server: the Python client, whose errors end the command with a refusal."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from chargehand.commands.refusals import LOOK, explain

if TYPE_CHECKING:
    from chargehand.client import Client, ClientError

RETRIES = 2  # a person waits


@contextmanager
def connected(
    url: str,
    token: str,
    *,
    how_to_list: str = "",
    in_doubt: str = LOOK,
    facts: Mapping[str, str] = {},
    retries: int = RETRIES,
    explain_otherwise: "Callable[[ClientError, str], NoReturn] | None" = None,
) -> "Iterator[Client]":
    """`in_doubt` says what to do if the command fails after the server may have changed something.

    `explain_otherwise` takes the place of `refusals.explain`; it gets the error and `in_doubt`, empty if nothing was changed.
    """
    from chargehand.client import Client, ClientError

    with Client(url, token, retries=retries) as client:
        try:
            yield client
        except ClientError as error:
            unsure = in_doubt if client.may_have_changed else ""
            if explain_otherwise is not None:
                explain_otherwise(error, unsure)
            explain(error, url, token, how_to_list, in_doubt=unsure, facts=facts)
