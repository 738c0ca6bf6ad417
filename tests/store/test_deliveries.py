"""The outbox: which deliveries a move creates, and who may take them."""

import asyncio

import pytest

from chargehand.engine.delivery import (
    Delivery,
    DeliveryState,
    EndpointState,
    Release,
    Replay,
    SetEndpoint,
    Subject,
    Taken,
    Try,
    endpoint_id,
)
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, State
from chargehand.engine.moves import Note
from chargehand.engine.reads import DeliveryFilter, EndpointFilter
from chargehand.engine.store import OldDeliveries, Store
from tests.conftest import Clock
from tests.store.given import (
    TENANT,
    URL,
    a_job,
    a_report,
    a_settle,
    a_take,
    claim,
    get,
    get_delivery,
    get_endpoint,
    job_in,
    move,
    running,
    submit,
    take_one,
)

HERE = endpoint_id(TENANT, URL)
OTHER = "https://other.example/"
PENDING, DELIVERED, DEAD = DeliveryState


async def outbox(store: Store, job_id: str) -> list[Delivery]:
    return (await store.list_deliveries(DeliveryFilter(job_id=job_id)))[::-1]


async def pending(store: Store, count: int = 1, url: str = URL) -> list[str]:
    """Submit jobs with one pending delivery each; return the deliveries' ids, oldest first."""
    for _ in range(count):
        await submit(store, reports=(a_report(url),))
    found = await store.list_deliveries(DeliveryFilter(endpoint_id=endpoint_id(TENANT, url), limit=count))
    return [delivery.id for delivery in found][::-1]


async def taken(store: Store, url: str = URL) -> tuple[str, int]:
    [delivery_id] = await pending(store, url=url)
    answer = await store.write(a_take(url))
    assert answer.ids == (delivery_id,)
    return delivery_id, answer.leases[0]


async def delivery(store: Store, delivery_id: str) -> Delivery:
    found = await get_delivery(store, delivery_id)
    assert found is not None
    return found


# created by moves -------------------------------------------------------------------------------------------------------


async def test_a_delivery_is_due_at_once_and_has_its_event(store: Store, clock: Clock) -> None:
    job_id = await submit(store, reports=(a_report(URL + "?job=17"),))
    [made] = await outbox(store, job_id)
    assert (made.job_id, made.seq, made.tenant, made.url, made.dialect) == (
        job_id,
        1,
        TENANT,
        URL + "?job=17",
        "standard",
    )
    assert (made.state, made.attempt, made.tries, made.lease, made.lease_until) == (PENDING, 0, 0, 0, None)
    assert made.due_at == made.since_at == made.created_at == clock.now
    endpoint = await get_endpoint(store, made.endpoint_id)
    assert endpoint is not None
    assert (endpoint.id, endpoint.url, endpoint.state) == (HERE, URL, EndpointState.ACTIVE)


async def test_each_report_gets_only_its_own_topics(store: Store) -> None:
    reports = (
        a_report(URL),
        a_report(OTHER + "ends", "succeeded", "failed"),
        a_report(OTHER + "working", "running:working"),
        a_report(OTHER + "running", "running"),
    )
    job = await running(store, reports=reports)
    for stage in ("loading", "working"):
        await move(store, job, "advance", stage=stage)
    await move(store, job, "succeed")
    heard = {report.url: [d.seq for d in await outbox(store, job.id) if d.url == report.url] for report in reports}
    assert list(heard.values()) == [[1, 3, 4, 5], [5], [4], [3, 4]]


@pytest.mark.parametrize("step", ["succeed", "fail", "retry", "cancel"])
async def test_a_move_and_its_deliveries_are_committed_together(store: Store, step: str) -> None:
    job = await running(store, max_attempts=2, reports=(a_report(URL), a_report(OTHER)))
    await move(store, job, "advance", stage="working")
    moved = await move(store, job, step)
    assert moved is not None
    assert moved.endpoints == (HERE, endpoint_id(TENANT, OTHER))
    assert [(d.seq, d.url) for d in await outbox(store, job.id)][-2:] == [(moved.seq, URL), (moved.seq, OTHER)]


async def test_a_refused_move_makes_no_delivery(store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED, reports=(a_report(),))
    before = await outbox(store, job.id)
    assert await move(store, job, "fail") is None
    assert await outbox(store, job.id) == before


