"""A record: something small that a door remembers besides jobs (a subscription, a schedule), by kind, tenant and name.

The body is the door's own business. A write names the version that it saw; of two nodes that saw the same, one wins.
"""

import msgspec

from chargehand.engine.operation import Operation


class Record(msgspec.Struct, frozen=True, array_like=True, tag="record"):
    kind: str
    tenant: str
    name: str
    body: bytes
    version: int  # 1 when it is made, and one more with each change
    due_at: int | None  # when the door must handle it
    created_at: int
    updated_at: int


class PutRecord(Operation[Record | None], frozen=True, array_like=True, tag="put_record"):
    """Make or change a record; None: another version is there."""

    kind: str
    tenant: str
    name: str
    body: bytes
    expected: int | None = None  # None: whatever is there; 0: it must not be there; n: it must be at version n
    due_at: int | None = None


class DropRecord(Operation[bool], frozen=True, array_like=True, tag="drop_record"):
    """Remove a record; False: it is not there, or another version is."""

    kind: str
    tenant: str
    name: str
    expected: int | None = None
