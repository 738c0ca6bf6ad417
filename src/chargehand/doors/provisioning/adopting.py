"""Release 0.1.0 kept for all tenants together which job a serial and a machine have. Now each tenant has its own: what lies there from before
is moved once, when the server starts.
"""

import msgspec

from chargehand.doors.provisioning.job.occupancy import EVERYBODY, MACHINE
from chargehand.doors.provisioning.servers import OWNER
from chargehand.engine.record import DropRecord, PutRecord
from chargehand.engine.store import Store


class Old(msgspec.Struct):
    tenant: str = ""
    job_id: str = ""


async def adopt(store: Store) -> None:
    for kind in (OWNER, MACHINE):
        while found := await store.list_records(kind, EVERYBODY):
            for record in found:
                tenant = await _tenant(store, msgspec.json.decode(record.body, type=Old))
                if tenant:
                    await store.put_record(PutRecord(kind, tenant, record.name, record.body, expected=0))
                await store.drop_record(DropRecord(kind, EVERYBODY, record.name))


async def _tenant(store: Store, old: Old) -> str:
    job = None if old.tenant else await store.get_job(old.job_id)
    return old.tenant or ("" if job is None else job.tenant)
