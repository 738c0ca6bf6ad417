"""Group commit: many callers, few commits, and nobody suffers for another."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from chargehand.engine.moves import Submitted
from chargehand.errors import BadRequest, StoreFull, StoreUnavailable
from chargehand.store.group import Group
from chargehand.store.operations import GROUP_BYTES, Answer, AnyOperation, Rejected
from tests.store.given import a_job, opened, sql, submit

WAL_HEADER, FRAME_HEADER = 32, 24


class Ledger:
    """A store that only writes down which operations came together."""

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
    """Commits since the last checkpoint: a frame of the WAL that ends a transaction says how large the file is then."""
    wal = Path(f"{database}-wal").read_bytes()
    page_size = int.from_bytes(wal[8:12], "big")
    frames = range(WAL_HEADER, len(wal) - FRAME_HEADER, FRAME_HEADER + page_size)
    return sum(wal[at + 4 : at + 8] != bytes(4) for at in frames)


async def test_two_hundred_at_once_take_a_handful_of_commits(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url) as store:
        await submit(store)
        before = commits(tmp_path / "chargehand.db") if store_url.startswith("sqlite:") else 1
        await asyncio.gather(*[submit(store) for _ in range(200)])
        if store_url.startswith("sqlite:"):
            after = commits(tmp_path / "chargehand.db")
        else:
            [(after,)] = await sql(store_url, "SELECT COUNT(DISTINCT xmin::TEXT) FROM jobs")
        assert 1 <= after - before <= 10


async def test_what_arrives_during_a_commit_goes_into_the_next_one() -> None:
    ledger = Ledger()
    group = Group(ledger.commit, size=100)
    first = group.put(a_job(queue="1"))
    await ledger.started.wait()
    await asyncio.gather(first, *[group.put(a_job(queue=str(number))) for number in (2, 3, 4)])
    assert ledger.commits == [["1"], ["2", "3", "4"]]


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_group_has_its_size_and_its_lanes_and_no_more(lanes: int) -> None:
    ledger = Ledger()
    names = [str(number) for number in range(25)]
    answers = await outcomes(Group(ledger.commit, size=4, lanes=lanes), *names)
    assert [answer.job_id for answer in answers if isinstance(answer, Submitted)] == names
    assert [len(commit) for commit in ledger.commits] == [4, 4, 4, 4, 4, 4, 1]
    assert ledger.most_side_by_side == lanes


async def test_a_group_is_bounded_in_bytes_too() -> None:
    ledger = Ledger()
    group = Group(ledger.commit, size=100)
    large = bytes(GROUP_BYTES // 2)
    await asyncio.gather(*[group.put(a_job(queue=str(number), payload=large)) for number in range(5)])
    assert ledger.commits == [["0", "1"], ["2", "3"], ["4"]]


async def test_a_refused_operation_is_refused_alone() -> None:
    answers = await outcomes(Group(Ledger().commit, size=10), "a", "alone", "b")
    assert [type(answer) for answer in answers] == [Submitted, BadRequest, Submitted]


async def test_when_a_commit_fails_all_of_its_callers_get_the_error_and_the_next_is_tried() -> None:
    group = Group(Ledger().commit, size=10)
    answers = await outcomes(group, "a", "everybody", "b")
    assert [type(answer) for answer in answers] == [StoreFull] * 3
    assert [type(answer) for answer in await outcomes(group, "c")] == [Submitted]


async def test_a_caller_that_left_does_not_trouble_the_others() -> None:
    ledger = Ledger()
    group = Group(ledger.commit, size=10)
    leaving, staying = group.put(a_job(queue="leaving")), group.put(a_job(queue="staying"))
    leaving.cancel()
    assert isinstance(await staying, Submitted)
    assert isinstance((await outcomes(group, "next"))[0], Submitted)


async def test_closing_commits_what_was_put_before_and_refuses_what_comes_after() -> None:
    ledger = Ledger()
    group = Group(ledger.commit, size=2)
    before = [group.put(a_job(queue=str(number))) for number in range(5)]
    await group.close(StoreUnavailable("stopping"))
    assert [type(future.result()) for future in before] == [Submitted] * 5
    assert [str(error) for error in await outcomes(group, "late")] == ["stopping"]


@pytest.mark.timeout(10)
async def test_a_group_is_closed_in_the_very_moment_in_which_its_commit_ends() -> None:
    group = Group(Ledger().commit, size=10)
    await group.put(a_job())  # its answer is here before the group knows that the commit is over
    await group.close(StoreUnavailable("stopping"))


async def test_when_the_store_is_gone_nobody_waits_for_it() -> None:
    group = Group(Ledger().commit, size=1)
    first, waiting = group.put(a_job(queue="1")), group.put(a_job(queue="2"))
    await asyncio.sleep(0)
    group.fail(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable, match="gone"):
        await waiting
    assert isinstance(await first, Submitted)
    assert [str(error) for error in await outcomes(group, "late")] == ["gone"]
