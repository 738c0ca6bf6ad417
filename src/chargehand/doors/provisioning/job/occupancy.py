"""Which job works on which machine. Two server records may lead to the same machine: by another spelling of its serial, or another
address of its BMC. The first job that reaches a machine occupies it until its last move, by two keys:

- the identity that the BMC reports, within a tenant. Whoever registers a server chooses the BMC, and a BMC may report anything, so this
  key must not block another tenant.
- the address of the BMC, for all tenants. Only a job with credentials for this BMC gets so far, and with those one can use the machine
  without this server too. So this key prevents accidents, not attacks.
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

    machine: str  # the identity that the BMC reports
    place: str  # the address of the BMC


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
        """Remove the records of a job that is gone, unless another job has taken them over."""
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
    """Return the keys of a machine. Its identity is the serial and the UUID that the BMC reports, whatever its address: some boards
    share their UUID with all others of their kind.
    """
    url = URL(address)
    place = f"{url.host}:{url.port}{facts.system.rstrip('/')}"
    uuid = uuid_of({"UUID": facts.uuid})
    return Spot(_hash(f"{facts.serial.lower()} {uuid}" if facts.serial or uuid else place), _hash(place))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
