"""Errors of calls to a BMC, by what the caller can do about them.

    RedfishError
    ├── RedfishUnreachable   no answer, or a temporary error: try again later
    ├── RedfishRefused       the BMC understood the request and refused it
    ├── Mismatch             the BMC belongs to another machine than the registered one
    └── Untrusted            nothing was sent: the certificate or the redirect is not what the registration allows

The message is for people. It contains the BMC's own message, and never a password, a token or a signed URL.
"""

from typing import ClassVar

from chargehand.doors.provisioning.redfish.messages import NOTHING, RedfishMessages


class RedfishError(Exception):
    lasting: ClassVar[bool] = True

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        transient: bool | None = None,
        unclear: bool = False,
        retry_after_seconds: float | None = None,
        said: RedfishMessages = NOTHING,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.transient = not self.lasting if transient is None else transient
        self.unclear = unclear  # the request was sent, and only reading can show whether it was carried out
        self.retry_after_seconds = retry_after_seconds
        self.said = said


class RedfishUnreachable(RedfishError):
    lasting = False


class RedfishRefused(RedfishError):
    """The BMC understood the request and refused it."""


class Mismatch(RedfishError):
    """The BMC belongs to another machine than the registered one."""


class Untrusted(RedfishError):
    """The registration, or the egress policy of this server, does not allow the connection."""
