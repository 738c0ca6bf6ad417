"""The controller is killed at every step of a job, and each machine is imaged exactly once.

CHARGEHAND_CHAOS_ROUNDS says how often, CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import asyncpg
import pytest

from tests.provisioning.guest import Script
from tests.provisioning.lab import MAINTENANCE

from .fleet import (
    EJECT,
    INSERT,
    ON,
    REBOOTS,
    RESET,
    SCRIPTS,
    SESSION,
    SOON,
    SYSTEM,
    Fleet,
    Metal,
    Point,
    Wish,
    all_held,
    controller,
    fleet,
    go_on,
)
from .receiver import Receiver
from .server import SECRET, Server, eventually

ROUNDS = int(os.environ.get("CHARGEHAND_CHAOS_ROUNDS", "0"))

pytestmark = [
    pytest.mark.xdist_group("machines"),
    pytest.mark.chaos,
    pytest.mark.timeout(240 + 30 * ROUNDS),
]

MUTE: dict[str, Any] = {"power": "On", "tells_reset": False}  # only the override shows that it was reset
BLIND: dict[str, Any] = {**MUTE, "override": "continuous"}  # nothing shows that it was reset


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver(SECRET) as receiver:
        yield receiver


def both(name: str, point: Point, **fields: Any) -> list[Wish]:
    """Return two cases: killed before the BMC carries out the request, and after it but before the answer."""
    return [
        Wish(f"{name}, not yet done", point, **fields),
        Wish(f"{name}, done and not answered", replace(point, done=True), **fields),
    ]


CASES = [
    Wish("submitted"),
    Wish("discover, at its beginning", Point("GET", "/Systems$")),
    Wish("discover, on the way", Point("GET", "/VirtualMedia$")),
    *both("mount-maintenance", Point("POST", INSERT)),
    *both("mount-task", Point("POST", INSERT, 2)),
    *both("boot-override", Point("PATCH", SYSTEM)),
    *both("reset of one that is off", Point("POST", RESET), stops_before="boot"),
    *both("reset of one that is off, mute", Point("POST", RESET), stops_before="boot", habits={"tells_reset": False}),
    *both("reset", Point("POST", RESET), stops_before="boot", habits=ON),
    *both("reset, mute", Point("POST", RESET), stops_before="boot", habits=MUTE),
    Wish("reset, blind, not yet done", Point("POST", RESET), "boot", BLIND, ends="redfish.reset"),
    Wish("reset, blind, done and not answered", Point("POST", RESET, done=True), "boot", BLIND),
    Wish("poll", Point("GET", SYSTEM, since="reset"), "boot", ON),
    Wish("between boot and wait", Point("DELETE", SESSION), "boot"),
    Wish("wait, before the machine works", None, "partition.service"),
    Wish("wait, while the machine works", None, "image-linux.service"),
    Wish("wait, before the report", None, "report"),
    *both("eject, the first", Point("POST", EJECT)),
    *both("eject, the second", Point("POST", EJECT, 2)),
    *both("clear-override", Point("PATCH", SYSTEM, 2), habits={"override": "continuous"}),
    *both("final-reset", Point("POST", RESET, 2)),
    *both("final-reset, mute", Point("POST", RESET, 2), habits=MUTE),
    Wish("after the last step", Point("DELETE", SESSION, 2)),
]


def with_script(wish: Wish, script: Script, ends: str) -> Wish:
    return replace(wish, script=script, ends=ends if wish.ends == "succeeded" else wish.ends, recipe=REBOOTS)


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_controller_that_is_killed_at_any_step_resumes_there(
    script: str, tmp_path: Path, receiver: Receiver
) -> None:
    for _ in range(max(1, ROUNDS // 10)):
        folder = Path(mkdtemp(dir=tmp_path))
        async with a_room(folder, receiver, script) as (server, room):
            await server.kill()
            await server.start()
            await go_on(room, server)
            await room.complete(server)
            for metal in room.metals:
                if metal.ends != "redfish.reset":
                    # One to boot it and one at the end. For a machine that shows nothing it is unknown whether the last one happened.
                    few = (1, 2) if metal.name.startswith("final-reset, mute") else (2,)
                    assert metal.bmc.count("reset") in few, metal.name


async def test_a_stopping_controller_releases_its_jobs_at_once(tmp_path: Path, receiver: Receiver) -> None:
    async with a_room(tmp_path, receiver, "succeeds") as (server, room):
        server.terminate()
        assert await server.exit_code(5) == 0
        await server.start()
        await go_on(room, server)
        await room.complete(server)
        for metal in room.metals:
            lines = [event["message"] for event in await room.events(server, metal)]
            assert not [line for line in lines if "is gone" in line], metal.name  # before any lease lapsed
            handed_back = len([line for line in lines if line.startswith("handed back")])
            assert handed_back == 1 or (handed_back == 0 and metal.name == "submitted"), metal.name


async def test_a_job_that_is_cancelled_while_no_controller_runs_is_cleaned_up_by_the_next(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with a_room(tmp_path, receiver, "succeeds") as (server, room):
        await server.kill()
        await server.start()

        async def cancel(metal: Metal) -> None:
            status, said = await room.call(server, "POST", f"/jobs/{metal.job_id}/cancel")
            if status == 200:
                metal.ends = "cancelled"
            else:  # only if the outcome was known before
                assert (status, metal.ends) == (409, "succeeded"), (metal.name, said)
            metal.guest.go_on.set()

        async with asyncio.TaskGroup() as group:
            for metal in room.metals:
                group.create_task(cancel(metal))
        await room.complete(server)
        ends = Counter(metal.ends for metal in room.metals)
        assert ends["cancelled"] > len(CASES) // 2
        assert ends["succeeded"] > 4  # jobs in cleanup


@asynccontextmanager
async def a_room(folder: Path, receiver: Receiver, script: str) -> AsyncIterator[tuple[Server, Fleet]]:
    """Bring every machine to the point of its case; the first job is only just submitted."""
    wishes = [with_script(wish, *SCRIPTS[script]) for wish in CASES]
    async with controller(f"sqlite:///{folder}/chargehand.db", folder) as server, fleet(wishes, receiver) as room:
        await room.register(server)
        first, *others = room.metals
        await room.submit(server, others)
        await all_held(others)
        await room.submit(server, [first])
        yield server, room


# Moments without a request to a BMC -------------------------------------------------------------------------------------


async def test_a_controller_that_is_killed_while_building_media_builds_them_again(
    tmp_path: Path, receiver: Receiver
) -> None:
    image = tmp_path / "maintenance.iso"
    os.mkfifo(image)  # it is read before anything is done to the machine; here the read blocks for ever
    async with (
        controller(f"sqlite:///{tmp_path}/chargehand.db", tmp_path) as server,
        fleet([Wish("build-media")], receiver) as room,
    ):
        await room.register(server)
        await room.submit(server)
        held = await eventually(lambda: _opened(image), SOON, "the controller reads the image")
        await server.kill()
        os.close(held)
        image.unlink()
        image.write_bytes(MAINTENANCE)
        await server.start()
        await room.complete(server)


def _opened(fifo: Path) -> int | None:
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


async def test_a_controller_that_is_killed_before_the_end_of_a_job_is_written_ends_it_later(
    postgres_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    wishes = [
        Wish("succeeds", Point("DELETE", SESSION, 2)),
        Wish("fails", Point("DELETE", SESSION, 2), script=SCRIPTS["fails"][0], ends=SCRIPTS["fails"][1]),
    ]
    async with controller(postgres_url, tmp_path) as server, fleet(wishes, receiver) as room:
        await room.register(server)
        await room.submit(server)
        await all_held(room.metals)
        database = await asyncpg.connect(postgres_url)
        try:
            async with database.transaction():
                await database.execute("SELECT 1 FROM jobs FOR UPDATE")  # the end cannot be written
                for metal in room.metals:
                    metal.bmc.go_on.set()

                async def closed() -> bool:
                    jobs = [await room.job(server, metal) for metal in room.metals]
                    return all(job["progress"]["step"] == "done" and job["status"] != "complete" for job in jobs)

                await eventually(closed, SOON, "all is done but the end")
                await server.kill()
        finally:
            await database.close()
        await server.start()
        await room.complete(server)


async def test_a_controller_that_was_down_beyond_every_deadline_accepts_the_report_of_the_machine(
    tmp_path: Path, receiver: Receiver
) -> None:
    seconds = 4
    names = ("bmc_back", "fetch", "install", "silence")
    short: dict[str, Any] = {f"provisioning_{name}_seconds": seconds for name in names}
    wishes = [
        Wish("poll", Point("GET", SYSTEM, since="reset"), "boot", ON),
        Wish("wait, while the machine boots", None, "boot"),
        Wish("wait, while the machine works", None, "image-linux.service"),
        Wish("wait, before the report", None, "report"),
    ]
    async with (
        controller(f"sqlite:///{tmp_path}/chargehand.db", tmp_path, **short) as server,
        fleet(wishes, receiver) as room,
    ):
        await room.register(server)
        await room.submit(server)
        await all_held(room.metals)
        await server.kill()
        await asyncio.sleep(seconds + 0.5)
        await server.start()
        await go_on(room, server)
        await room.complete(server)
