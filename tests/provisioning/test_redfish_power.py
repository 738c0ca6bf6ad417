"""Power: the reset, which is sent only once, and switching off."""

from typing import Any

import pytest

from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused, RedfishUnreachable
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.machines import Time, machine, ready

# the reset --------------------------------------------------------------------------------------------------------------


async def test_a_system_that_is_off_is_switched_on() -> None:
    async with FakeBmc(Habits(power="Off")) as bmc, machine(bmc) as it:
        await ready(it)
        assert await it.reset() == "On"
        assert bmc.boots[-1].cd


@pytest.mark.parametrize(
    ("resets", "expected"),
    [
        (("On", "ForceOff", "GracefulRestart", "ForceRestart"), "ForceRestart"),
        (("On", "ForceOff", "GracefulRestart", "PowerCycle"), "PowerCycle"),
        (("On", "ForceOff", "GracefulRestart"), "ForceOff+On"),
        (("On", "GracefulRestart"), "GracefulRestart"),
    ],
)
async def test_a_running_system_is_restarted_by_the_most_reliable_reset_it_offers(
    resets: tuple[str, ...], expected: str
) -> None:
    async with FakeBmc(Habits(power="On", resets=resets)) as bmc, machine(bmc) as it:
        await ready(it)
        assert await it.reset() == expected
        assert len(bmc.boots) == 1
        assert bmc.boots[-1].cd


async def test_values_in_an_action_info_count_and_so_does_an_odd_target() -> None:
    habits = Habits(power="On", resets=("On", "PowerCycle"), action_info=True, odd_targets=True)
    async with FakeBmc(habits) as bmc, machine(bmc) as it:
        await ready(it)
        assert await it.reset() == "PowerCycle"
        assert bmc.calls("POST", "/1-all-reset")


async def test_a_system_that_lists_no_resets_gets_the_usual_ones() -> None:
    async with FakeBmc(Habits(reset_list=False)) as bmc, machine(bmc) as it:
        await ready(it)
        assert [await it.reset(), await it.reset()] == ["On", "ForceRestart"]
        assert len(bmc.boots) == 2


async def test_after_a_refused_reset_the_next_kind_is_tried() -> None:
    async with FakeBmc(Habits(power="On", resets_refused=("ForceRestart",))) as bmc, machine(bmc) as it:
        await ready(it)
        assert await it.reset() == "PowerCycle"
        assert bmc.count("reset") == 1


async def test_a_system_without_any_reset_is_refused() -> None:
    async with FakeBmc(Habits(power="On", resets=())) as bmc, machine(bmc) as it:
        await ready(it)
        with pytest.raises(RedfishRefused, match="offers no reset"):
            await it.reset()


async def test_a_system_without_a_reset_that_boots_it_is_refused_with_what_it_has() -> None:
    async with FakeBmc(Habits(power="On", resets=("Nmi",))) as bmc, machine(bmc) as it:
        await ready(it)
        with pytest.raises(RedfishRefused, match="it has Nmi"):
            await it.reset()


@pytest.mark.parametrize("power", ["On", "Resetting"])
async def test_a_wrong_power_state_does_not_prevent_a_reset(power: str) -> None:
    async with FakeBmc(Habits(power="On", shows_power=power)) as bmc, machine(bmc) as it:
        await ready(it)
        assert await it.reset() == "ForceRestart"
        assert (bmc.count("reset"), len(bmc.boots)) == (1, 1)
        assert (await it.glance()).power == power


async def test_glance_shows_that_an_accepted_reset_did_not_happen() -> None:
    async with FakeBmc(Habits(power="On", reset="nothing")) as bmc, machine(bmc) as it:
        await ready(it)
        before = await it.glance()
        await it.reset()
        assert (bmc.count("reset"), bmc.boots) == (1, [])
        assert await it.glance() == before


