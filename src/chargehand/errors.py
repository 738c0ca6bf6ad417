"""Every error that callers and operators of Chargehand can see, in one tree.

    ChargehandError
    ├── ConfigError            a setting is unknown or wrong: the server does not start
    ├── BadRequest             400  the caller must change the request
    │   ├── InvalidField       400  … and the error names the field
    │   └── EgressRefused      422  the server must not call this URL
    ├── Unauthenticated        401  no valid credentials
    ├── Forbidden              403  valid credentials, not allowed
    ├── NotFound               404
    ├── Conflict               409  the resource is not in the state that the caller assumed
    │   └── StaleLease         409  the lease was lost: another worker may own the job now
    ├── IdempotencyMismatch    422  the key was used before with another request
    ├── TooLarge               413
    ├── TooManyRequests        429
    ├── Overloaded             503  the server is busy; the same request may succeed in a moment
    ├── TargetAway             503  no target that could answer is reachable now
    ├── TargetFailed           502  the target did not answer
    └── StoreError             503  the database cannot serve now; nothing was written in part
        ├── StoreUnavailable   503  not reachable, or the connection was lost
        ├── StoreLocked        503  another process holds it
        ├── StoreFull          507  the disk, or the size limit, is full
        ├── StoreCorrupt       500  the file is damaged
        └── StoreTooNew        503  written by a newer version

Each has a stable `code` that programs may rely on, and an HTTP status. The message is for people: it says what is wrong
and what to do, and never contains a secret.
"""

from typing import ClassVar


class ChargehandError(Exception):
    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class ConfigError(ChargehandError):
    code = "config.invalid"
    title = "Invalid configuration"


class BadRequest(ChargehandError):
    code = "request.invalid"
    status = 400
    title = "Invalid request"


class InvalidField(BadRequest):
    code = "request.invalid_field"
    title = "Invalid field"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class EgressRefused(InvalidField):
    code = "egress.refused"
    status = 422
    title = "URL refused"


class Unauthenticated(ChargehandError):
    code = "auth.unauthenticated"
    status = 401
    title = "Unauthenticated"

    def __init__(self, message: str, *, short: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.short = short  # for protocols whose clients compare texts


class Forbidden(ChargehandError):
    code = "auth.forbidden"
    status = 403
    title = "Forbidden"


class NotFound(ChargehandError):
    code = "not_found"
    status = 404
    title = "Not found"


class Conflict(ChargehandError):
    code = "conflict"
    status = 409
    title = "Conflict"


class StaleLease(Conflict):
    code = "conflict.stale_lease"
    title = "Stale lease"


class IdempotencyMismatch(ChargehandError):
    code = "idempotency.mismatch"
    status = 422
    title = "Idempotency key reused"


class TooLarge(ChargehandError):
    code = "request.too_large"
    status = 413
    title = "Request too large"


class TooManyRequests(ChargehandError):
    code = "rate_limited"
    status = 429
    title = "Too many requests"


class Overloaded(ChargehandError):
    code = "overloaded"
    status = 503
    title = "Overloaded"


class TargetAway(ChargehandError):
    code = "target.away"
    status = 503
    title = "Target away"


class TargetFailed(ChargehandError):
    code = "target.failed"
    status = 502
    title = "Target failed"


class StoreError(ChargehandError):
    code = "store.error"
    status = 503
    title = "Store error"


class StoreUnavailable(StoreError):
    code = "store.unavailable"
    title = "Store unavailable"


class StoreLocked(StoreError):
    code = "store.locked"
    title = "Store locked"


class StoreFull(StoreError):
    code = "store.full"
    status = 507
    title = "Store full"


class StoreCorrupt(StoreError):
    code = "store.corrupt"
    status = 500
    title = "Store corrupt"


class StoreTooNew(StoreError):
    code = "store.too_new"
    title = "Store too new"
