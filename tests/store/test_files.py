"""Rows of files: their owners, their names, and when they are removed."""

import asyncio
from typing import Any

import pytest

from chargehand.engine.file import DropFiles, File, NewFile
from chargehand.engine.job import State
from chargehand.engine.reads import FileFilter
from chargehand.engine.store import OldFiles, OldJobs, Store
from chargehand.errors import BadRequest
from tests.conftest import Clock
from tests.store.given import TENANT, get_file, job_in, new_id, running, submit


def a_file(**fields: Any) -> NewFile:
    values = {"id": new_id(), "tenant": TENANT, "name": "a.txt", "media_type": "text/plain", "size": 3, "sha256": "ab"}
    return NewFile(**{**values, **fields})


async def put(store: Store, **fields: Any) -> File:
    return await store.write(a_file(**fields))


async def test_a_file_is_stored_as_it_was_given(store: Store, clock: Clock) -> None:
    given = a_file(job_id="job", purpose="batch", name="größe 💥.txt", size=2**40)
    file = await store.write(given)
    for name in NewFile.__struct_fields__:
        assert getattr(file, name) == getattr(given, name), name
    assert file.created_at == clock.now
    assert (
        [await get_file(store, file.id)] == await store.list_files(FileFilter(job_id="job", name=given.name)) == [file]
    )


async def test_a_missing_file_is_not_found(store: Store) -> None:
    assert await get_file(store, "nothing") is None
    assert await store.list_files(FileFilter(job_id="nobody")) == []
    assert await store.list_files(FileFilter(job_id="nobody", name="a.txt")) == []
    assert not await store.write(
        DropFiles(
            ("nothing",),
        )
    )


async def test_a_file_is_hidden_from_other_tenants(store: Store) -> None:
    file = await put(store, purpose="batch")
    assert await get_file(store, file.id, TENANT) == file
    assert await get_file(store, file.id, "other") is None
    assert await store.list_files(FileFilter("other")) == []
    assert not await store.write(DropFiles((file.id,), "other"))
    assert await store.write(DropFiles((file.id,), TENANT))
    assert await get_file(store, file.id) is None


async def test_a_later_file_of_the_same_name_in_a_job_replaces_the_earlier_and_keeps_its_id(
    store: Store, clock: Clock
) -> None:
    first = await put(store, job_id="job", sha256="first")
    other = await put(store, job_id="job", name="b.txt")
    clock.advance(1)
    later = await put(store, job_id="job", sha256="later", size=9, media_type="text/html")
    assert (later.id, later.sha256, later.size, later.media_type) == (first.id, "later", 9, "text/html")
    assert later.created_at == clock.now
    assert await store.list_files(FileFilter(job_id="job")) == [later, other]
    assert await store.blobs_in_use(["first", "later"]) == {"later"}


async def test_file_names_are_unique_only_within_a_job(store: Store) -> None:
    files = [await put(store, job_id=job_id) for job_id in ("one", "two", None, None)]
    assert len({file.id for file in files}) == 4
    assert await store.list_files(FileFilter(job_id="one")) == files[:1]


async def test_many_writes_at_once_with_one_name_make_one_file(store: Store) -> None:
    files = await asyncio.gather(*[put(store, job_id="job", sha256=str(number)) for number in range(30)])
    assert len({file.id for file in files}) == 1
    [file] = await store.list_files(FileFilter(job_id="job"))
    assert file.sha256 in {each.sha256 for each in files}


async def test_an_id_cannot_be_used_twice(store: Store) -> None:
    file = await put(store)
    with pytest.raises(BadRequest):
        await put(store, id=file.id)
    assert await get_file(store, file.id) == file


async def test_files_with_a_purpose_are_listed_newest_first(store: Store) -> None:
    first, second, third = [await put(store, purpose=purpose) for purpose in ("batch", "batch_output", "batch")]
    await put(store)
    await put(store, job_id="job")
    await put(store, purpose="batch", tenant="other")
    assert await store.list_files(FileFilter(TENANT)) == [third, second, first]
    assert await store.list_files(FileFilter(TENANT, purpose="batch")) == [third, first]
    assert await store.list_files(FileFilter(TENANT, limit=1)) == [third]
    assert await store.list_files(FileFilter(TENANT, before=third.id, limit=1)) == [second]
    assert await store.list_files(FileFilter(TENANT, purpose="batch", before=first.id)) == []


async def test_bytes_are_in_use_as_long_as_one_file_refers_to_them(store: Store) -> None:
    one, two = await put(store, sha256="shared"), await put(store, sha256="shared", tenant="other")
    await put(store, sha256="own")
    asked = ["shared", "own", "nobody's"]
    assert await store.blobs_in_use(asked) == {"shared", "own"}
    await store.write(
        DropFiles(
            (one.id,),
        )
    )
    assert await store.blobs_in_use(asked) == {"shared", "own"}
    await store.write(
        DropFiles(
            (two.id,),
        )
    )
    assert await store.blobs_in_use(asked) == {"own"}
    assert await store.blobs_in_use([]) == set()


async def test_the_files_of_a_job_are_removed_with_it_and_no_others(store: Store, clock: Clock) -> None:
    old = await job_in(store, State.SUCCEEDED)
    alive = await running(store)
    for job_id in (old.id, alive.id, None):
        await put(store, job_id=job_id, sha256=str(job_id), purpose="batch")
    clock.advance(1000)
    assert await store.prune(OldJobs(100), 10) == 1
    assert await store.list_files(FileFilter(job_id=old.id)) == []
    assert await store.blobs_in_use([old.id, alive.id, "None"]) == {alive.id, "None"}


async def test_old_files_of_no_job_are_removed_oldest_first(store: Store, clock: Clock) -> None:
    files = []
    for _ in range(3):
        files.append(await put(store))
        clock.advance(1)
    of_a_job = await put(store, job_id=await submit(store))
    clock.advance(97)
    young = await put(store)
    assert await store.prune(OldFiles(98), 1) == 1
    assert await get_file(store, files[0].id) is None
    assert await store.prune(OldFiles(98), 10) == 2
    assert await store.prune(OldFiles(98), 10) == 0
    assert [await get_file(store, file.id) for file in (*files, of_a_job, young)] == [None, None, None, of_a_job, young]
