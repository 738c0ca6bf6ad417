"""Guards by the owner's name, for wires on which a worker says who it is and not which lease it has."""

from typing import Any

import pytest

from chargehand.engine.job import Job
from chargehand.engine.moves import Change
from chargehand.engine.store import Beat, Note, Store
from tests.conftest import Clock
from tests.store.given import TENANT, get, move, running, take_one, trace

STRANGERS: list[dict[str, Any]] = [
    {"owner": "somebody else"},
    {"owner": ""},
    {"owner": "worke"},
    {"owner": "worker", "tenant": "other"},
    {"owner": "worker", "lease": 7},
    {"owner": "worker", "kind": "another"},
]


async def act(store: Store, job: Job, verb: str, **guards: Any) -> bool:
    """Whether the store let the one who names itself so do it."""
    if verb == "beat":
        return await store.beat(Beat(job.id, lease_seconds=60, **({"lease": None} | guards))) is not None
    if verb == "note":
        return await store.note(Note(job.id, message="here", **guards)) is not None
    return await store.change(Change(job.id, verb, **guards)) is not None


@pytest.mark.parametrize("verb", ["beat", "note", "succeed", "fail", "retry", "park", "advance"])
async def test_the_owner_may_and_nobody_else(store: Store, verb: str) -> None:
    job = await running(store)
    before = await trace(store, job.id)
    for stranger in STRANGERS:
        assert not await act(store, job, verb, **stranger), stranger
        assert await trace(store, job.id) == before
    assert await act(store, job, verb, owner="worker", tenant=TENANT)


@pytest.mark.parametrize("verb", ["beat", "note", "succeed", "fail", "retry", "park"])
async def test_who_lost_the_job_may_not_although_it_is_the_last_who_had_it(store: Store, verb: str) -> None:
    job = await running(store)
    assert await move(store, job, "retry")
    before = await trace(store, job.id)
    assert not await act(store, job, verb, owner="worker")
    assert await trace(store, job.id) == before


@pytest.mark.parametrize("verb", ["beat", "note", "succeed", "fail", "retry", "park"])
async def test_the_lease_tells_an_owner_from_its_older_self(store: Store, verb: str) -> None:
    old = await running(store)
    assert await move(store, old, "retry")
    new = await take_one(store, old.queue)
    assert new.lease > old.lease
    before = await trace(store, old.id)
    assert not await act(store, old, verb, owner="worker", lease=old.lease)
    assert await trace(store, old.id) == before
    assert await act(store, new, verb, owner="worker", lease=new.lease)


async def test_a_beat_by_name_gives_the_lease_its_new_end(store: Store, clock: Clock) -> None:
    job = await running(store)
    clock.advance(30)
    assert await store.beat(Beat(job.id, None, 100, TENANT, "worker")) == clock.now + 100_000_000
    assert (await get(store, job.id)).lease_until == clock.now + 100_000_000


async def test_a_note_without_owner_and_lease_may_be_written_to_any_job(store: Store) -> None:
    job = await running(store)
    await move(store, job, "succeed")
    assert await store.note(Note(job.id, message="afterwards")) is not None
