"""The operations that a store's writer can apply, and what it answers to each."""

import msgspec

from chargehand.engine.delivery import Release, Replay, SetEndpoint, Settle, Take, Taken
from chargehand.engine.file import DropFiles, File, NewFile
from chargehand.engine.flow import CancelFlow, NewFlow, Occupied, RetryFlow
from chargehand.engine.job import NewJob, SetQueue
from chargehand.engine.moves import Beat, Change, Moved, Note, Prune, Submitted
from chargehand.engine.operation import Operation
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.engine.store import Claim, Claimed

GROUP_BYTES = 16 << 20  # operations of one group, as they are sent


class GiveUp(Operation[int], frozen=True, array_like=True, tag="give_up"):
    """Pending deliveries become dead; the answer is how many."""

    ids: tuple[str, ...]
    reason: str


class Ping(Operation[None], frozen=True, array_like=True, tag="ping"):
    """Does nothing, but goes all the way to the writer and back."""


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag="rejected"):
    """The answer to an operation that failed alone; the others of its group went on."""

    message: str
    code: str = ""  # of a fault of the store; empty: the operation is to blame


AnyOperation = (
    NewJob | Claim | Change | Beat | Note | SetQueue | Prune
    | Take | Settle | Release | Replay | SetEndpoint | GiveUp
    | NewFile | DropFiles | PutRecord | DropRecord | NewFlow | CancelFlow | RetryFlow | Ping
)  # fmt: skip
# None: the race was lost, or there is no such thing.
Answer = Submitted | Occupied | Claimed | Moved | Taken | File | Record | bool | int | None
