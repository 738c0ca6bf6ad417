"""Change a server's record: options that were given replace fields, and all other fields stay."""

from collections.abc import Mapping
from typing import NamedTuple

from chargehand.client import ClientError
from chargehand.client.blocking import BlockingProvisioning
from chargehand.client.types.provisioning import RegisteredServer


class ServerChanges(NamedTuple):
    """None: not given. An empty text clears the field."""

    bmc: str | None = None
    user: str | None = None
    password: str | None = None
    uuid: str | None = None
    vendor: str | None = None
    tls: str | None = None
    unidentified: bool | None = None
    labels: Mapping[str, str] = {}


def known(calls: BlockingProvisioning, serial: str) -> RegisteredServer | None:
    try:
        return calls.server(serial)
    except ClientError as error:
        if error.status == 404 and error.detail:
            return None
        raise


def asks_again(before: RegisteredServer, given: ServerChanges) -> str:
    """The change that could send the password to somebody else, if there is one: then the server wants it again."""
    if not before.has_password:
        return ""
    if given.bmc is not None and given.bmc.rstrip("/") != before.bmc_address:
        return "the BMC's address"
    if given.user is not None and given.user != before.bmc_username:
        return "the BMC's user"
    if given.tls is not None and before.tls not in (given.tls.lower(), "insecure"):
        return "how the BMC's certificate is checked"
    return ""


def put(
    calls: BlockingProvisioning, serial: str, before: RegisteredServer | None, given: ServerChanges
) -> RegisteredServer:
    was = before or RegisteredServer(server_serial=serial)
    labels = {name: value for name, value in {**was.labels, **given.labels}.items() if value}
    return calls.register(
        serial,
        was.bmc_address if given.bmc is None else given.bmc,
        username=was.bmc_username if given.user is None else given.user,
        password=given.password,
        system_uuid=(was.system_uuid if given.uuid is None else given.uuid) or None,
        vendor=(was.vendor if given.vendor is None else given.vendor) or None,
        tls=was.tls if given.tls is None else given.tls,
        unidentified=was.unidentified if given.unidentified is None else given.unidentified,
        labels=labels,
    )


def summary(before: RegisteredServer | None, after: RegisteredServer, given: ServerChanges) -> str:
    if before is None:
        return f"{after.server_serial} is registered: {after.bmc_address}"
    rows = [
        ("bmc", before.bmc_address, after.bmc_address),
        ("user", before.bmc_username, after.bmc_username),
        ("uuid", before.system_uuid, after.system_uuid),
        ("vendor", before.vendor, after.vendor),
        ("tls", before.tls, after.tls),
        ("unidentified", before.unidentified, after.unidentified),
    ]
    changed = [f"{name} {_shown(now)}" for name, was, now in rows if was != now]
    names = sorted({*before.labels, *after.labels})
    changed += [
        f"label {name} {after.labels.get(name) or 'none'}"
        for name in names
        if before.labels.get(name) != after.labels.get(name)
    ]
    changed += ["password"] if given.password is not None else []
    return (
        f"{after.server_serial} is changed: {', '.join(changed)}" if changed else f"{after.server_serial} is as it was"
    )


def _shown(value: str | bool | None) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else value or "none"
