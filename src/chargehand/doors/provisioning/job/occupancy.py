"""Which job works on which machine. Servers are records, and two records may lead to one machine: another spelling of its serial,
another address of its BMC. The first job that gets there has it, by two things:

- what a BMC says of the system behind it, within a tenant. It says what it likes, and whoever registers a server chooses the BMC,
  so this must mean nothing to another tenant.
- where the BMC is, for all tenants. Nobody gets so far as to claim it without credentials that open that very BMC, and with
  those the machine can be had without this server too. What is kept from happening is an accident.
"""

import hashlib

import msgspec
from yarl import URL

from chargehand.doors.provisioning.redfish.facts import MachineFacts
from chargehand.doors.provisioning.redfish.identity import uuid_of
from chargehand.engine.engine import Engine
from chargehand.engine.record import DropRecord, PutRecord

MACHINE = "provision-machine"  # by tenant
PLACE = "provision-place"
EVERYBODY = "*"


class Occupant(msgspec.Struct, frozen=True):
    job_id: str
    server_serial: str


class Spot(msgspec.Struct, frozen=True):
    """What a job occupies."""

    machine: str  # as the BMC says
    place: str  # where the BMC is


_decoder = msgspec.json.Decoder(Occupant)


class Occupancy:
    def __init__(self, engine: Engine) -> None:
        self._jobs = engine.jobs
        self._records = engine.records

    async def take(self, tenant: str, spot: Spot, me: Occupant) -> str:
        """Occupy the machine. Empty: done; else who occupies it, without naming anything of another tenant."""
        occupant = await self._take(MACHINE, tenant, spot.machine, me)
        if occupant is not None:
            return (
                f"job {occupant.job_id} is active on this very machine, which is on record as "
                f"{occupant.server_serial} too"
            )
        if await self._take(PLACE, EVERYBODY, spot.place, me) is not None:
            await self._leave(MACHINE, tenant, spot.machine, me.job_id)
            return "another job is active on the machine behind this BMC; submit it again when that is over"
        return ""

    async def leave(self, tenant: str, spot: Spot, job_id: str) -> None:
        await self._leave(PLACE, EVERYBODY, spot.place, job_id)
        await self._leave(MACHINE, tenant, spot.machine, job_id)

    async def _take(self, kind: str, tenant: str, name: str, me: Occupant) -> Occupant | None:
        """None: done; else the occupant. A finished job occupies nothing."""
        body = msgspec.json.encode(me)
        while True:
            record = await self._records.get(kind, tenant, name)
            if record is not None:
                occupant = _decoder.decode(record.body)
                if occupant.job_id == me.job_id:
                    return None
                other = await self._jobs.get_job(occupant.job_id)
                if other is not None and not other.finished:
                    return occupant
            expected = 0 if record is None else record.version
            if await self._records.put(PutRecord(kind, tenant, name, body, expected=expected)) is not None:
                return None

    async def _leave(self, kind: str, tenant: str, name: str, job_id: str) -> None:
        record = await self._records.get(kind, tenant, name)
        if record is not None and _decoder.decode(record.body).job_id == job_id:
            await self._records.drop(DropRecord(kind, tenant, name, record.version))


def spot_of(address: str, facts: MachineFacts) -> Spot:
    """A machine goes by what the BMC reports of it, which is the same by whatever address the BMC is reached. By serial and UUID, for
    there are boards that share a UUID with all others of their kind.
    """
    url = URL(address)
    place = f"{url.host}:{url.port}{facts.system.rstrip('/')}"
    uuid = uuid_of({"UUID": facts.uuid})
    return Spot(_hash(f"{facts.serial.lower()} {uuid}" if facts.serial or uuid else place), _hash(place))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
