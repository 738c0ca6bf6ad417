"""One endpoint's lane by itself, and the outbox with many lanes: bounds, breaker, fairness, order."""

import asyncio
import time
from collections import Counter
from random import Random

from aiohttp import web

from chargehand.engine.guard import Guard
from chargehand.webhooks.lanes import MAX_COOL_DOWN, Lane, Pace
from tests.api.serving import until
from tests.webhooks.desk import QUEUE, OpenDesk
from tests.webhooks.receiver import Receiver, after, after_seconds, answer, hang, receiving

THRESHOLD, PAUSE = 5, 30.0
PATIENT = Pace(1, 3600, 3600)  # a policy whose pauses are longer than those of the breaker


def fail(lane: Lane, now: float, times: int = 1, spread: float = 0.0, pace: Pace = PATIENT) -> None:
    for _ in range(times):
        lane.failed(now, THRESHOLD, PAUSE, spread, pace)


def pauses_of(lane: Lane, pace: Pace, probes: int) -> list[float]:
    """Return for how long the breaker opens, and again after each probe."""
    now, pauses = 100.0, []
    fail(lane, now, THRESHOLD - 1, pace=pace)
    for _ in range(probes):
        fail(lane, now, pace=pace)
        pauses.append(lane.backoff_until - now)
        now = lane.backoff_until
    return pauses


def test_failures_in_a_row_put_a_lane_in_backoff() -> None:
    lane = Lane("ep")
    fail(lane, now=100, times=THRESHOLD - 1)
    assert not lane.in_backoff(100)
    fail(lane, now=100)
    assert lane.in_backoff(100)
    assert lane.backoff_until == 130
    assert not lane.in_backoff(130)


def test_a_success_resets_the_count_of_failures() -> None:
    lane = Lane("ep")
    fail(lane, now=100, times=THRESHOLD - 1)
    lane.succeeded()
    fail(lane, now=100, times=THRESHOLD - 1)
    assert not lane.in_backoff(100)


def test_after_its_pause_a_lane_is_on_probation_until_a_delivery_succeeds() -> None:
    lane = Lane("ep")
    assert not lane.on_probation()
    fail(lane, now=100, times=THRESHOLD)
    assert lane.on_probation()
    lane.succeeded()
    assert not lane.on_probation()
    assert not lane.in_backoff(100)


def test_each_probe_that_fails_doubles_the_pause_up_to_a_bound() -> None:
    pauses = pauses_of(Lane("ep"), PATIENT, 7)
    assert pauses == [PAUSE * times for times in (1, 2, 4, 8, 16, 16, 16)]
    assert max(pauses) == PAUSE * MAX_COOL_DOWN


def test_the_breaker_pauses_for_no_longer_than_the_policy_of_the_delivery_that_failed() -> None:
    assert pauses_of(Lane("ep"), Pace(2, base_seconds=2, max_seconds=60), 7) == [4, 4, 8, 16, 32, 60, 60]
    assert pauses_of(Lane("ep"), Pace(4, base_seconds=2, max_seconds=60), 3) == [16, 16, 16]


def test_a_policy_without_pauses_leaves_them_to_the_breaker() -> None:
    assert pauses_of(Lane("ep"), Pace(1, base_seconds=0, max_seconds=60), 3) == [PAUSE, 2 * PAUSE, 4 * PAUSE]


def test_pauses_are_spread_so_that_probes_do_not_come_together() -> None:
    lane = Lane("ep")
    fail(lane, now=100, times=THRESHOLD, spread=1.0)
    assert lane.backoff_until == 100 + PAUSE * 1.25


def test_failures_of_deliveries_in_flight_when_the_breaker_opened_do_not_lengthen_the_pause() -> None:
    lane = Lane("ep")
    fail(lane, now=100, times=16)
    assert lane.backoff_until == 100 + PAUSE


def test_a_lane_is_idle_only_when_it_holds_nothing_worth_keeping() -> None:
    lane = Lane("ep")
    assert lane.idle(100)
    fail(lane, now=100)
    assert not lane.idle(100)
    lane.succeeded()
    lane.backoff_until = 130  # as Retry-After does
    assert not lane.idle(100)
    assert lane.idle(130)
    lane.wanted = True
    assert not lane.idle(130)


# ── lanes in the outbox ───────────────────────────────────────────────────────────────────────────────────────────────


def hold(receiver: Receiver) -> asyncio.Event:
    """Return an event that must be set before the receiver answers; then it answers slowly enough for requests to overlap."""
    gate = asyncio.Event()
    receiver.otherwise = after(gate, after_seconds(0.002, answer(200)))
    return gate


