"""How this door writes errors: `{"error": code, "message": …, "details": [{"path", "code", "message"}]}`."""

from collections.abc import Sequence

import msgspec

from chargehand.doors.provisioning.taxonomy import Key
from chargehand.errors import ChargehandError, InvalidField
from chargehand.http.problems import retry_after, write_refusal
from chargehand.http.response import Response


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


def write_error(resp: Response, error: ChargehandError) -> None:
    status, body = error.status, RefusalBody(error.code, error.message)
    if isinstance(error, ProvisioningRefused):
        status, body = error.http_status, RefusalBody(error.key, error.message, error.details)
    elif isinstance(error, InvalidField):
        pointer = "/" + error.field.replace(".", "/") if error.field != "body" else ""
        body.details = (RefusalDetail(pointer, error.code, error.message),)
    write_refusal(resp, status, body, retry_after(error))
