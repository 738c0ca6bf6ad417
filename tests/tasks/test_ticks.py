"""Every tick of a schedule makes one task, also with several nodes and after crashes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from chargehand.doors.tasks.schedule import ScheduleRequest, StoredSchedule, kept_in
from chargehand.doors.tasks.schedules import BATCH, RECORD
from chargehand.engine.chores import Chores
from chargehand.engine.job import SECOND
from chargehand.engine.record import PutRecord
from chargehand.errors import StoreUnavailable
from tests.api.serving import serving, talking, until
from tests.conftest import Clock
from tests.tasks.scheduled import BODY, PATH, TENANT, Node, clock_at, micros, node

HOUR = 3600 * SECOND


@pytest.fixture
def clock() -> Clock:
    return clock_at("2026-05-01T10:20")


@pytest.fixture
async def one(store_url: str, clock: Clock) -> AsyncIterator[Node]:
    async with node(store_url, clock) as running:
        yield running


async def test_nothing_happens_before_the_tick_and_one_task_is_made_at_it(one: Node) -> None:
    await one.make(priority=7, maxAttempts=2, webhook="http://127.0.0.1:9/done")
    await one.fire_at("2026-05-01T10:59:59")
    assert await one.jobs() == []
    await one.fire_at("2026-05-01T11:00")
    [found] = await one.jobs()
    job = await one.server.engine.get(found.id)
    assert (str(job.queue), job.payload) == ("task/default/render", b'{"n": 12345678901234567890}')
    assert (job.priority, job.max_attempts, msgspec.json.decode(job.metadata or b"")) == (7, 2, {"command": "Render"})
    assert "http://127.0.0.1:9/done" in job.reports
    shown = await one.show()
    assert (shown["lastRunAt"], shown["lastTaskId"]) == ("2026-05-01T11:00:00.000Z", job.id)
    assert (shown["nextRunAt"], shown["version"]) == ("2026-05-01T12:00:00.000Z", 1)


async def test_every_tick_makes_one_task_however_often_the_schedules_fire(one: Node) -> None:
    await one.make()
    for hour in (11, 12, 13):
        for second in ("00", "00", "01", "30"):
            await one.fire_at(f"2026-05-01T{hour}:00:{second}")
    assert await one.ticks() == ["2026-05-01T11:00", "2026-05-01T12:00", "2026-05-01T13:00"]


async def test_missed_ticks_make_one_task_for_the_last_of_them(one: Node) -> None:
    await one.make(cron="* * * * *")
    await one.fire_at("2027-05-01T10:20:30")
    assert await one.ticks() == ["2027-05-01T10:20"]
    await one.fire_at("2027-05-01T10:21")
    assert await one.ticks() == ["2027-05-01T10:20", "2027-05-01T10:21"]


async def test_a_crash_between_the_task_and_the_record_makes_no_second_task(one: Node) -> None:
    await one.make()
    before = await one.record()
    await one.fire_at("2026-05-01T11:00")
    moved = await one.record()
    # As a crash between the two writes would leave it: the task exists, and the schedule is still due.
    await one.server.store.write(
        PutRecord(RECORD, TENANT, "nightly", before.body, expected=moved.version, due_at=before.due_at)
    )
    await one.fire_at("2026-05-01T11:00:05")
    [job] = await one.jobs()
    assert len(one.door.keys) == 2
    assert (await one.show())["lastTaskId"] == job.id
    assert (await one.record()).due_at == micros("2026-05-01T12:00")


async def test_a_node_with_an_old_record_neither_makes_a_second_task_nor_turns_the_schedule_back(one: Node) -> None:
    await one.make()
    old = await one.record()
    await one.fire_at("2026-05-01T11:00")
    moved = await one.record()
    await one.schedules._fire(old, one.clock.now)
    assert len(await one.jobs()) == 1
    assert await one.record() == moved


async def test_with_two_nodes_on_one_database_each_tick_makes_one_task(postgres_url: str, clock: Clock) -> None:
    async with node(postgres_url, clock) as one, node(postgres_url, clock) as two:
        names = [f"s{n}" for n in range(10)]
        for name in names:
            (await one.make(name=name, cron="* * * * *")).good(201)
        for minute in range(30, 35):
            one.at(f"2026-05-01T10:{minute}")
            await asyncio.gather(*[each.schedules.fire() for each in (one, two, one, two)])
        ticks = await one.ticks()
        assert ticks == sorted(f"2026-05-01T10:{minute}" for minute in range(30, 35) for _ in names)
        assert len(one.door.keys) + len(two.door.keys) > len(ticks)  # both nodes tried some ticks


async def test_more_schedules_than_one_batch_all_make_their_task_at_the_tick(one: Node) -> None:
    asked = ScheduleRequest("0 * * * *", "render", payload=msgspec.Raw(b"1"))
    count = 2 * BATCH + 1
    for n in range(count):
        put = PutRecord(
            RECORD,
            TENANT,
            f"s{n}",
            msgspec.json.encode(StoredSchedule(replace(asked, name=f"s{n}"))),
            0,
            micros("2026-05-01T11:00"),
        )
        await one.server.store.write(put)
    await one.fire_at("2026-05-01T11:00")
    assert len(await one.jobs()) == count


async def test_a_broken_schedule_does_not_stop_the_others(one: Node) -> None:
    due = micros("2026-05-01T11:00")
    asked = ScheduleRequest("0 * * * *", "render", payload=msgspec.Raw(b"1"))
    bodies = {
        "a no JSON": b"{",
        "b no cron": msgspec.json.encode(StoredSchedule(replace(asked, cron="every day"))),
        "c no zone": msgspec.json.encode(StoredSchedule(replace(asked, timezone="Mars"))),
        "d no command": msgspec.json.encode(StoredSchedule(replace(asked, command=" "))),
        "e no payload": msgspec.json.encode(StoredSchedule(replace(asked, payload=msgspec.Raw(b"null")))),
    }
    for name, body in bodies.items():
        await one.server.store.write(PutRecord(RECORD, TENANT, name, body, 0, due))
    await one.make()
    await one.fire_at("2026-05-01T11:00")
    assert await one.ticks() == ["2026-05-01T11:00"]
    # Schedules that can still tick go on and show the error; the others stop.
    following = {name: (await one.record(name)).due_at for name in bodies}
    assert following == {
        "a no JSON": None, "b no cron": None, "c no zone": None, "d no command": due + HOUR, "e no payload": due + HOUR
    }  # fmt: skip
    assert kept_in(await one.record("d no command")).last_error == "invalid command"
    await one.fire_at("2026-05-01T12:00")
    assert await one.ticks() == ["2026-05-01T11:00", "2026-05-01T12:00"]


async def test_a_tick_that_fails_for_lack_of_a_store_is_retried(one: Node) -> None:
    await one.make()
    one.door.fail = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await one.fire_at("2026-05-01T11:00")
    assert (await one.record()).due_at == micros("2026-05-01T11:00")
    one.door.fail = None
    await one.fire_at("2026-05-01T11:00:20")
    assert await one.ticks() == ["2026-05-01T11:00"]


async def test_an_unexpected_error_costs_one_tick_and_not_the_schedule(one: Node) -> None:
    await one.make()
    one.door.fail = ZeroDivisionError()
    await one.fire_at("2026-05-01T11:00")
    one.door.fail = None
    await one.fire_at("2026-05-01T12:00")
    assert await one.ticks() == ["2026-05-01T12:00"]


async def test_a_schedule_that_is_deleted_and_made_again_has_ticks_of_its_own(one: Node) -> None:
    await one.make()
    await one.fire_at("2026-05-01T11:00")
    await one.api.call("DELETE", f"{PATH}/nightly")
    one.at("2026-05-01T10:59")  # the clock was set back
    await one.make()
    await one.fire_at("2026-05-01T11:00")
    assert await one.ticks() == ["2026-05-01T11:00", "2026-05-01T11:00"]


async def test_a_daily_schedule_keeps_to_its_zone_over_the_change_of_the_clocks(one: Node) -> None:
    one.at("2026-10-23T12:00")
    made = (await one.make(cron="30 2 * * *", timezone="Europe/Berlin")).good(201)
    assert made["nextRuns"] == ["2026-10-24T00:30:00.000Z", "2026-10-25T00:30:00.000Z", "2026-10-26T01:30:00.000Z"]
    for tick in ("24T00:30", "25T00:30", "25T01:30", "26T00:30", "26T01:30"):
        await one.fire_at(f"2026-10-{tick}")
    assert await one.ticks() == ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]


async def test_the_chore_makes_the_task_at_its_tick(store_url: str) -> None:
    class Shifted(Clock):
        """Real time, moved to half a second before the hour; it stands still until `start`."""

        began: float | None = None

        def start(self) -> None:
            self.began = asyncio.get_running_loop().time()

        def __call__(self) -> int:
            passed = 0.0 if self.began is None else asyncio.get_running_loop().time() - self.began
            return self.now + int(passed * SECOND)

    clock = Shifted()
    clock.now = micros("2026-05-01T11:00") - SECOND // 2
    async with node(store_url, clock) as one:
        await one.make()
        clock.start()
        running = asyncio.create_task(Chores(one.schedules.chores()).run())
        try:
            [job] = await until(one.jobs)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert 0 <= job.created_at - micros("2026-05-01T11:00") < 10 * SECOND  # as long as `until` waits


CRASHING = """
import asyncio, os, signal, sys

