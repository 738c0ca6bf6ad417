"""Migrate records of release 0.1.0, at the start of the server: it stored for all tenants together which job a serial and a machine have.
Now each tenant has its own records.
"""

import msgspec

from chargehand.doors.provisioning.job.assignment import RECORD as ASSIGNMENT
from chargehand.doors.provisioning.job.occupancy import EVERYBODY, MACHINE
from chargehand.engine.engine import Engine
from chargehand.engine.record import DropRecord, PutRecord


class Old(msgspec.Struct):
    tenant: str = ""
    job_id: str = ""


async def adopt(engine: Engine) -> None:
    for kind in (ASSIGNMENT, MACHINE):
        while found := await engine.records.list(kind, EVERYBODY):
            for record in found:
                tenant = await _tenant(engine, msgspec.json.decode(record.body, type=Old))
                if tenant:
                    await engine.records.put(PutRecord(kind, tenant, record.name, record.body, expected=0))
                await engine.records.drop(DropRecord(kind, EVERYBODY, record.name))


async def _tenant(engine: Engine, old: Old) -> str:
    job = None if old.tenant else await engine.jobs.get_job(old.job_id)
    return old.tenant or ("" if job is None else job.tenant)
