"""The work on a batch: check the lines -> submit each as a job -> wait for them -> write the files -> end.

It may be killed anywhere. The batch is a job like any other, so another attempt begins from the start: it checks the lines again,
finds the jobs that exist by their idempotency keys, and replaces the files.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import islice

import msgspec

from chargehand.config import Config
from chargehand.doors.inference.batch import CANCEL, BatchLine, BatchRecord, BatchRun, batch_name
from chargehand.doors.inference.batch_lines import (
    MAX_LINES,
    InputLine,
    Invalid,
    LineError,
    for_target,
    how_it_ended,
    read_line,
    split_lines,
    write_line,
)
from chargehand.doors.inference.names import KIND as LINE_KIND
from chargehand.doors.inference.names import queue_of
from chargehand.doors.inference.request import SMALL_BYTES, encode_request
from chargehand.doors.inference.uploads import MEDIA_TYPE, file_name
from chargehand.engine.engine import Engine
from chargehand.engine.file import File, NewFile
from chargehand.engine.guard import Guard
from chargehand.engine.job import FINAL, SECOND, Job, NewJob
from chargehand.engine.moves import Broke, Change, Moved
from chargehand.engine.runner import Done, Hand, Outcome, Parked
from chargehand.engine.wakeups import wait_within
from chargehand.errors import Conflict, IdempotencyMismatch, NotFound, StaleLease, StoreCorrupt, StoreError
from chargehand.files import Files

PRIORITY = 1  # below all callers who wait
INPUT = "input.jsonl"  # the batch's own name for its input
OUTPUT_PURPOSE = "batch_output"
OUTPUT_BYTES = 1 << 40  # each answer has a bound of its own
AT_ONCE = 200  # operations given to the store together
CHUNK_BYTES = 8 << 20  # of the bodies of lines submitted together
LINES_AT_ONCE = 50  # parsed before other tasks of the event loop get their turn
RESULTS_AT_ONCE = 4  # a request and its answer may have a hundred megabytes
POLL_SECONDS = 5.0  # finds ends of lines whose notification was lost
GRACE_SECONDS = 10.0  # after the window, in which the lines expire by their own deadlines
STORE_SECONDS = 5.0
MAX_ERRORS = 100


class BatchWork:
    def __init__(self, engine: Engine, config: Config, files: Files) -> None:
        self._engine = engine
        self._jobs = engine.jobs
        self._files = files
        self._settings = config.inference
        self._max_attempts = config.engine.max_attempts
        self.under_way: dict[str, BatchRun] = {}

    def on_line_move(self, moved: Moved) -> None:
        """Note lines that end on this node; `_look_around` finds those that end on others."""
        if self.under_way and moved.state in FINAL:
            for batch in self.under_way.values():
                batch.settle(moved.job_id, moved.move)

    async def work(self, job: Job, hand: Hand) -> Outcome:
        batch = self.under_way[job.id] = BatchRun(job)
        stop = self._engine.watching(job.id, batch.news)
        try:
            return await self._run(batch, hand)
        except Invalid as invalid:
            record = BatchRecord(errors=invalid.errors[:MAX_ERRORS])
            return Broke(
                f"the input is not valid: {invalid}", "validating", final=True, data=msgspec.json.encode(record)
            )
        except StaleLease:
            return Parked("")  # another node has the batch: this outcome is not written
        except StoreCorrupt as error:
            return Broke(error.message, final=True)
        except StoreError as error:
            return Parked("store", STORE_SECONDS, f"parked: {error.message}")
        finally:
            stop()
            if self.under_way.get(job.id) is batch:
                del self.under_way[job.id]

    async def _run(self, batch: BatchRun, hand: Hand) -> Outcome:
        await hand.advance("validating")
        await self._check(batch)
        await hand.advance("in_progress", f"{batch.counts.total} lines are valid", batch.record())
        await self._submit(batch)
        await self._wait(batch, hand)
        await hand.advance("finalizing", "all lines have ended", batch.record())
        return await self._end(batch, await self._write(batch))

    # the input --------------------------------------------------------------------------------------------------------

    async def _own_input(self, batch: BatchRun) -> File:
        """Return the batch's own row for the uploaded bytes: the upload may be deleted, or expire, while the batch runs."""
        job = batch.job
        if (own := await self._files.of_job(job.id, INPUT)) is not None:
            return own
        given = await self._files.get(batch.spec.input_file_id, job.tenant)
        if given is None:
            name = file_name(batch.spec.input_file_id)
            raise Invalid(LineError("file_not_found", None, f"the file {name} was deleted", "input_file_id"))
        new = NewFile(self._engine.new_id(), job.tenant, INPUT, MEDIA_TYPE, given.size, given.sha256, job.id)
        return await self._files.put(new)

    async def _lines(self, batch: BatchRun) -> AsyncIterator[InputLine | LineError]:
        endpoint, allow_cloud = batch.spec.endpoint, self._settings.allow_cloud
        try:
            file = await self._own_input(batch)
            async for number, raw in split_lines(self._files.read(file), self._settings.max_body_bytes):
                if number % LINES_AT_ONCE == 0 or len(raw) > SMALL_BYTES:
                    await asyncio.sleep(0)  # lets other tasks run
                yield read_line(number, raw, endpoint, allow_cloud)
        except NotFound as error:
            raise Invalid(LineError("file_not_found", None, error.message, "input_file_id")) from None

    async def _check(self, batch: BatchRun) -> None:
        """Check all lines before the first is submitted, so that a batch with errors costs nothing."""
        errors: list[LineError] = []
        seen: dict[bytes, int] = {}
        async for line in self._lines(batch):
            custom_id = b"" if isinstance(line, LineError) else line.custom_id.encode()
            if isinstance(line, LineError):
                errors.append(line)
            elif (first := seen.setdefault(custom_id, line.number)) != line.number:
                message = f"the custom_id {line.custom_id!r} was used on line {first} before"
                errors.append(LineError("duplicate_custom_id", line.number, message, "custom_id"))
            elif len(seen) > MAX_LINES:
                errors.append(LineError("too_many_lines", line.number, f"a batch has at most {MAX_LINES} lines"))
                break
            else:
                batch.rows.append(BatchLine(line.number, custom_id))
            if len(errors) >= MAX_ERRORS:
                break
        if not batch.rows and not errors:
            errors.append(LineError("empty_file", None, "there is no line in the file", "input_file_id"))
        if errors:
            raise Invalid(*errors)
        batch.counts.total = len(batch.rows)

    # the lines --------------------------------------------------------------------------------------------------------

    async def _submit(self, batch: BatchRun) -> None:
        """Submit the lines by chunks, which bound the memory, and check between them whether to stop.

        A batch that is to stop submits nothing more. But a later attempt must find the jobs that an earlier one submitted: they
        are those of the first lines, up to the first chunk of which no job existed.
        """
        rows = iter(batch.rows)
        first_time = batch.job.claims == 1
        known = 1
        async for chunk in self._chunks(batch):
            if await self._stopping(batch) and (first_time or not known):
                return
            known = sum(await asyncio.gather(*[self._submit_line(batch, next(rows), line) for line in chunk]))

    async def _chunks(self, batch: BatchRun) -> AsyncIterator[list[InputLine]]:
        chunk: list[InputLine] = []
        size = 0
        async for line in self._lines(batch):
            if isinstance(line, LineError):
                raise Invalid(line)  # cannot happen: _check has read the same bytes
            chunk.append(line)
            size += len(line.body)
            if len(chunk) >= AT_ONCE or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    async def _submit_line(self, batch: BatchRun, row: BatchLine, line: InputLine) -> bool:
        """Submit a line; return whether its job existed already."""
        job_id = self._engine.new_id()
        batch.expect(row, job_id)  # before the submission, so that its end is not missed
        try:
            submitted = await self._engine.submit(self._line_job(batch, job_id, line))
        except IdempotencyMismatch:
            batch.settle(job_id, "fail")  # the tenant used this idempotency key for a job of its own
            return True
        if submitted.created:
            return False
        del batch.open[job_id]
        batch.expect(row, submitted.job_id)
        await self._look(batch, [submitted.job_id])
        return True

    def _line_job(self, batch: BatchRun, job_id: str, line: InputLine) -> NewJob:
        job = batch.job
        origin = {"batch_id": batch_name(job.id), "custom_id": line.custom_id}
        return NewJob(
            job_id,
            queue_of(job.tenant, line.model),
            encode_request(batch.spec.endpoint, for_target(batch.spec.endpoint, line.body)),
            PRIORITY,
            self._max_attempts,
            idempotency_key=f"batch/{job.id}/{line.number}",
            traceparent=job.traceparent,
            tracestate=job.tracestate,
            metadata=msgspec.json.encode(origin),
            deadline_seconds=max(0.001, (batch.expires_at - self._engine.now()) / SECOND),
        )

    async def _wait(self, batch: BatchRun, hand: Hand) -> None:
        noted = batch.tenths
        while batch.open:
            batch.news.clear()
            if await self._stopping(batch):
                await self._cancel_lines(batch)
            await self._look_around(batch)
            if batch.tenths > noted:
                noted = batch.tenths
                done = batch.counts.completed + batch.counts.failed
                await hand.note(
                    f"{done} of {batch.counts.total} lines have ended", step="progress", data=batch.record()
                )
            if batch.open:
                await wait_within(batch.news, POLL_SECONDS)

    async def _stopping(self, batch: BatchRun) -> bool:
        """Return whether the batch must stop: it was cancelled, or its window has passed.

        A cancellation is read from the log, which outlives this process and is seen by every node.
        """
        while events := await self._jobs.list_events(batch.job.id, batch.seen):
            batch.seen = events[-1].seq
            for event in events:
                if event.step == CANCEL or event.move == "requeue":
                    batch.cancelled = event.step == CANCEL
        return batch.cancelled or self._engine.now() >= batch.expires_at

    async def _cancel_lines(self, batch: BatchRun) -> None:
        """Cancel the open lines. At the end of the window they expire by themselves, but for those requeued by hand."""
        if not batch.cancelled and self._engine.now() < batch.expires_at + GRACE_SECONDS * SECOND:
            return
        why = "its batch was cancelled" if batch.cancelled else "its batch expired"
        await self.cancel(batch.job.tenant, list(batch.open), why)

    async def cancel(self, tenant: str, job_ids: Sequence[str], why: str) -> None:
        for start in range(0, len(job_ids), AT_ONCE):
            await asyncio.gather(*[self._cancel(tenant, job_id, why) for job_id in job_ids[start : start + AT_ONCE]])

    async def _cancel(self, tenant: str, job_id: str, why: str) -> None:
        with contextlib.suppress(Conflict, NotFound):  # it has ended meanwhile
            await self._engine.cancel(Guard(job_id, tenant, LINE_KIND, None, None), message=f"cancelled: {why}")

    async def _look_around(self, batch: BatchRun) -> None:
        """Check some of the open lines, and more as long as some have ended; those that have not go to the back."""
        while await self._look(batch, list(islice(batch.open, AT_ONCE))):
            pass

    async def _look(self, batch: BatchRun, job_ids: Sequence[str]) -> int:
        jobs = await asyncio.gather(*[self._jobs.get_job(job_id, whole=False) for job_id in job_ids])
        found = 0
        for job_id, job in zip(job_ids, jobs, strict=True):
            over = job is None or job.finished
            # One at a time: it is read with its payload and its result.
            if over and (end := how_it_ended(await self._jobs.get_job(job_id))):
                batch.settle(job_id, end)
                found += 1
            elif job_id in batch.open:
                batch.open[job_id] = batch.open.pop(job_id)
        return found

    # the end ----------------------------------------------------------------------------------------------------------

    async def _write(self, batch: BatchRun) -> BatchRecord:
        good = [row for row in batch.rows if row.end == "succeed"]
        bad = [row for row in batch.rows if row.end != "succeed"]
        batch.counts.failed = len(bad)  # also lines that were never submitted
        return BatchRecord(
            batch.counts,
            await self._save(batch, "output", good) if good else None,
            await self._save(batch, "error", bad) if bad else None,
            expired=not batch.cancelled
            and self._engine.now() >= batch.expires_at
            and any(row.end in ("", "expire", "cancel") for row in bad),
        )

    async def _save(self, batch: BatchRun, what: str, rows: list[BatchLine]) -> str:
        """Save a file under the batch's name, so that a second write replaces it and keeps its id."""
        job, name = batch.job, f"{batch_name(batch.job.id)}_{what}.jsonl"
        content = self._outcomes(batch, rows)
        file = await self._files.save(
            job.tenant, name, MEDIA_TYPE, content, job_id=job.id, purpose=OUTPUT_PURPOSE, max_bytes=OUTPUT_BYTES
        )
        return file_name(file.id)

    async def _outcomes(self, batch: BatchRun, rows: list[BatchLine]) -> AsyncIterator[bytes]:
        for start in range(0, len(rows), RESULTS_AT_ONCE):
            some = rows[start : start + RESULTS_AT_ONCE]
            jobs = await asyncio.gather(*[self._jobs.get_job(row.job_id) for row in some])
            for row, job in zip(some, jobs, strict=True):
                yield write_line(row.custom_id, row.job_id or f"{batch.job.id}_{row.number}", row.end, job)

    async def _end(self, batch: BatchRun, record: BatchRecord) -> Outcome:
        batch.ended = True
        data = msgspec.json.encode(record)
        said = f"{batch.counts.completed} of {batch.counts.total} lines were answered"
        if batch.cancelled:
            guard, message = Guard.held(batch.job), f"cancelled: {said}"
            await self._engine.change(
                Change(guard, "cancel", error="cancelled", level="warn", message=message, data=data)
            )
        if record.expired:
            return Broke(
                f"the completion window of {batch.spec.completion_window} passed: {said}", final=True, data=data
            )
        return Done(data, said, data)  # ignored if it was cancelled: the lease is gone