async def test_notes_and_beats_make_no_delivery(store: Store) -> None:
    job = await running(store, reports=(a_report(),))
    await store.write(Note(Guard.seen(job), message="hello"))
    assert [d.seq for d in await outbox(store, job.id)] == [1]


async def test_a_claim_in_a_group_returns_the_endpoints_of_its_deliveries(store: Store) -> None:
    await submit(store, reports=(a_report(URL),))
    await submit(store, reports=(a_report(OTHER),))
    claimed = await claim(store, limit=2, stage="working")
    assert set(claimed.endpoints) == {HERE, endpoint_id(TENANT, OTHER)}


async def test_tenants_do_not_share_a_receiver(store: Store) -> None:
    theirs = await submit(store, tenant="other", reports=(a_report(tenant="other"),))
    ours = await submit(store, reports=(a_report(),))
    [mine] = await outbox(store, ours)
    assert (await store.write(a_take())).ids == (mine.id,)
    assert await get_delivery(store, mine.id, "other") is None
    assert await get_endpoint(store, HERE, "other") is None
    assert (await store.write(a_take(tenant="other"))).ids == ((await outbox(store, theirs))[0].id,)


# taking -----------------------------------------------------------------------------------------------------------------


async def test_a_taken_delivery_is_not_taken_again_until_its_lease_is_over(store: Store, clock: Clock) -> None:
    ids = await pending(store, 3)
    first = await store.write(a_take(limit=2))
    assert (first.ids, first.leases) == (tuple(ids[:2]), (1, 1))
    assert (await store.write(a_take())).ids == (ids[2],)
    assert (await store.write(a_take())).ids == ()
    clock.advance(30)
    again = await store.write(a_take())
    assert (again.ids, again.leases) == (tuple(ids), (2, 2, 2))


async def test_takes_of_one_group_share_the_due_deliveries(store: Store) -> None:
    ids = await pending(store, 5)
    limits = (2, 4)
    answers = await asyncio.gather(*[store.write(a_take(limit=limit)) for limit in limits])
    assert all(len(answer.ids) <= limit for answer, limit in zip(answers, limits, strict=True))
    assert sorted(i for answer in answers for i in answer.ids) == ids


async def test_a_released_delivery_can_be_taken_again_at_once(store: Store, clock: Clock) -> None:
    ids = await pending(store, 3)
    taken = await store.write(a_take())
    await store.write(Release(taken.ids[:2], (taken.leases[0], taken.leases[1] - 1)))
    again = await store.write(a_take())
    assert (again.ids, again.leases) == ((ids[0],), (2,)), "the second was released with a wrong lease"
    assert not await store.write(a_settle(ids[0], taken.leases[0]))
    assert await store.write(a_settle(ids[0], again.leases[0]))
    await store.write(Release((ids[0],), again.leases))
    assert (await delivery(store, ids[0])).state is DELIVERED
    assert await store.list_tries(ids[1]) == []


async def test_the_delivery_that_was_due_first_is_taken_first(store: Store, clock: Clock) -> None:
    delivery_id, lease = await taken(store)
    await store.write(a_settle(delivery_id, lease, PENDING, retry_seconds=10))
    clock.advance(5)
    [second] = await pending(store)
    clock.advance(5)
    [third] = await pending(store)
    assert [(await store.write(a_take(limit=1))).ids for _ in range(3)] == [
        (second,), (min(delivery_id, third),), (max(delivery_id, third),)
    ]  # fmt: skip


async def test_an_empty_take_says_when_the_next_delivery_is_due(store: Store, clock: Clock) -> None:
    for wait in (20, 10):
        delivery_id, lease = await taken(store)
        await store.write(a_settle(delivery_id, lease, PENDING, retry_seconds=wait))
    assert await store.write(a_take()) == Taken((), (), clock.now + 10 * SECOND)
    assert await store.write(a_take(OTHER)) == Taken((), (), None)


async def test_takes_of_one_group_do_not_mix_up_endpoints(store: Store, clock: Clock) -> None:
    ids = {url: await pending(store, 2, url) for url in (URL, OTHER)}
    urls = (OTHER, "https://nobody.example/", URL)
    answers = await asyncio.gather(*[store.write(a_take(url)) for url in urls])
    assert [answer.ids for answer in answers] == [tuple(ids.get(url, ())) for url in urls]


