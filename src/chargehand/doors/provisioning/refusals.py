"""How this door writes errors: `{"error": code, "message": …, "details": [{"path", "code", "message"}]}`."""

import math
from collections.abc import Sequence

import msgspec

from chargehand.doors.provisioning.taxonomy import Key
from chargehand.errors import ChargehandError, InvalidField
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
    if isinstance(error, ProvisioningRefused):
        resp.status = error.http_status
        body = RefusalBody(error.key, error.message, error.details)
    elif isinstance(error, InvalidField):
        resp.status = error.status
        pointer = "/" + error.field.replace(".", "/") if error.field != "body" else ""
        body = RefusalBody(error.code, error.message, (RefusalDetail(pointer, error.code, error.message),))
    else:
        resp.status = error.status
        body = RefusalBody(error.code, error.message)
    resp.content_type = "application/json"
    if error.retry_after_seconds is not None:
        resp.set_header("retry-after", str(max(1, math.ceil(error.retry_after_seconds))))
    if error.status == 401:
        resp.set_header("www-authenticate", 'Bearer realm="chargehand"')
    resp.data = msgspec.json.encode(body)
