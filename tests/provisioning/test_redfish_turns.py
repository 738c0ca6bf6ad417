"""Requests to BMCs wait for their turn, so that a thousand machines at once leave the process time to listen."""

from random import Random

from chargehand.doors.provisioning.redfish.machine import Bmc, Machine
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER
from tests.provisioning.machines import LOCAL


async def test_each_request_waits_for_its_turn_and_asks_for_leave_after_it() -> None:
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
