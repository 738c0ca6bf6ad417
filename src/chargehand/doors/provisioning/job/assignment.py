"""To which job the reports about a server belong: the one that it was last started for.

BMCs report a serial in upper or in lower case, so there is one assignment for both spellings, and one server.
"""

import msgspec

from chargehand.doors.provisioning.names import SERIAL, SERVER_RECORD
from chargehand.engine.record import DropRecord, PutRecord
from chargehand.engine.records import Records

RECORD = "server-owner"  # named by the serial in lower case


class Assignment(msgspec.Struct, frozen=True):
    serial: str  # as it was registered: a BMC may report it in another case
    job_id: str = ""  # the job that the server was last started for


_decoder = msgspec.json.Decoder(Assignment)


class Assignments:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def of(self, tenant: str, serial: str) -> Assignment | None:
        record = await self._records.get(RECORD, tenant, serial.lower()) if SERIAL.fullmatch(serial) else None
        return None if record is None else _decoder.decode(record.body)

    async def begin(self, tenant: str, serial: str) -> str:
        """Make one without a job, unless there is one. Return the serial as it is registered."""
        body = msgspec.json.encode(Assignment(serial))
        if await self._records.put(PutRecord(RECORD, tenant, serial.lower(), body, expected=0)) is None:
            known = await self.of(tenant, serial)
            return serial if known is None else known.serial
        return serial

    async def point_at(self, tenant: str, serial: str, job_id: str) -> None:
        """Assign the machine's reports to this job from now on. Does nothing if the server was deleted."""
        body, name = msgspec.json.encode(Assignment(serial, job_id)), serial.lower()
        while True:
            known = await self._records.get(RECORD, tenant, name)
            if known is None and await self._records.get(SERVER_RECORD, tenant, serial) is None:
                return
            expected = 0 if known is None else known.version
            if await self._records.put(PutRecord(RECORD, tenant, name, body, expected=expected)) is not None:
                return

    async def drop(self, tenant: str, serial: str) -> None:
        await self._records.drop(DropRecord(RECORD, tenant, serial.lower()))
