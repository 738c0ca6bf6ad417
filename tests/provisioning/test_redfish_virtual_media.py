"""Inserting and ejecting images, with whatever payload a BMC accepts."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused, RedfishUnreachable
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import CD_AND_USB, Habits
from tests.provisioning.machines import Time, machine

ISO = "http://media.example/job-1/maintenance.iso"
OTHER = "http://media.example/somebody/else.iso"


async def insert(bmc: FakeBmc, time: Time | None = None, **changes: Any) -> None:
    async with machine(bmc, time, **changes) as it:
        facts = await it.discover()
        await it.insert(facts.slots[0], ISO)
    assert bmc.image("Cd1") == ISO


def bodies(bmc: FakeBmc) -> list[set[str]]:
    """Return the parameters of each try to insert."""
    return [set(call.body) for call in bmc.log if isinstance(call.body, dict) and call.body.get("Image")]


# inserting --------------------------------------------------------------------------------------------------------------


async def test_the_smallest_payload_is_tried_first_and_a_standard_bmc_accepts_it() -> None:
    async with FakeBmc() as bmc:
        await insert(bmc)
        assert bodies(bmc) == [{"Image"}]
        assert bmc.count("insert") == 1


async def test_a_bmc_that_wants_the_protocol_gets_it() -> None:
    async with FakeBmc(Habits(wants=("TransferProtocolType",))) as bmc:
        await insert(bmc)
        assert bodies(bmc) == [{"Image"}, {"Image", "TransferProtocolType"}]
        assert bmc.calls("POST", "InsertMedia")[-1].body["TransferProtocolType"] == "HTTP"


async def test_a_bmc_that_wants_inserted_and_write_protected_gets_them() -> None:
    async with FakeBmc(Habits(wants=("Inserted", "WriteProtected"))) as bmc:
        await insert(bmc)
        assert bodies(bmc)[-1] == {"Image", "Inserted", "WriteProtected"}


async def test_a_bmc_that_refuses_inserted_and_write_protected_does_not_get_them() -> None:
    async with FakeBmc(Habits(refuses=("Inserted", "WriteProtected"), wants=("TransferProtocolType",))) as bmc:
        await insert(bmc)
        assert not any({"Inserted", "WriteProtected"} & body for body in bodies(bmc))


async def test_parameters_that_a_bmc_names_take_precedence_over_our_order() -> None:
    async with FakeBmc(
        Habits(wants=("Inserted", "TransferMethod"), refuses=("WriteProtected", "TransferProtocolType"))
    ) as bmc:
        await insert(bmc)
        assert bodies(bmc)[-1] == {"Image", "Inserted", "TransferMethod"}
        assert len(bodies(bmc)) == 3


async def test_a_bmc_that_wants_everything_gets_it() -> None:
    wants = ("TransferProtocolType", "TransferMethod", "UserName", "Password")
    async with FakeBmc(Habits(wants=wants)) as bmc:
        await insert(bmc)
        assert bodies(bmc)[-1] == {"Image", *wants}


@pytest.mark.parametrize(
    ("wants", "refuses"),
    [
        (("TransferProtocolType",), ("Inserted",)),
        (("TransferMethod",), ("Inserted",)),
        (("Inserted", "WriteProtected"), ("TransferMethod",)),
        (("Inserted", "TransferMethod"), ()),
    ],
)
async def test_a_bmc_that_refuses_without_a_message_gets_every_payload_in_turn(
    wants: tuple[str, ...], refuses: tuple[str, ...]
) -> None:
    async with FakeBmc(Habits(wants=wants, refuses=refuses, mute=True)) as bmc:
        await insert(bmc)
        assert bmc.count("insert") == 1


async def test_the_payload_that_was_accepted_is_tried_first_for_the_next_drive() -> None:
    async with FakeBmc(Habits(wants=("TransferProtocolType",))) as bmc:
        async with machine(bmc) as it:
            first, second = (await it.discover()).cds
            await it.insert(first, ISO)
            await it.insert(second, OTHER)
        assert bodies(bmc)[-1] == {"Image", "TransferProtocolType"}
        assert len(bodies(bmc)) == 3


async def test_a_bmc_that_accepts_no_payload_fails_with_its_first_message() -> None:
    async with FakeBmc(Habits(wants=("Image2",))) as bmc:
        with pytest.raises(RedfishRefused, match="requires the parameter Image2"):
            await insert(bmc)
        assert len(bodies(bmc)) == 6


async def test_a_drive_without_actions_is_patched() -> None:
    async with FakeBmc(Habits(patch_only=True)) as bmc:
        await insert(bmc)
        assert bmc.calls("POST", "InsertMedia") == []
        assert bodies(bmc) == [{"Image", "Inserted"}]


async def test_a_drive_without_actions_that_requires_an_etag_is_patched() -> None:
    async with FakeBmc(Habits(patch_only=True, etag="required")) as bmc:
        await insert(bmc)
        assert bmc.calls("PATCH", "/Cd1")[0].headers["If-Match"].startswith('"')


async def test_a_drive_whose_offered_actions_do_not_exist_is_patched() -> None:
    async with FakeBmc(Habits(hollow_actions=True)) as bmc, machine(bmc) as it:
        slot = (await it.discover()).cds[0]
        await it.insert(slot, ISO)
        assert bmc.image("Cd1") == ISO
        assert await it.eject(slot) is True
        assert bmc.image("Cd1") == ""


async def test_actions_are_called_at_the_url_that_the_bmc_gives() -> None:
    async with FakeBmc(Habits(odd_targets=True)) as bmc:
        await insert(bmc)
        assert [call.path for call in bmc.calls("POST", "-insert")] == ["/redfish/v1/Oem/Do/1-Cd1-insert"]


async def test_drives_under_the_manager_work() -> None:
    async with FakeBmc(Habits(media_under="manager", slots=CD_AND_USB)) as bmc:
        await insert(bmc)


async def test_an_image_that_is_already_inserted_is_left_there() -> None:
    async with FakeBmc() as bmc:
        await insert(bmc)
        await insert(bmc)
        assert (bmc.count("insert"), bmc.count("eject")) == (1, 0)


async def test_the_caller_decides_what_counts_as_the_same_image() -> None:
    signed = [f"http://media.example/{signature}/maintenance.iso" for signature in ("aaaa", "bbbb")]
    async with FakeBmc() as bmc, machine(bmc) as it:
        slot = (await it.discover()).cds[0]
        for url in signed:
            await it.insert(slot, url, same=lambda there, wanted: there.split("/")[-1] == wanted.split("/")[-1])
        assert bmc.image("Cd1") == signed[0]
        assert bmc.count("insert") == 1


async def test_another_image_is_ejected_first() -> None:
    async with FakeBmc() as bmc:
        bmc.system.drives["Cd1"].image = OTHER
        await insert(bmc)
        assert (bmc.count("eject"), bmc.count("insert")) == (1, 1)


async def test_an_image_that_is_shown_by_its_file_name_only_is_recognised() -> None:
    async with FakeBmc(Habits(abbreviates=True)) as bmc:
        await insert(bmc)
        assert bmc.count("insert") == 1


async def test_an_insert_that_fails_during_the_last_eject_is_retried() -> None:
    time = Time()
    async with FakeBmc(Habits(insert_failures=3)) as bmc:
        await insert(bmc, time)
        assert bmc.count("insert") == 1
    assert len(time.slept) == 3


async def test_after_a_reboot_of_the_bmc_the_drive_is_read_and_the_insert_is_not_repeated() -> None:
    time = Time()
    async with FakeBmc(Habits(away_after=("insert",), away_seconds=20), clock=time) as bmc:
        await insert(bmc, time)
        assert bmc.count("insert") == 1


async def test_after_an_insert_without_an_answer_the_drive_is_read_before_a_retry() -> None:
    async with FakeBmc(Habits(insert_hangs=True)) as bmc:
        await insert(bmc, timeout_seconds=0.3)
        assert bmc.count("insert") == 1


async def test_an_insert_on_a_busy_bmc_is_retried_after_its_retry_after() -> None:
    time = Time()
    async with FakeBmc(Habits(sessions="no", busy=2, busy_methods=("POST",), retry_after="9")) as bmc:
        await insert(bmc, time)
    assert time.slept == [9, 9]


async def test_an_insert_that_is_accepted_without_effect_is_an_error() -> None:
    async with FakeBmc(Habits(insert_silent=True)) as bmc:
        with pytest.raises(RedfishError, match="accepted the image, but does not show it") as caught:
            await insert(bmc)
    assert caught.value.transient


async def test_an_insert_that_always_fails_ends_with_the_message_of_the_bmc() -> None:
    async with FakeBmc(Habits(insert_failures=1000)) as bmc:
        with pytest.raises(RedfishUnreachable, match=r"500.*The last eject is still under way"):
            await insert(bmc)


# tasks ------------------------------------------------------------------------------------------------------------------


async def test_after_a_202_without_a_task_the_drive_is_read() -> None:
    async with FakeBmc(Habits(task="nameless")) as bmc:
        await insert(bmc)


async def test_a_task_that_never_ends_times_out_and_the_state_of_the_drive_decides() -> None:
    async with FakeBmc(Habits(task="endless")) as bmc:
        await insert(bmc)
        assert bmc.count("insert") == 1
    async with FakeBmc(Habits(task="endless", insert_silent=True)) as bmc:
        with pytest.raises(RedfishUnreachable, match="task has not ended in time"):
            await insert(bmc)


@pytest.mark.parametrize("task", ["succeeds", "state-succeeds", "vanishes"])
async def test_a_task_is_followed_to_its_end(task: Any) -> None:
    async with FakeBmc(Habits(task=task)) as bmc:
        await insert(bmc)
        assert list(bmc.tasks.values()) == [3]


async def test_a_task_that_fails_is_refused_with_its_messages() -> None:
    async with FakeBmc(Habits(task="fails")) as bmc:
        with pytest.raises(RedfishRefused, match=r"Exception: The share could not be mounted"):
            await insert(bmc)


# really fetched images --------------------------------------------------------------------------------------------------


@pytest.fixture
async def media() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/there.iso", _iso)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def _iso(_request: web.Request) -> web.Response:
    return web.Response(body=b"\0" * 4096)


async def test_an_image_that_the_bmc_can_fetch_is_inserted(media: str) -> None:
    async with FakeBmc(Habits(fetches=True)) as bmc, machine(bmc) as it:
        await it.insert((await it.discover()).cds[0], f"{media}/there.iso")
        assert bmc.image("Cd1") == f"{media}/there.iso"


async def test_an_image_that_cannot_be_fetched_is_refused_without_trying_other_payloads(media: str) -> None:
    async with FakeBmc(Habits(fetches=True)) as bmc, machine(bmc) as it:
        slot = (await it.discover()).cds[0]
        with pytest.raises(RedfishRefused, match="Could not fetch the image: HEAD answered 404"):
            await it.insert(slot, f"{media}/away.iso")
        assert len(bodies(bmc)) == 1


# ejecting ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "habits",
    [
        Habits(),
        Habits(eject_body="empty"),
        Habits(eject_body="object"),
        Habits(patch_only=True),
        Habits(patch_only=True, etag="strong"),
        Habits(odd_targets=True),
        Habits(task="succeeds"),
        Habits(media_under="manager"),
    ],
)
async def test_an_image_is_ejected_with_whatever_payload_the_bmc_accepts(habits: Habits) -> None:
    async with FakeBmc(habits) as bmc, machine(bmc) as it:
        slot = (await it.discover()).cds[0]
        bmc.system.drives["Cd1"].image = ISO
        assert await it.eject(slot) is True
        assert bmc.image("Cd1") == ""
        assert bmc.count("eject") == 1


async def test_an_empty_drive_is_not_ejected() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        assert await it.eject((await it.discover()).cds[0]) is False
        assert bmc.count("eject") == 0


async def test_somebody_elses_image_is_left_in() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        slot = (await it.discover()).cds[0]
        bmc.system.drives["Cd1"].image = OTHER
        assert await it.eject(slot, only=lambda image: "/job-1/" in image) is False
        assert bmc.image("Cd1") == OTHER
        bmc.system.drives["Cd1"].image = ISO
        assert await it.eject(slot, only=lambda image: "/job-1/" in image) is True
        assert bmc.image("Cd1") == ""


async def test_an_eject_that_is_accepted_without_effect_is_an_error() -> None:
    async with FakeBmc(Habits(eject_silent=True)) as bmc, machine(bmc) as it:
        slot = (await it.discover()).cds[0]
        bmc.system.drives["Cd1"].image = OTHER
        with pytest.raises(RedfishError, match="accepted the eject, but still shows the image"):
            await it.eject(slot)
        with pytest.raises(RedfishError, match="accepted the eject, but still shows the old image"):
            await it.insert(slot, ISO)
        assert bmc.count("insert") == 0


async def test_after_an_eject_without_an_answer_the_drive_is_read() -> None:
    time = Time()
    async with FakeBmc(clock=time) as bmc, machine(bmc, time) as it:
        slot = (await it.discover()).cds[0]
        bmc.system.drives["Cd1"].image = ISO
        bmc.go_away(15)
        assert await it.eject(slot) is True
        assert bmc.image("Cd1") == ""
