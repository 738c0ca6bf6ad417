"""A batch: what was asked for, its lines while this node works on them, and what is kept of it in its log."""

import asyncio

import msgspec

from chargehand.doors.inference.batch_lines import LineError
from chargehand.engine.job import SECOND, Job

CANCEL = "cancel"  # the step of the note that asks a batch to stop


def batch_name(job_id: str) -> str:
    """Return the id that OpenAI's clients use."""
    return f"batch_{job_id}"


class Counts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Spec(msgspec.Struct):
    """The payload of a batch: what was asked for."""

    input_file_id: str
    endpoint: str
    completion_window: str
    window_seconds: float
    metadata: dict[str, str] | None = None


class BatchRecord(msgspec.Struct, omit_defaults=True):
    """The data of a batch's events: its progress, and in the end its files or errors."""

    request_counts: Counts | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    expired: bool = False
    errors: tuple[LineError, ...] = ()


spec_of = msgspec.json.Decoder(Spec)


class BatchLine:
    """A line that is being worked on, without its body: 50,000 lines take some 20 MB."""

    __slots__ = ("custom_id", "end", "job_id", "number")

    def __init__(self, number: int, custom_id: bytes) -> None:
        self.number = number
        self.custom_id = custom_id  # UTF-8: in a str, one emoji makes every character four bytes
        self.job_id = ""
        self.end = ""  # the move that ended its job


class BatchRun:
    """A batch that this node works on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.spec = spec_of.decode(job.payload)
        self.expires_at = job.created_at + int(self.spec.window_seconds * SECOND)
        self.rows: list[BatchLine] = []
        self.open: dict[str, BatchLine] = {}  # job -> its line, until it has ended
        self.counts = Counts()
        self.news = asyncio.Event()
        self.seen = 0  # the last event of its own log that was read
        self.cancelled = False
        self.ended = False

    def expect(self, row: BatchLine, job_id: str) -> None:
        row.job_id = job_id
        self.open[job_id] = row

    def settle(self, job_id: str, end: str) -> None:
        row = self.open.pop(job_id, None)
        if row is None:
            return
        row.end = end
        tenths = self.tenths
        if end == "succeed":
            self.counts.completed += 1
        else:
            self.counts.failed += 1
        if not self.open or self.tenths > tenths:
            self.news.set()

    @property
    def tenths(self) -> int:
        return (self.counts.completed + self.counts.failed) * 10 // max(1, self.counts.total)

    def record(self) -> bytes:
        return msgspec.json.encode(BatchRecord(self.counts))