async def test_deliveries_in_flight_to_an_endpoint_reach_its_bound_and_never_exceed_it(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(max_in_flight_per_endpoint=3)
    gate = hold(receiver)
    for _ in range(20):
        await desk.submit(receiver.url("/one"), receiver.url("/two"))
    await until(lambda: [receiver.at_once[path] for path in ("/one", "/two")] == [3, 3])
    gate.set()
    await until(lambda: len(receiver.hooks) == 40)
    assert [receiver.most_at_once[path] for path in ("/one", "/two")] == [3, 3]


async def test_the_bound_of_a_host_holds_for_the_sum_of_its_endpoints(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(max_in_flight_per_host=2)
    async with receiving() as other:
        gates = [hold(receiver), hold(other)]
        for _ in range(8):
            await desk.submit(*[each.url(f"/{number}") for each in (receiver, other) for number in range(3)])
        await until(lambda: receiver.at_once[""] == other.at_once[""] == 2)
        for gate in gates:
            gate.set()
        await until(lambda: len(receiver.hooks) == len(other.hooks) == 24)
        assert [receiver.most_at_once[""], other.most_at_once[""]] == [2, 2]


async def test_the_total_bound_holds_for_the_sum_of_all_endpoints(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(max_in_flight=4)
    gate = hold(receiver)
    for _ in range(8):
        await desk.submit(*[receiver.url(f"/{number}") for number in range(6)])
    await until(lambda: receiver.at_once[""] == 4)
    gate.set()
    await until(lambda: len(receiver.hooks) == 48)
    assert receiver.most_at_once[""] == 4


async def test_an_endpoint_with_one_delivery_is_not_starved_by_one_with_many(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(max_in_flight=2, poll_seconds=1)
    gate = hold(receiver)
    for _ in range(100):
        await desk.submit(receiver.url("/greedy"), receiver.url("/greedy-too"))
    await desk.submit(receiver.url("/modest"))
    gate.set()
    await until(lambda: len(receiver.hooks) == 201)
    assert [hook.path for hook in receiver.hooks].index("/modest") < 50


async def test_the_breaker_opens_after_failures_in_a_row_lets_one_probe_through_and_closes_when_that_succeeds(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(breaker_failures=3, breaker_seconds=30, max_in_flight_per_endpoint=1, backoff_base_seconds=0)
    receiver.script.extend([answer(500)] * 3)
    url = receiver.url()
    jobs = [await desk.submit(url) for _ in range(6)]

    async def probes() -> int:
        await desk.settle_down(receiver, url)
        return len(receiver.at("/hook")) - 3

    await until(lambda: len(receiver.at("/hook")) == 3)
    assert await probes() == 0
    desk.clock.advance(29)
    assert await probes() == 0

    gate = asyncio.Event()
    receiver.script.append(after(gate, answer(500)))
    desk.clock.advance(9)  # the pause is spread by up to a quarter
    await until(lambda: not receiver.script)
    assert await probes() == 1
    gate.set()
    await until(lambda: not receiver.at_once["/hook"])
    assert await probes() == 1
    desk.clock.advance(59)
    assert await probes() == 1

    desk.clock.advance(17)
    for job_id in jobs:
        await desk.delivered(job_id)
    assert receiver.most_at_once["/hook"] == 1


async def test_only_one_delivery_probes_a_half_open_breaker(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(breaker_failures=1, breaker_seconds=30, backoff_base_seconds=0)
    receiver.script.append(answer(500))
    await desk.tried(await desk.submit(receiver.url()))
    gate = asyncio.Event()
    receiver.script.append(after(gate, answer(200)))
    jobs = [await desk.submit(receiver.url()) for _ in range(20)]
    desk.clock.advance(38)
    await until(lambda: not receiver.script)
    await desk.settle_down(receiver, receiver.url())
    assert receiver.at_once["/hook"] == 1
    gate.set()
    for job_id in jobs:
        await desk.delivered(job_id)


async def test_a_delivery_whose_lease_lapsed_behind_an_open_breaker_is_sent_once(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(breaker_failures=1, breaker_seconds=3600, max_in_flight_per_endpoint=4, backoff_base_seconds=0)
    gate = asyncio.Event()
    receiver.script.extend([after(gate, answer(500))] * 4)
    jobs = [await desk.submit(receiver.url()) for _ in range(12)]
    await until(lambda: receiver.at_once["/hook"] == 4)
    gate.set()
    await until(lambda: not receiver.at_once["/hook"])
    await desk.settle_down(receiver, receiver.url())
    desk.clock.advance(20 * 3600)
    for job_id in jobs:
        await desk.delivered(job_id)
    await desk.settle_down(receiver, receiver.url())
    assert sorted(Counter(hook.id for hook in receiver.at("/hook")).values()) == [1] * 8 + [2] * 4


async def test_an_endpoint_that_hangs_does_not_slow_the_others(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(timeout_seconds=60)

    async def seconds_for_all(*urls: str) -> float:
        began, before = time.monotonic(), len(receiver.at("/well"))
        for _ in range(100):
            await desk.submit(*urls)
        await until(lambda: len(receiver.at("/well")) == before + 100)
        return time.monotonic() - began

    async with receiving() as hanging:
        hanging.otherwise = hang
        alone = await seconds_for_all(receiver.url("/well"))
        beside = await seconds_for_all(hanging.url(), receiver.url("/well"))
        assert len(hanging.hooks) == hanging.most_at_once[""] == desk.config.max_in_flight_per_endpoint
        # Twice as many deliveries are written, and a busy machine needs some slack.
        assert beside < 3 * alone + 0.5


async def test_the_events_of_a_job_arrive_in_order(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk()
    random = Random(7)

    async def uneven(request: web.BaseRequest) -> web.StreamResponse:
        return await after_seconds(random.random() / 100, answer(200))(request)

    receiver.otherwise = uneven
    jobs = {await desk.submit(receiver.url()) for _ in range(100)}
    claimed = await desk.engine.claim((QUEUE,), "worker", 60, limit=100, stage="claimed")
    await asyncio.gather(*[desk.engine.succeed(Guard.held(job), b"true") for job in claimed])
    await until(lambda: len(receiver.hooks) >= 300)
    sequences: dict[str, list[str]] = {}
    for hook in receiver.hooks:
        sequences.setdefault(hook.job_id, []).append(hook.headers["X-Chargehand-Sequence"])
    assert sequences == {job_id: ["1", "2", "3"] for job_id in jobs}
