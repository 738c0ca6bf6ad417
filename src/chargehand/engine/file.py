"""A file: stored bytes with a name, of a tenant or of a job. The row says whose they are; the bytes lie on disk by their hash."""

import msgspec

from chargehand.engine.operation import Operation


class File(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    id: str
    tenant: str
    job_id: str | None
    name: str
    purpose: str
    media_type: str
    size: int
    sha256: str
    created_at: int


class NewFile(Operation[File], frozen=True, array_like=True, tag="put_file"):
    id: str
    tenant: str
    name: str
    media_type: str
    size: int
    sha256: str
    job_id: str | None = None  # of a job, whose files have different names and go with it
    purpose: str = ""  # why it was uploaded; only files with a purpose are listed


class DropFiles(Operation[int], frozen=True, array_like=True, tag="drop_files"):
    """Remove the rows; the answer is how many there were."""

    ids: tuple[str, ...]
    tenant: str | None = None
