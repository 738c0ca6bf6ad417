"""Controllers that go on after they lost their lease, controllers that are killed at any moment, and many machines at once.

CHARGEHAND_CHAOS_ROUNDS says how often, CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chargehand.doors.provisioning.taxonomy import UNITS
from tests.provisioning.bmc import Call
from tests.provisioning.bmc_habits import CD_AND_USB, ONE_CD, TWO_CDS
from tests.provisioning.guest import LINUX, Script

from .fleet import ON, REBOOTS, SCRIPTS, SOON, SYSTEM, Metal, Point, Wish, all_held, controller, fleet
from .receiver import Receiver
from .server import SECRET, Server, eventually

ROUNDS = int(os.environ.get("CHARGEHAND_CHAOS_ROUNDS", "0"))

pytestmark = [
    pytest.mark.xdist_group("machines"),
    pytest.mark.chaos,
    pytest.mark.timeout(240 + 30 * ROUNDS),
]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver(SECRET) as receiver:
        yield receiver


# Two owners -------------------------------------------------------------------------------------------------------------

# Points at which a controller has read a state and is about to act on it.
BOOTING = [
    Wish("before an insert", Point("GET", "/VirtualMedia/Cd1$", 2, done=True), "report"),
    Wish("before the override", Point("GET", SYSTEM, 2, done=True), "report"),
    Wish("before the reset", Point("GET", SYSTEM, 3, done=True, since="override"), "report", ON),
]
CLEANING = [
    Wish("before an eject", Point("GET", "/VirtualMedia/Cd1$", done=True, since="reset"), habits=ON),
    Wish("before the last reset", Point("GET", SYSTEM, 3, done=True, since="eject"), habits=ON),
]


@pytest.mark.parametrize("wishes", [BOOTING, CLEANING], ids=["booting", "cleaning up"])
async def test_a_controller_that_was_paused_beyond_its_lease_changes_nothing_more(
    wishes: list[Wish], postgres_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    there = controller(postgres_url, tmp_path, "two")
    reached = {"provisioning_public_url": there.url} if wishes is BOOTING else {}
    away = controller(postgres_url, tmp_path, "one", **reached)
    async with fleet(wishes, receiver) as room, away:
        await room.register(away)
        await room.submit(away)
        await all_held(room.metals)
        tokens = {token for metal in room.metals for token in metal.bmc.sessions}
        os.kill(away.process.pid, signal.SIGSTOP)
        async with there:  # it has none of the other controller's files
            for metal in room.metals:
                if metal.guest.stops_before:
                    await eventually(metal.guest.reached.is_set, SOON, f"{metal.name}: another takes over")
                else:
                    await eventually(partial(_emptied, metal), SOON, f"{metal.name}: another takes over")
            before = {metal.name: len(metal.bmc.log) for metal in room.metals}
            for metal in room.metals:
                metal.bmc.go_on.set()  # the answer is there when it resumes
            os.kill(away.process.pid, signal.SIGCONT)

            def of_the_late(metal: Metal, *methods: str) -> list[Call]:
                calls = [call for call in metal.bmc.log[before[metal.name] :] if call.method in methods]
                return [call for call in calls if call.headers.get("X-Auth-Token") in tokens]

            for metal in room.metals:
                await eventually(
                    partial(of_the_late, metal, "DELETE"),
                    SOON,
                    f"{metal.name}: the late one logs out",
                )
            for metal in room.metals:
                assert not of_the_late(metal, "POST", "PATCH"), metal.name
                metal.guest.go_on.set()
            await room.complete(there)
            for metal in room.metals:
                assert metal.bmc.count("reset") == 2, metal.name


# At random --------------------------------------------------------------------------------------------------------------


def by_chance(random: Random, count: int) -> list[Wish]:
    def script() -> tuple[Script, str]:
        pace = random.uniform(0, 0.2)
        unit = random.choice(LINUX[1:])
        return random.choice(
            (
                (Script(step_seconds=pace), "succeeded"),
                (Script(step_seconds=pace, fails_at=unit), str(UNITS[unit])),
                (Script(silent=True), "webhook.wait"),
                (Script(step_seconds=pace, stops_at=unit), "webhook.wait"),
            )
        )

    wishes = []
    for number in range(count):
        said, ends = script()
        habits = {"slots": random.choice((TWO_CDS, ONE_CD, CD_AND_USB)), "fetches": random.random() < 0.5}
        wishes.append(Wish(f"number {number}, {said}", habits=habits, script=said, ends=ends))
    return wishes


async def survive(servers: Sequence[Server], receiver: Receiver, random: Random, rounds: int) -> None:
    async with fleet(by_chance(random, 12), receiver) as room:
        await room.register(servers[0])
        for _ in range(rounds):
            await room.submit(random.choice(servers))
            for _ in range(3):
                await asyncio.sleep(random.uniform(0, 1))
                struck = random.choice(servers)
                await struck.kill()
                await struck.start()
            await room.complete(random.choice(servers))


SHORT: dict[str, Any] = {"provisioning_silence_seconds": 6, "provisioning_fetch_seconds": 8}


async def test_no_machine_is_imaged_twice_whenever_a_controller_is_killed(
    tmp_path: Path, receiver: Receiver, random: Random
) -> None:
    async with controller(f"sqlite:///{tmp_path}/chargehand.db", tmp_path, **SHORT) as server:
        await survive([server], receiver, random, max(1, ROUNDS // 5))


@pytest.mark.skipif(not ROUNDS, reason="takes minutes: `make chaos` runs it")
async def test_no_machine_is_imaged_twice_whichever_of_two_controllers_is_killed(
    postgres_url: str, tmp_path: Path, receiver: Receiver, random: Random
) -> None:
    async with (
        controller(postgres_url, tmp_path, "one", **SHORT) as one,
        controller(postgres_url, tmp_path, "two", **SHORT) as two,
    ):
        await survive([one, two], receiver, random, max(1, ROUNDS // 5))


MANY = 200


@pytest.mark.skipif(not ROUNDS, reason="takes minutes: `make chaos` runs it")
async def test_two_hundred_machines_at_once_survive_a_restart_of_their_controller(
    tmp_path: Path, receiver: Receiver, random: Random
) -> None:
    wishes = [
        Wish(f"number {number}", script=SCRIPTS[name][0], ends=SCRIPTS[name][1], recipe=REBOOTS)
        for number, name in enumerate(random.choices(list(SCRIPTS), k=MANY))
    ]
    async with (
        controller(f"sqlite:///{tmp_path}/chargehand.db", tmp_path) as server,
        fleet(wishes, receiver) as room,
    ):
        await room.register(server)
        await room.submit(server)
        await eventually(
            lambda: sum(metal.imaged for metal in room.metals) > MANY // 2, SOON, "half of them are at work"
        )
        await server.kill()
        await server.start()
        await room.complete(server)


def _emptied(metal: Metal) -> bool:
    return metal.empty