@pytest.mark.parametrize("state", [EndpointState.PAUSED, EndpointState.DISABLED])
async def test_no_delivery_of_a_blocked_endpoint_is_taken_or_lost(store: Store, state: EndpointState) -> None:
    [delivery_id] = await pending(store)
    assert await store.write(SetEndpoint(HERE, TENANT, state, "maintenance"))
    answer = await store.write(a_take())
    assert (answer.ids, answer.blocked) == ((), True)
    assert await store.due_endpoints(10) == []
    [later] = await pending(store)
    assert await store.write(SetEndpoint(HERE, TENANT, EndpointState.ACTIVE, ""))
    answer = await store.write(a_take())
    assert (answer.ids, answer.blocked) == ((delivery_id, later), False)


async def test_an_unknown_endpoint_cannot_be_set(store: Store) -> None:
    assert not await store.write(SetEndpoint("ep_nobody", TENANT, EndpointState.PAUSED, ""))


async def test_due_endpoints_are_those_with_something_pending(store: Store, clock: Clock) -> None:
    start = clock.now
    await pending(store, 3)
    clock.advance(1)
    delivery_id, lease = await taken(store, OTHER)
    other = endpoint_id(TENANT, OTHER)
    assert sorted(await store.due_endpoints(10)) == sorted([(HERE, start), (other, clock.now)])
    assert len(await store.due_endpoints(1)) == 1
    await store.write(a_settle(delivery_id, lease))
    assert await store.due_endpoints(10) == [(HERE, start)]


# settling ---------------------------------------------------------------------------------------------------------------


async def test_a_delivered_delivery_is_not_due_again_and_its_try_is_stored(store: Store, clock: Clock) -> None:
    delivery_id, lease = await taken(store)
    clock.advance(1)
    assert await store.write(a_settle(delivery_id, lease))
    settled = await delivery(store, delivery_id)
    assert (settled.state, settled.attempt, settled.tries, settled.lease_until) == (DELIVERED, 1, 1, None)
    assert await store.list_tries(delivery_id) == [Try(delivery_id, 1, clock.now, 200, 0.5, "", "ok")]
    clock.advance(3600)
    assert (await store.write(a_take())).ids == ()


async def test_a_late_settle_is_refused_and_changes_nothing(store: Store, clock: Clock) -> None:
    delivery_id, late = await taken(store)
    clock.advance(30)
    [lease] = (await store.write(a_take())).leases
    before = await delivery(store, delivery_id)
    assert not await store.write(a_settle(delivery_id, late, DEAD))
    assert await delivery(store, delivery_id) == before
    assert await store.list_tries(delivery_id) == []
    assert await store.write(a_settle(delivery_id, lease))
    assert not await store.write(a_settle(delivery_id, lease)), "once"
    assert not await store.write(a_settle("nobody", 1))


async def test_a_late_settle_does_not_disturb_the_valid_one_in_its_group(store: Store, clock: Clock) -> None:
    delivery_id, late = await taken(store)
    clock.advance(30)
    [lease] = (await store.write(a_take())).leases
    settles = [
        a_settle(delivery_id, late, DEAD, status=500),
        a_settle(delivery_id, lease),
        a_settle(delivery_id, lease),
    ]
    assert await asyncio.gather(*map(store.write, settles)) == [False, True, False]
    assert (await delivery(store, delivery_id)).state is DELIVERED
    assert [line.status for line in await store.list_tries(delivery_id)] == [200]


async def test_a_delivery_whose_try_failed_is_due_again_after_its_delay(store: Store, clock: Clock) -> None:
    delivery_id, lease = await taken(store)
    refused = a_settle(
        delivery_id, lease, PENDING, retry_seconds=7.5, reason="500", status=500, error="oh", answer="no"
    )
    assert await store.write(refused)
    waiting = await delivery(store, delivery_id)
    assert (waiting.due_at, waiting.attempt, waiting.reason) == (clock.now + 7_500_000, 1, "500")
    clock.advance(7.499_999)
    assert (await store.write(a_take())).ids == ()
    clock.advance(0.000_001)
    assert (await store.write(a_take())).ids == (delivery_id,)