async def test_glance_shows_that_a_reset_happened() -> None:
    async with FakeBmc(Habits(power="On")) as bmc, machine(bmc) as it:
        await ready(it)
        before = await it.glance()
        await it.reset()
        after = await it.glance()
    assert before.last_reset_at != after.last_reset_at
    assert (before.override, after.override) == ("Once", "Disabled")


async def test_a_reset_without_an_answer_is_unclear_and_not_sent_again() -> None:
    async with FakeBmc(Habits(power="On", reset="hangs")) as bmc:
        async with machine(bmc, timeout_seconds=0.3) as it:
            await ready(it)
            with pytest.raises(RedfishUnreachable, match="no answer") as caught:
                await it.reset()
            assert (caught.value.unclear, caught.value.transient) == (True, True)
            assert len(bmc.boots) == 1
            assert (await it.glance()).last_reset_at.endswith("000001Z")
        assert bmc.count("reset") == 1


@pytest.mark.parametrize(("habit", "boots"), [("error", 0), ("error-done", 1)])
async def test_a_reset_that_answers_500_is_unclear_and_not_sent_again(habit: Any, boots: int) -> None:
    async with FakeBmc(Habits(power="On", reset=habit)) as bmc, machine(bmc) as it:
        await ready(it)
        with pytest.raises(RedfishUnreachable, match="Something broke while resetting") as caught:
            await it.reset()
        assert caught.value.unclear
        assert (bmc.count("reset"), len(bmc.boots)) == (1, boots)


async def test_an_error_before_the_reset_is_not_unclear() -> None:
    async with FakeBmc(Habits(power="On")) as bmc, machine(bmc, patience_seconds=0) as it:
        await ready(it)
        bmc.go_away(1000)
        with pytest.raises(RedfishUnreachable) as caught:
            await it.reset()
        assert not caught.value.unclear
        assert bmc.count("reset") == 0


async def test_a_power_cycle_of_a_system_that_does_not_switch_off_is_unclear() -> None:
    habits = Habits(power="On", resets=("On", "ForceOff"), shows_power="On")
    async with FakeBmc(habits) as bmc, machine(bmc) as it:
        await ready(it)
        with pytest.raises(RedfishError, match="but does not show it") as caught:
            await it.reset()
        assert caught.value.unclear
        assert [call.body["ResetType"] for call in bmc.calls("POST", "Reset")] == ["ForceOff"]


async def test_a_bmc_that_is_lost_between_off_and_on_leaves_the_reset_unclear() -> None:
    time = Time()
    habits = Habits(power="On", resets=("On", "ForceOff"), away_after=("reset",), away_seconds=1000)
    async with FakeBmc(habits, clock=time) as bmc, machine(bmc, time) as it:
        await ready(it)
        with pytest.raises(RedfishUnreachable) as caught:
            await it.reset()
        assert caught.value.unclear
        time.now += 1000
        assert await it.reset() == "On"
        assert bmc.boots[-1].cd


async def test_a_reset_that_a_busy_bmc_refused_is_not_unclear() -> None:
    habits = Habits(power="On", sessions="no", busy=1, busy_status=429, busy_methods=("POST",), patch_only=True)
    async with FakeBmc(habits) as bmc, machine(bmc) as it:
        await ready(it)
        with pytest.raises(RedfishUnreachable) as caught:
            await it.reset()
        assert (caught.value.unclear, caught.value.transient, caught.value.retry_after_seconds) == (False, True, 1)
        assert bmc.count("reset") == 0
        assert await it.reset() == "ForceRestart"


async def test_a_session_that_ends_at_the_reset_is_renewed_and_the_reset_sent_once() -> None:
    async with FakeBmc(Habits(power="On")) as bmc, machine(bmc) as it:
        await ready(it)
        bmc.sessions.clear()
        await it.reset()
        assert (bmc.count("reset"), bmc.count("session"), len(bmc.sessions)) == (1, 2, 1)


