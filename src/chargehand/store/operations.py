"""The writes that go through a group, as values: what the server sends and what comes back for each."""

import msgspec

from chargehand.engine.delivery import Settle, Take, Taken
from chargehand.engine.file import File, NewFile
from chargehand.engine.job import NewJob, QueueSettings
from chargehand.engine.moves import Change, Moved
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.engine.store import Beat, Beaten, Claim, Claimed, Note, Noted, Submitted

GROUP_BYTES = 16 << 20  # operations of one group, as they are sent


class SetQueue(msgspec.Struct, frozen=True, array_like=True, tag="set_queue"):
    settings: QueueSettings


class Replay(msgspec.Struct, frozen=True, array_like=True, tag="replay"):
    """One delivery by its id, or the dead ones of an endpoint; of this tenant."""

    tenant: str
    delivery_id: str = ""
    endpoint_id: str = ""
    limit: int = 0


class Replayed(msgspec.Struct, frozen=True, array_like=True, tag="replayed"):
    count: int
    endpoint_id: str


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """Deliveries that were taken and will not be sent from here now."""

    ids: tuple[str, ...]
    leases: tuple[int, ...]


class GiveUp(msgspec.Struct, frozen=True, array_like=True, tag="give_up"):
    ids: tuple[str, ...]
    reason: str


class SetEndpoint(msgspec.Struct, frozen=True, array_like=True, tag="set_endpoint"):
    endpoint_id: str
    tenant: str
    state: str
    reason: str


class Prune(msgspec.Struct, frozen=True, array_like=True, tag="prune"):
    ids: tuple[str, ...]
    age: int
    of: tuple[str, str] | None = None  # a tenant and a kind: somebody removes those jobs now, whatever their age


# The queries that remove what a pruned job leaves behind.
OF_A_JOB = ("prune_tries", "prune_deliveries", "prune_events", "prune_payloads", "prune_results", "prune_job_files")


class DropFiles(msgspec.Struct, frozen=True, array_like=True, tag="drop_files"):
    ids: tuple[str, ...]
    tenant: str | None = None


def put_query(put: PutRecord) -> str:
    """Two statements: one that makes a record or finds it taken, one that only changes the version it was told."""
    return "change_record" if put.expected else "put_record"


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Nothing, but all the way to the writer and back."""


class Counted(msgspec.Struct, frozen=True, array_like=True, tag="counted"):
    count: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """An operation that failed by itself, alone; the others of its group went on."""

    message: str
    code: str = ""  # of a fault of the store; empty: the operation is to blame


Operation = (
    NewJob
    | Claim
    | Change
    | Beat
    | Note
    | SetQueue
    | Take
    | Settle
    | Replay
    | GiveUp
    | SetEndpoint
    | Prune
    | NewFile
    | DropFiles
    | PutRecord
    | DropRecord
    | Ping
    | Release
)
# None: the race was lost, or there is no such thing.
Answer = Submitted | Claimed | Moved | Beaten | Noted | Taken | Replayed | File | Record | Counted | bool | None
