"""Who may do what at this door. Each function takes an authenticated caller and returns it, or refuses.

codeQ tells producers from workers by the issuer of their tokens. Here one set of credentials serves all doors, so scopes tell:
a worker has one of `codeq:claim` … `codeq:subscribe`, a producer `codeq:produce`. A JWT whose scopes name nothing of ours is a
producer's too, as it is to codeQ. No header makes anybody anything.
"""

from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.names import ADMIN, ANY, PRODUCE, WORKER_SCOPES
from chargehand.http.auth import Caller


def producer(caller: Caller) -> Caller:
    if not _produces(caller):
        raise TaskRefused(
            401, "invalid token", detail=f"this is a worker's token; a producer's has the scope {PRODUCE}"
        )
    return caller


def worker(caller: Caller, scope: str) -> Caller:
    if not caller.event_types:
        raise TaskRefused(
            401, "missing eventTypes", detail="a worker's token names the event types it may work on, or *"
        )
    if not caller.scopes:
        raise TaskRefused(401, "missing scope", detail=f"this needs the scope {scope}")
    if not caller.may(scope):
        raise TaskRefused(403, "missing scope", detail=f"this needs the scope {scope}")
    return caller


def either(caller: Caller) -> Caller:
    if not (_produces(caller) or (_works(caller) and caller.event_types)):
        raise TaskRefused(401, "invalid token", detail="this is neither a producer's token nor a worker's")
    return caller


def admin(caller: Caller) -> Caller:
    if not (caller.may(ADMIN) or caller.role.upper() == "ADMIN"):
        raise TaskRefused(
            401, "unauthorized. Admin only", detail=f"this needs the scope {ADMIN}, or the claim role = ADMIN"
        )
    return caller


def check_event_types(caller: Caller, event_types: tuple[str, ...]) -> None:
    """Refuse event types that the token lacks. Case matters here, unlike in queues: codeQ checks tokens so."""
    if ANY in caller.event_types:
        return
    for event_type in event_types:
        if event_type not in caller.event_types:
            raise TaskRefused(403, "event type not allowed", detail=f"the token does not have {event_type[:200]!r}")


def _works(caller: Caller) -> bool:
    return any(caller.may(scope) for scope in WORKER_SCOPES)


def _produces(caller: Caller) -> bool:
    return caller.may(PRODUCE) or caller.may(ADMIN) or caller.stranger