async def test_tries_are_listed_newest_first(store: Store, clock: Clock) -> None:
    delivery_id, lease = await taken(store)
    for status in (500, None):
        await store.write(a_settle(delivery_id, lease, PENDING, status=status, error="x"))
        [lease] = (await store.write(a_take())).leases
    await store.write(a_settle(delivery_id, lease))
    log = await store.list_tries(delivery_id)
    assert [(line.number, line.status, line.error) for line in log] == [(3, 200, ""), (2, None, "x"), (1, 500, "x")]


async def test_a_delivery_shows_its_event_and_the_result_of_its_last_try(store: Store) -> None:
    delivery_id, lease = await taken(store)
    [untried] = await pending(store)
    job = await get(store, (await delivery(store, delivery_id)).job_id)
    await store.write(a_settle(delivery_id, lease, PENDING, status=503, duration_seconds=2.0))
    job_ids = {each: (await delivery(store, each)).job_id for each in (delivery_id, untried)} | {"nobody": job.id}
    found = {told.delivery_id: told for told in await store.subjects(job_ids)}
    assert found == {
        delivery_id: Subject(delivery_id, job.kind, job.queue.name, "queued", "", 503, 2.0),
        untried: Subject(untried, job.kind, job.queue.name, "queued", "", None, None),
    }
    [lease] = (await store.write(a_take(limit=1))).leases
    await store.write(a_settle(delivery_id, lease))
    assert [told.status for told in await store.subjects({delivery_id: job.id})] == [200]


async def test_an_endpoint_that_answers_gone_is_disabled_together_with_its_last_try(store: Store) -> None:
    delivery_id, lease = await taken(store)
    [waiting] = await pending(store)
    await store.write(a_settle(delivery_id, lease, DEAD, status=410, reason="gone", disable_endpoint=HERE))
    endpoint = await get_endpoint(store, HERE)
    assert endpoint is not None
    assert (endpoint.state, endpoint.reason) == (EndpointState.DISABLED, "gone")
    assert (await store.write(a_take())).blocked
    assert (await delivery(store, waiting)).state is PENDING


async def test_a_late_settle_cannot_disable_an_endpoint(store: Store) -> None:
    delivery_id, lease = await taken(store)
    assert not await store.write(a_settle(delivery_id, lease + 1, DEAD, disable_endpoint=HERE))
    endpoint = await get_endpoint(store, HERE)
    assert endpoint is not None
    assert endpoint.state is EndpointState.ACTIVE


# replaying and giving up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [DEAD, DELIVERED])
async def test_a_settled_delivery_can_be_replayed(store: Store, clock: Clock, state: DeliveryState) -> None:
    delivery_id, lease = await taken(store)
    await store.write(a_settle(delivery_id, lease, state))
    clock.advance(3600)
    assert await store.write(Replay(TENANT, delivery_id)) == 1
    again = await delivery(store, delivery_id)
    assert (again.state, again.attempt, again.tries, again.since_at) == (PENDING, 0, 1, clock.now)
    assert not await store.write(a_settle(delivery_id, lease)), "the lease from before is not valid again"
    [lease] = (await store.write(a_take())).leases
    assert await store.write(a_settle(delivery_id, lease))
    assert [line.number for line in await store.list_tries(delivery_id)] == [2, 1]


async def test_a_pending_or_unknown_delivery_cannot_be_replayed(store: Store) -> None:
    [delivery_id] = await pending(store)
    assert await store.write(Replay(TENANT, delivery_id)) == 0
    assert await store.write(Replay(TENANT, "nobody")) == 0


async def test_all_dead_deliveries_of_an_endpoint_can_be_replayed(store: Store) -> None:
    states = [DEAD, DEAD, DELIVERED, DEAD]
    for url in (URL, OTHER):
        for state in states:
            delivery_id, lease = await taken(store, url)
            await store.write(a_settle(delivery_id, lease, state))
    assert await store.write(Replay(TENANT, endpoint_id=HERE, limit=2)) == 2
    assert await store.write(Replay(TENANT, endpoint_id=HERE, limit=10)) == 1
    assert await store.write(Replay(TENANT, endpoint_id=HERE, limit=10)) == 0
    counts = {each.id: (each.pending, each.dead) for each in await store.list_endpoints(EndpointFilter(TENANT))}
    assert counts == {HERE: (3, 0), endpoint_id(TENANT, OTHER): (0, 3)}


