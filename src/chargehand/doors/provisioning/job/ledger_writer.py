"""What every node may write into the ledger of a job that has begun.

A machine's report, a deadline and an operator who cancels may all end the job, on different nodes and at the same moment. The verdict is
written once, by whoever's guarded write finds none; the others read it.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from chargehand.doors.provisioning.job.ledger import RECORD, JobLedger, Verdict
from chargehand.engine.record import PutRecord
from chargehand.engine.records import Records

Amend = Callable[[JobLedger], JobLedger]
_decoder = msgspec.json.Decoder(JobLedger)


class LedgerWriter:
    def __init__(self, records: Records) -> None:
        self._records = records
        # Writers of one record wait in turn, so that a hundred copies of one report do not race a hundred times.
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def amend(self, tenant: str, job_id: str, amend: Amend) -> tuple[JobLedger, JobLedger] | None:
        """Return the ledger before and after. None: there is none, since the job never began."""
        async with AsyncExitStack() as stack:
            stack.callback(self._leave, job_id)
            await stack.enter_async_context(self._turn(job_id))
            while (record := await self._records.get(RECORD, tenant, job_id)) is not None:
                before = _decoder.decode(record.body)
                after = amend(before)
                if after == before:
                    return before, after
                put = PutRecord(RECORD, tenant, job_id, msgspec.json.encode(after), expected=record.version)
                if await self._records.put(put) is not None:
                    return before, after
            return None

    async def judge(self, tenant: str, job_id: str, verdict: Verdict) -> Verdict:
        """Record the verdict if there is none; return the recorded one."""
        amended = await self.amend(tenant, job_id, lambda ledger: ledger.with_verdict(verdict))
        return (amended[1].verdict if amended else None) or verdict

    def _turn(self, job_id: str) -> asyncio.Lock:
        lock, waiting = self._turns.get(job_id) or (asyncio.Lock(), 0)
        self._turns[job_id] = (lock, waiting + 1)
        return lock

    def _leave(self, job_id: str) -> None:
        lock, waiting = self._turns[job_id]
        if waiting == 1:
            del self._turns[job_id]
        else:
            self._turns[job_id] = (lock, waiting - 1)
