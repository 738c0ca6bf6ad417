"""How the commands about machines reach a server."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from chargehand.commands.provision.refusals import About, check, explain
from chargehand.commands.refusals import LOOK

if TYPE_CHECKING:  # what talks to servers is loaded by those commands that do
    from chargehand.client.provisioning import ProvisioningCalls

T = TypeVar("T")

RETRIES = 2  # a person waits


def ask(
    url: str,
    token: str,
    do: "Callable[[ProvisioningCalls], Awaitable[T]]",
    *,
    serial: str = "",
    file: str = "",
    in_doubt: str = LOOK,
    facts: Mapping[str, str] = {},
    retries: int = RETRIES,
) -> T:
    """What the server says; a refusal ends the command, and says what it is about."""
    about = About(url, token, serial, file)
    check(about)
    import asyncio

    from chargehand.client import ClientError
    from chargehand.client.provisioning import ProvisioningCalls
    from chargehand.commands.calling import Line

    line = Line(url, token, retries=retries)

    async def asked() -> T:
        try:
            return await do(ProvisioningCalls(line))
        finally:
            await line.close()

    try:
        return asyncio.run(asked())
    except ClientError as error:
        explain(error, about, in_doubt=in_doubt if line.unsure else "", facts=facts)
