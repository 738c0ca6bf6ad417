"""Requests to BMCs wait for their turn, so that with a thousand machines the process still has time for their reports."""

import asyncio
from random import Random

from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.doors.provisioning.redfish.turns import Turns
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER
from tests.provisioning.machines import LOCAL


async def test_each_request_waits_for_its_turn_and_then_checks_the_permit() -> None:
    happened: list[str] = []

    async def turn() -> None:
        happened.append("turn")

    async def permit() -> None:
        happened.append("permit")

    async with FakeBmc() as bmc:
        given = Bmc(bmc.url, USER, PASSWORD, "SN-1")
        async with Machine(
            given, policy=LOCAL, timeout_seconds=5, random=Random(7), permit=permit, turn=turn
        ) as machine:
            await machine.discover()
            asked = [call for call in bmc.log if "SessionService" not in call.path]
            assert happened == ["turn"] * len(asked)
            happened.clear()
            await machine.reset()
    assert happened[-2:] == ["turn", "permit"]


async def begun(turn: "asyncio.Task[None]") -> bool:
    """Return whether it has begun after some iterations of the event loop; later only time could change that."""
    for _ in range(10):
        await asyncio.sleep(0)
    return turn.done()


async def test_no_request_begins_while_a_machine_waits_for_its_answer() -> None:
    turns = Turns(turn_seconds=0.0, give_way_seconds=3600.0)
    with turns.answering():
        with turns.answering():
            turn = asyncio.create_task(turns.wait())
            assert not await begun(turn)
        assert not await begun(turn)
    await turn


async def test_a_request_does_not_wait_for_ever_for_machines_that_report() -> None:
    turns = Turns(turn_seconds=0.0, give_way_seconds=0.01)
    with turns.answering():
        async with asyncio.timeout(60):
            await asyncio.gather(*[turns.wait() for _ in range(5)])


async def test_a_refused_report_delays_no_later_request() -> None:
    turns = Turns(turn_seconds=0.0, give_way_seconds=3600.0)
    try:
        with turns.answering():
            raise ValueError
    except ValueError:
        await turns.wait()