from tests.conftest import Clock
from tests.tasks.scheduled import node

async def main() -> None:
    clock = Clock()
    clock.now = int(sys.argv[2])
    async with node(sys.argv[1], clock) as one:
        async def die(put):
            os.kill(os.getpid(), signal.SIGKILL)
        one.server.engine.records.put = die
        await one.schedules.fire()

asyncio.run(main())
"""


async def test_a_server_killed_between_the_task_and_the_next_tick_leaves_one_task(store_url: str, clock: Clock) -> None:
    async with node(store_url, clock) as one:
        await one.make()
    clock.now = micros("2026-05-01T11:00")
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CRASHING, store_url, str(clock.now), cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert await process.wait() == -signal.SIGKILL
    async with node(store_url, clock) as one:
        assert (await one.record()).due_at == clock.now
        assert len(await one.jobs()) == 1
        await one.fire_at("2026-05-01T11:00:10")
        assert await one.ticks() == ["2026-05-01T11:00"]
        assert (await one.record()).due_at == micros("2026-05-01T12:00")


async def test_a_worker_gets_the_task_that_a_schedule_made(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        (await api.post(PATH, BODY)).good(201)
        task = (await api.post(f"{PATH}/nightly/run")).good(202)
        claimed = (await api.post("/v1/codeq/tasks/claim", {"commands": ["RENDER"]})).good()
        assert (claimed["id"], claimed["command"], claimed["payload"]) == (task["id"], "Render", task["payload"])