async def test_a_delivery_that_is_too_old_is_given_up_unless_it_is_being_sent(store: Store, clock: Clock) -> None:
    [old], [sending] = await pending(store), await pending(store, url=OTHER)
    clock.advance(100)
    [lease] = (await store.write(a_take(OTHER))).leases
    [young] = await pending(store)
    assert await store.prune(OldDeliveries(100), 10) == 1
    assert [(await delivery(store, i)).state for i in (old, sending, young)] == [DEAD, PENDING, PENDING]
    assert "100 s" in (await delivery(store, old)).reason
    assert await store.write(a_settle(sending, lease))
    assert await store.prune(OldDeliveries(100), 10) == 0


async def test_the_age_of_a_replayed_delivery_starts_again(store: Store, clock: Clock) -> None:
    delivery_id, lease = await taken(store)
    await store.write(a_settle(delivery_id, lease, DEAD))
    clock.advance(1000)
    await store.write(Replay(TENANT, delivery_id))
    assert await store.prune(OldDeliveries(100), 10) == 0


async def test_giving_up_stops_at_its_limit(store: Store, clock: Clock) -> None:
    await pending(store, 3)
    clock.advance(100)
    assert [await store.prune(OldDeliveries(100), 2) for _ in range(3)] == [2, 1, 0]


# reading ----------------------------------------------------------------------------------------------------------------


async def test_an_outgoing_delivery_has_its_job_and_its_event(store: Store) -> None:
    job = await running(store, reports=(a_report(),), metadata=b"m")
    await move(store, job, "succeed", result=b'{"n": 1}')
    made = await outbox(store, job.id)
    found = await store.outgoing([d.id for d in made])
    assert [(o.delivery, o.event.seq, o.event.move) for o in found] == [(made[0], 1, "submit"), (made[1], 3, "succeed")]
    assert {(o.job.id, o.job.state, o.job.result, o.job.metadata) for o in found} == {
        (job.id, State.SUCCEEDED, b'{"n": 1}', b"m")
    }
    assert await store.outgoing([]) == []
    assert await store.outgoing(["nobody"]) == []


async def test_deliveries_are_listed_newest_first_by_every_filter(store: Store) -> None:
    here, other = [await taken(store, url) for url in (URL, OTHER)]
    await store.write(a_settle(*here, DEAD))
    job_id = (await delivery(store, other[0])).job_id

    async def listed(**by: str | int) -> list[str]:
        return [d.id for d in await store.list_deliveries(DeliveryFilter(**by))]  # type: ignore[arg-type]

    assert await listed() == await listed(tenant=TENANT) == [other[0], here[0]]
    assert await listed(limit=1) == [other[0]]
    assert await listed(before=other[0]) == [here[0]]
    assert await listed(state="dead") == await listed(endpoint_id=HERE) == [here[0]]
    assert await listed(state="dead", before=here[0]) == await listed(tenant="other") == []
    assert await listed(job_id=job_id) == await listed(state="pending") == [other[0]]
    assert await listed(job_id=job_id, endpoint_id=HERE) == await listed(job_id=job_id, state="dead") == []


async def test_endpoints_are_listed_by_tenant_and_page(store: Store) -> None:
    for url in (URL, OTHER):
        await pending(store, url=url)
    await submit(store, tenant="other", reports=(a_report(tenant="other"),))
    all_ids = [endpoint.id for endpoint in await store.list_endpoints(EndpointFilter(None, "", 10))]
    assert all_ids == sorted([HERE, endpoint_id(TENANT, OTHER), endpoint_id("other", URL)])
    assert [e.id for e in await store.list_endpoints(EndpointFilter(None, all_ids[0], 1))] == all_ids[1:2]
    assert [e.tenant for e in await store.list_endpoints(EndpointFilter("other", "", 10))] == ["other"]


async def test_a_job_that_reports_nowhere_leaves_the_outbox_empty(store: Store) -> None:
    await store.write(a_job())
    await move(store, await take_one(store), "succeed")
    assert await store.list_deliveries(DeliveryFilter()) == []
    assert await store.list_endpoints(EndpointFilter(None, "", 10)) == []
    assert await store.due_endpoints(10) == []
    assert (await get(store, (await job_in(store, State.FAILED)).id)).reports == ""
