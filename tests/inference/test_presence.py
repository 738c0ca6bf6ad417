"""When targets were up, and unloading models on request."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chargehand.doors.inference.presence import DAY_SECONDS, MAX_CHANGES, PresenceChange, TargetPresence
from tests.api.serving import until
from tests.inference.calling import is_away
from tests.inference.stories import Place, a_place, some_targets

NOON = 1_800_000_000.0


def test_a_change_is_noted_once() -> None:
    presence = TargetPresence()
    for up, at in ((False, 0), (False, 1), (True, 2), (True, 3), (False, 4)):
        presence.note(up, NOON + at)
    assert presence.since(NOON + 5) == [
        PresenceChange(NOON, False),
        PresenceChange(NOON + 2, True),
        PresenceChange(NOON + 4, False),
    ]


def test_of_changes_older_than_a_day_only_the_last_is_kept() -> None:
    presence = TargetPresence()
    for number in range(4):
        presence.note(number % 2 == 0, NOON + number)
    presence.note(True, NOON + DAY_SECONDS)
    assert presence.since(NOON + DAY_SECONDS + 10) == [
        PresenceChange(NOON + 3, False),
        PresenceChange(NOON + DAY_SECONDS, True),
    ]


def test_the_number_of_changes_is_bounded() -> None:
    presence = TargetPresence()
    for number in range(3 * MAX_CHANGES):
        presence.note(number % 2 == 0, NOON + number)
    assert len(presence.since(NOON + 3 * MAX_CHANGES)) == MAX_CHANGES


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with some_targets() as [target], a_place(tmp_path, target) as place:
        yield place


async def test_a_target_shows_when_it_came_and_went(place: Place) -> None:
    [before] = (await place.get("/targets")).good()["targets"]
    assert [change["state"] for change in before["seen"]] == ["up"]
    await place.target.go_away()
    await is_away(place.server)
    [after] = (await place.get("/targets")).good()["targets"]
    assert [change["state"] for change in after["seen"]] == ["up", "away"]
    assert after["seen"][-1]["at"] == after["since"]


async def test_a_model_is_unloaded_on_request_and_loaded_again_by_the_next_job(place: Place) -> None:
    await place.run(model="a")
    answer = (await place.post("/targets/laptop/unload", {"model": "a"})).good()
    assert answer["resident"] == []
    assert place.target.unloads == ["a:latest"] or place.target.unloads == ["a"]
    await place.run(model="a")
    assert len(place.target.loads) == 2


async def test_an_unload_on_request_waits_for_running_requests(place: Place) -> None:
    place.target.habits.token_seconds = 0.1
    job_id = await place.ask(model="a", text="one two three four five")
    await until(lambda: place.target.in_flight.total() == 1)
    (await place.post("/targets/laptop/unload", {"model": "a"})).good()
    job = await place.done(job_id)
    assert len(job["attempts"]) == 1


async def test_an_unload_of_an_absent_model_or_target_is_refused(place: Place) -> None:
    assert (await place.post("/targets/laptop/unload", {"model": "a"})).status == 404
    assert (await place.post("/targets/nobody/unload", {"model": "a"})).status == 404
    assert (await place.post("/targets/laptop/unload", {})).status == 400
    await place.target.go_away()
    await is_away(place.server)
    assert (await place.post("/targets/laptop/unload", {"model": "a"})).status == 503
