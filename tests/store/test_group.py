"""Group commit: many callers share few commits, and no caller affects another."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from chargehand.engine.job import QueueSettings, SetQueue
from chargehand.engine.moves import Submitted
from chargehand.errors import BadRequest, StoreFull, StoreUnavailable
from chargehand.store.group import Group, GroupsByKind
from chargehand.store.operations import GROUP_BYTES, Answer, AnyOperation, Rejected
from tests.store.given import a_job, opened, sql, submit

WAL_HEADER, FRAME_HEADER = 32, 24


class Ledger:
    """A store that only records which operations were committed together."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.side_by_side = self.most_side_by_side = 0
        self.started = asyncio.Event()

    async def commit(self, operations: Sequence[AnyOperation]) -> Sequence[Answer | Rejected]:
        self.started.set()
        self.side_by_side += 1
        self.most_side_by_side = max(self.most_side_by_side, self.side_by_side)
        await asyncio.sleep(0)
        self.side_by_side -= 1
        jobs = [operation.queue.name for operation in operations if hasattr(operation, "queue")]
        self.commits.append(jobs)
        if "everybody" in jobs:
            raise StoreFull("no room")
        return [Rejected("no") if job == "alone" else Submitted(job, True, None) for job in jobs]


async def outcomes(group: Group, *names: str) -> list[object]:
    return await asyncio.gather(*[group.put(a_job(queue=name)) for name in names], return_exceptions=True)


def commits(database: Path) -> int:
    """Count the commits since the last checkpoint: a frame of the WAL that ends a transaction has the size of the file."""
    wal = Path(f"{database}-wal").read_bytes()
    page_size = int.from_bytes(wal[8:12], "big")
    frames = range(WAL_HEADER, len(wal) - FRAME_HEADER, FRAME_HEADER + page_size)
    return sum(wal[at + 4 : at + 8] != bytes(4) for at in frames)


async def test_two_hundred_writes_at_once_take_a_handful_of_commits(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url) as store:
        await submit(store)
        before = commits(tmp_path / "chargehand.db") if store_url.startswith("sqlite:") else 1
        await asyncio.gather(*[submit(store) for _ in range(200)])
        if store_url.startswith("sqlite:"):
            after = commits(tmp_path / "chargehand.db")
        else:
            [(after,)] = await sql(store_url, "SELECT COUNT(DISTINCT xmin::TEXT) FROM jobs")
        assert 1 <= after - before <= 10


async def test_operations_that_arrive_during_a_commit_go_into_the_next_one() -> None:
    ledger = Ledger()
    group = Group(ledger.commit, size=100)
    first = group.put(a_job(queue="1"))
    await ledger.started.wait()
    await asyncio.gather(first, *[group.put(a_job(queue=str(number))) for number in (2, 3, 4)])
    assert ledger.commits == [["1"], ["2", "3", "4"]]


async def test_a_group_has_its_size_and_no_more_and_commits_one_at_a_time() -> None:
    ledger = Ledger()
    names = [str(number) for number in range(25)]
    answers = await outcomes(Group(ledger.commit, size=4), *names)
    assert [answer.job_id for answer in answers if isinstance(answer, Submitted)] == names
    assert [len(commit) for commit in ledger.commits] == [4, 4, 4, 4, 4, 4, 1]
    assert ledger.most_side_by_side == 1


async def test_operations_of_two_kinds_are_committed_side_by_side_and_never_together() -> None:
    commits: list[set[str]] = []
    both = asyncio.Event()

    async def commit(operations: Sequence[AnyOperation]) -> Sequence[Answer | Rejected]:
        commits.append({type(operation).__name__ for operation in operations})
        if len(commits) == 2:
            both.set()
        await both.wait()  # for ever, if one commit had to end before the other begins
        return [None] * len(operations)

    groups = GroupsByKind(lambda: Group(commit, size=10))
    setting = SetQueue(QueueSettings(a_job().queue))
    await asyncio.gather(groups.put(a_job()), groups.put(setting), groups.put(a_job()))
    assert commits == [{"NewJob"}, {"SetQueue"}]
    await groups.close(StoreUnavailable("stopping"))
    with pytest.raises(StoreUnavailable):
        await groups.put(a_job())


