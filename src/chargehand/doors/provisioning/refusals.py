"""The errors of this door: `{"error": code, "message": …, "details": [{"path", "code", "message"}]}`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from chargehand.doors.provisioning.names import TAG
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.errors import ChargehandError, InvalidField
from chargehand.http.problems import retry_after, write_refusal
from chargehand.http.response import Response
from chargehand.http.route import Handler, Route


class RefusalDetail(msgspec.Struct, frozen=True):
    """One thing that is wrong: where (a JSON pointer), which rule, and what to do."""

    path: str
    code: str
    message: str


class ProvisioningRefused(ChargehandError):
    """The request is refused; no job was made or changed."""

    title = "Refused"

    def __init__(self, status: int, key: Key | str, message: str, details: Sequence[RefusalDetail] = ()) -> None:
        super().__init__(message)
        self.http_status = status
        self.key = str(key)
        self.details = tuple(details)


class RefusalBody(msgspec.Struct):
    error: str
    message: str
    details: tuple[RefusalDetail, ...] = ()


def route(
    method: str, path: str, handler: Handler, summary: str, scope: str | None = None, description: str = "", **more: Any
) -> Route:
    """Return a route that writes errors in this door's format."""
    return Route(method, path, handler, summary, scope, TAG, description, error_writer=write_error, **more)


def write_error(resp: Response, error: ChargehandError) -> None:
    status, body = error.status, RefusalBody(error.code, error.message)
    if isinstance(error, ProvisioningRefused):
        status, body = error.http_status, RefusalBody(error.key, error.message, error.details)
    elif isinstance(error, InvalidField):
        pointer = "/" + error.field.replace(".", "/") if error.field != "body" else ""
        body.details = (RefusalDetail(pointer, error.code, error.message),)
    write_refusal(resp, status, body, retry_after(error))
