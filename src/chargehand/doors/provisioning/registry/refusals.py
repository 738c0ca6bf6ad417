"""Errors for registry clients: `{"errors": [{"code", "message", "detail"}]}`, with the codes of the OCI spec."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from chargehand.errors import ChargehandError
from chargehand.http.problems import retry_after, write_refusal
from chargehand.http.response import Response

API_VERSION = ("docker-distribution-api-version", "registry/2.0")
CHALLENGE = 'Basic realm="chargehand"'  # a client then sends the credentials that `login` stored


class Code(StrEnum):
    BLOB_UNKNOWN = "BLOB_UNKNOWN"
    BLOB_UPLOAD_INVALID = "BLOB_UPLOAD_INVALID"
    BLOB_UPLOAD_UNKNOWN = "BLOB_UPLOAD_UNKNOWN"
    DIGEST_INVALID = "DIGEST_INVALID"
    MANIFEST_BLOB_UNKNOWN = "MANIFEST_BLOB_UNKNOWN"
    MANIFEST_INVALID = "MANIFEST_INVALID"
    MANIFEST_UNKNOWN = "MANIFEST_UNKNOWN"
    NAME_INVALID = "NAME_INVALID"
    NAME_UNKNOWN = "NAME_UNKNOWN"
    SIZE_INVALID = "SIZE_INVALID"
    UNAUTHORIZED = "UNAUTHORIZED"
    DENIED = "DENIED"
    UNSUPPORTED = "UNSUPPORTED"
    TOOMANYREQUESTS = "TOOMANYREQUESTS"
    UNAVAILABLE = "UNAVAILABLE"  # not in the spec: the disk is full, or away
    UNKNOWN = "UNKNOWN"  # not in the spec: an internal error


_BY_STATUS = {
    400: Code.UNSUPPORTED,
    401: Code.UNAUTHORIZED,
    403: Code.DENIED,
    404: Code.NAME_UNKNOWN,
    413: Code.SIZE_INVALID,
    429: Code.TOOMANYREQUESTS,
    503: Code.UNAVAILABLE,
    507: Code.UNAVAILABLE,
}


class RegistryRefused(ChargehandError):
    """The registry refuses the request."""

    title = "Refused"

    def __init__(
        self,
        status: int,
        code: Code,
        message: str,
        detail: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(message)
        self.http_status = status
        self.oci_code = code
        self.detail = detail  # one for each, if several things are wrong
        self.headers = headers


class RegistryError(msgspec.Struct, omit_defaults=True):
    code: str
    message: str
    detail: Any = None


class RegistryErrors(msgspec.Struct):
    errors: list[RegistryError]


def write_oci(resp: Response, error: ChargehandError) -> None:
    status = error.http_status if isinstance(error, RegistryRefused) else error.status
    if isinstance(error, RegistryRefused):
        errors = [RegistryError(error.oci_code, error.message, each) for each in error.detail or (None,)]
        for name, value in error.headers.items():
            resp.set_header(name, value)
    else:
        errors = [RegistryError(_BY_STATUS.get(status, Code.UNKNOWN), error.message)]
    resp.set_header(*API_VERSION)
    write_refusal(resp, status, RegistryErrors(errors), retry_after(error), challenge=CHALLENGE)