async def test_callers_of_a_commit_that_hangs_are_failed_and_served_again_when_it_ends() -> None:
    hanging = asyncio.Event()

    async def commit(operations: Sequence[AnyOperation]) -> Sequence[Answer | Rejected]:
        await hanging.wait()
        return [Submitted("late", True, None) for _ in operations]

    group = Group(commit, size=1, patience_seconds=0.01)
    behind = outcomes(group, "under way", "waiting")
    assert [type(error) for error in await behind] == [StoreUnavailable] * 2
    assert [type(error) for error in await outcomes(group, "next")] == [StoreUnavailable]
    hanging.set()
    assert group._running is not None
    await group._running
    assert [type(answer) for answer in await outcomes(group, "again")] == [Submitted]


async def test_a_caller_behind_a_commit_that_fails_late_waits_no_longer_than_others() -> None:
    patience, first, never = 0.4, asyncio.Event(), asyncio.Event()

    async def commit(operations: Sequence[AnyOperation]) -> Sequence[Answer]:
        await (never if first.is_set() else first).wait()
        raise StoreUnavailable("gone")

    group = Group(commit, size=1, patience_seconds=patience)
    ahead, behind = group.put(a_job()), group.put(a_job())
    too_late = asyncio.create_task(
        asyncio.sleep(patience * 1.5)
    )  # the loop's timers are in order, however slow the machine is
    asyncio.get_running_loop().call_later(patience * 0.8, first.set)
    await asyncio.wait((behind, too_late), return_when=asyncio.FIRST_COMPLETED)
    assert behind.done()
    assert [type(error) for error in await asyncio.gather(ahead, behind, return_exceptions=True)] == [
        StoreUnavailable
    ] * 2
    never.set()


async def test_callers_wait_for_a_long_commit_as_long_as_the_store_answers() -> None:
    async def commit(operations: Sequence[AnyOperation]) -> Sequence[Answer | Rejected]:
        for _ in range(8):
            too_late = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.2, too_late.set_result, None)
            await too_late
            group.heard()
        return [Submitted("long", True, None) for _ in operations]

    group = Group(commit, size=1, patience_seconds=1.0)
    assert [type(answer) for answer in await outcomes(group, "long")] == [Submitted]


async def test_a_group_is_bounded_in_bytes_too() -> None:
    ledger = Ledger()
    group = Group(ledger.commit, size=100)
    large = bytes(GROUP_BYTES // 2)
    await asyncio.gather(*[group.put(a_job(queue=str(number), payload=large)) for number in range(5)])
    assert ledger.commits == [["0", "1"], ["2", "3"], ["4"]]


async def test_a_refused_operation_does_not_affect_its_group() -> None:
    answers = await outcomes(Group(Ledger().commit, size=10), "a", "alone", "b")
    assert [type(answer) for answer in answers] == [Submitted, BadRequest, Submitted]


async def test_when_a_commit_fails_all_of_its_callers_get_the_error_and_the_next_is_tried() -> None:
    group = Group(Ledger().commit, size=10)
    answers = await outcomes(group, "a", "everybody", "b")
    assert [type(answer) for answer in answers] == [StoreFull] * 3
    assert [type(answer) for answer in await outcomes(group, "c")] == [Submitted]


async def test_a_cancelled_caller_does_not_affect_the_others() -> None:
    ledger = Ledger()
    group = Group(ledger.commit, size=10)
    leaving, staying = group.put(a_job(queue="leaving")), group.put(a_job(queue="staying"))
    leaving.cancel()
    assert isinstance(await staying, Submitted)
    assert isinstance((await outcomes(group, "next"))[0], Submitted)


async def test_closing_commits_earlier_operations_and_refuses_later_ones() -> None:
    ledger = Ledger()
    group = Group(ledger.commit, size=2)
    before = [group.put(a_job(queue=str(number))) for number in range(5)]
    await group.close(StoreUnavailable("stopping"))
    assert [type(future.result()) for future in before] == [Submitted] * 5
    assert [str(error) for error in await outcomes(group, "late")] == ["stopping"]


@pytest.mark.timeout(10)
async def test_a_group_can_be_closed_at_the_moment_its_commit_ends() -> None:
    group = Group(Ledger().commit, size=10)
    await group.put(a_job())  # it returns before the group knows that the commit has ended
    await group.close(StoreUnavailable("stopping"))


async def test_when_the_store_is_gone_callers_get_an_error_and_do_not_wait() -> None:
    group = Group(Ledger().commit, size=1)
    first, waiting = group.put(a_job(queue="1")), group.put(a_job(queue="2"))
    await asyncio.sleep(0)
    group.fail(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable, match="gone"):
        await waiting
    assert isinstance(await first, Submitted)
    assert [str(error) for error in await outcomes(group, "late")] == ["gone"]
