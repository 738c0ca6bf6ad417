"""Which job works on which machine. Servers are records, and two records may lead to one machine: another spelling of its serial,
another address of its BMC. What a BMC says of the system behind it decides, and the first job that gets there has it.
"""

import hashlib

import msgspec

from chargehand.doors.provisioning.redfish.facts import Facts
from chargehand.doors.provisioning.redfish.identity import uuid_of
from chargehand.engine.engine import Engine
from chargehand.engine.record import DropRecord, PutRecord

RECORD = "provision-machine"
EVERYBODY = "*"


class Occupant(msgspec.Struct, frozen=True):
    job_id: str
    server_serial: str


_decoder = msgspec.json.Decoder(Occupant)


class Occupancy:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store

    async def take(self, machine: str, job_id: str, serial: str) -> Occupant | None:
        """None: it is this job's now. Else who has it. A job that is over has nothing any more."""
        body = msgspec.json.encode(Occupant(job_id, serial))
        while True:
            record = await self._store.get_record(RECORD, EVERYBODY, machine)
            if record is not None:
                occupant = _decoder.decode(record.body)
                if occupant.job_id == job_id:
                    return None
                other = await self._store.get_job(occupant.job_id)
                if other is not None and not other.finished:
                    return occupant
            expected = 0 if record is None else record.version
            if await self._store.put_record(PutRecord(RECORD, EVERYBODY, machine, body, expected=expected)) is not None:
                return None

    async def leave(self, machine: str, job_id: str) -> None:
        record = await self._store.get_record(RECORD, EVERYBODY, machine)
        if record is not None and _decoder.decode(record.body).job_id == job_id:
            await self._store.drop_record(DropRecord(RECORD, EVERYBODY, machine, record.version))


def machine_of(address: str, facts: Facts) -> str:
    """By what the BMC reports of it, which is the same by whatever address the BMC is reached. Both, for there are boards that
    share a UUID with all others of their kind.
    """
    uuid = uuid_of({"UUID": facts.uuid})
    named = f"{facts.serial.lower()} {uuid}" if facts.serial or uuid else f"{address}{facts.system}"
    return hashlib.sha256(named.encode()).hexdigest()[:32]