async def test_a_bmc_that_reboots_with_the_system_is_waited_for() -> None:
    time = Time()
    habits = Habits(power="On", away_after=("reset",), away_seconds=25)
    async with FakeBmc(habits, clock=time) as bmc, machine(bmc, time) as it:
        await ready(it)
        await it.reset()
        assert (await it.glance()).last_reset_at.endswith("000001Z")
        assert bmc.count("reset") == 1
    assert sum(time.slept) >= 25


async def test_a_reset_that_becomes_a_task_is_followed() -> None:
    async with FakeBmc(Habits(power="On", task="succeeds", patch_only=True)) as bmc, machine(bmc) as it:
        await ready(it)
        bmc.tasks.clear()
        assert await it.reset() == "ForceRestart"
        assert list(bmc.tasks.values()) == [3]


async def test_a_reset_whose_task_does_not_end_is_unclear() -> None:
    async with FakeBmc(Habits(power="On", task="endless", hollow_actions=True)) as bmc, machine(bmc) as it:
        await it.discover()
        with pytest.raises(RedfishUnreachable, match="task has not ended in time") as caught:
            await it.reset()
        assert caught.value.unclear
        assert bmc.count("reset") == 1


async def test_a_reset_whose_task_cannot_be_read_is_unclear_and_no_other_is_sent() -> None:
    async with FakeBmc(Habits(power="On", task="refused")) as bmc, machine(bmc) as it:
        await it.discover()
        with pytest.raises(RedfishRefused, match="Not like this") as caught:
            await it.reset()
        assert caught.value.unclear
        assert (bmc.count("reset"), len(bmc.boots)) == (1, 1)


async def test_a_reset_with_a_huge_answer_is_done() -> None:
    async with FakeBmc(Habits(power="On", chatty=True)) as bmc, machine(bmc) as it:
        await ready(it)
        assert await it.reset() == "ForceRestart"
        assert bmc.count("reset") == 1


async def test_a_changing_power_state_is_waited_for_before_a_reset() -> None:
    time = Time()
    async with FakeBmc(Habits(power_seconds=5, power="On"), clock=time) as bmc, machine(bmc, time) as it:
        await ready(it)
        await it.power_off()
        assert (await it.glance()).power == "Off"
        await it.reset()
        assert (await it.glance()).power == "PoweringOn"
        assert await it.reset() == "ForceRestart"
        assert [boot.reset_type for boot in bmc.boots] == ["On", "ForceRestart"]


async def test_a_system_that_is_going_off_is_switched_on_when_it_is_off() -> None:
    time = Time()
    async with FakeBmc(clock=time) as bmc, machine(bmc, time) as it:
        await ready(it)
        bmc.system.moving_until = time.now + 4
        assert (await it.glance()).power == "PoweringOff"
        assert await it.reset() == "On"
        assert bmc.boots[-1].cd


# off --------------------------------------------------------------------------------------------------------------------


async def test_power_off_waits_until_the_system_is_off_and_is_not_repeated() -> None:
    async with FakeBmc(Habits(power="On")) as bmc, machine(bmc) as it:
        await it.discover()
        await it.power_off()
        await it.power_off()
        assert bmc.system.power == "Off"
        assert bmc.count("reset") == 1


async def test_after_a_power_off_without_an_answer_the_state_is_read() -> None:
    async with FakeBmc(Habits(power="On", reset="hangs")) as bmc, machine(bmc, timeout_seconds=0.3) as it:
        await it.discover()
        await it.power_off()
        assert bmc.count("reset") == 1


async def test_a_system_that_cannot_be_switched_off_is_refused() -> None:
    async with FakeBmc(Habits(power="On", resets=("On", "Nmi"))) as bmc, machine(bmc) as it:
        await it.discover()
        with pytest.raises(RedfishRefused, match="cannot be switched off; it has On, Nmi"):
            await it.power_off()


async def test_a_system_that_stays_on_after_power_off_is_an_error() -> None:
    async with FakeBmc(Habits(power="On", reset="nothing")) as bmc, machine(bmc) as it:
        await it.discover()
        with pytest.raises(RedfishError, match="but does not show it"):
            await it.power_off()
        assert bmc.count("reset") == 1
