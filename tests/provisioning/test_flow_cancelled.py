"""A flow is cancelled in the very moment in which one of its machines is claimed."""

import pytest
from prometheus_client import CollectorRegistry

from chargehand.doors.provisioning.job import cancelling
from chargehand.doors.provisioning.job.cancelling import Cancelling
from chargehand.doors.provisioning.job.ledger_writer import LedgerWriter
from chargehand.doors.provisioning.job.outcomes import Outcomes
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.names import KIND
from chargehand.engine.flow import KIND as FLOW
from chargehand.engine.flow import NewFlow, NewStep
from chargehand.engine.flows import Flows
from chargehand.engine.guard import Guard
from chargehand.engine.job import State
from chargehand.engine.store import Store
from tests.conftest import Clock
from tests.engine.given import an_engine
from tests.store.given import a_job, get, take_one


async def test_a_machine_that_is_claimed_while_its_flow_is_cancelled_is_not_installed(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "READ_SECONDS", 0)
    engine = an_engine(store)
    door = Cancelling(engine, LedgerWriter(engine.records), Outcomes(engine, ProvisioningMetrics(CollectorRegistry())))
    engine.cancel_by(KIND, door.cancel)
    flows = Flows(engine)
    whole = a_job("release", kind=FLOW)
    step = a_job("SN-1", kind=KIND, flow=whole.id, step=0)
    await store.write(NewFlow(whole, (NewStep("install", step),)))
    claimed = await take_one(store, step.queue)  # its owner has shown nothing yet
    await flows.cancel(await get(store, whole.id), "cancelled by me")
    assert (await get(store, step.id)).state is State.RUNNING
    await engine.park(Guard.held(claimed), "", message="the node stops")
    clock.advance(20)
    await flows.go_on_cancelling()
    assert [(await get(store, each)).state for each in (step.id, whole.id)] == [State.CANCELLED] * 2
