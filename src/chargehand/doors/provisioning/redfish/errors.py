"""What can go wrong with a BMC, by what the caller can do about it.

    RedfishError
    ├── RedfishUnreachable   no answer, or "not now": worth trying again later
    ├── RedfishRefused       the BMC understood the request and refused it
    ├── Mismatch             the BMC answered for another machine than the record names
    └── Untrusted            not asked at all: its certificate, or where it redirects to, is not what the record allows

The message is for people. It says what the BMC said, and never holds a password, a token or a signed URL.
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
        self.unclear = unclear  # it was sent, and whether it was done can only be found out by looking
        self.retry_after_seconds = retry_after_seconds
        self.said = said


class RedfishUnreachable(RedfishError):
    lasting = False


class RedfishRefused(RedfishError):
    """The BMC understood and said no."""


class Mismatch(RedfishError):
    """Not the machine that the record names."""


class Untrusted(RedfishError):
    """A connection that the record, or the policy of this server, does not allow."""
