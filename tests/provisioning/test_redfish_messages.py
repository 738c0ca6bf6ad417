"""The parts of the Redfish client that need no BMC: messages, patience, vendors, identity; and BMCs with random answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from aiohttp import web

from chargehand.doors.provisioning.redfish.errors import RedfishError
from chargehand.doors.provisioning.redfish.facts import Bmc, MachineFacts, VirtualDrive, power_of
from chargehand.doors.provisioning.redfish.identity import is_it
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.doors.provisioning.redfish.messages import LONGEST, one_line, said
from chargehand.doors.provisioning.redfish.patience import Patience, retry_after
from chargehand.doors.provisioning.redfish.quirks import ROWS, VENDORS, quirks_named, quirks_of, vendor_of
from tests.provisioning.machines import LOCAL, Time

# messages ---------------------------------------------------------------------------------------------------------------


def test_extended_information_takes_precedence_over_the_general_message() -> None:
    info = [
        {"MessageId": "Base.1.5.LicenseKeyRequired", "Message": "A licence is needed."},
        {"MessageId": "iLO.2.14.X"},
    ]
    words = said({"error": {"code": "x", "message": "See extended information.", "@Message.ExtendedInfo": info}})
    assert words.text == "A licence is needed.; X"
    assert words.has("LicenseKeyRequired")


def test_the_general_message_is_used_if_there_is_no_other() -> None:
    info = [{"MessageId": "Base.1.0.GeneralError"}]
    assert said({"error": {"message": "Out of memory", "@Message.ExtendedInfo": info}}).text == "Out of memory"


@pytest.mark.parametrize("odd", [None, [], "x", {"error": "x"}, {"error": {"@Message.ExtendedInfo": [1, None, "x"]}}])
def test_an_answer_without_messages_has_none(odd: Any) -> None:
    assert said(odd).text == ""


def test_a_single_message_outside_a_list_is_read() -> None:
    assert said({"@Message.ExtendedInfo": {"Message": "Alone."}}).text == "Alone."


@pytest.mark.parametrize(
    ("message", "missing", "unwanted"),
    [
        (
            {"MessageId": "Base.1.5.ActionParameterMissing", "MessageArgs": ["Insert", "TransferMethod"]},
            "TransferMethod",
            "",
        ),
        ({"MessageId": "X.1.0.Y", "Message": "Inserted is not supported here"}, "", "Inserted"),
        ({"MessageId": "X.1.0.Y", "Message": "the request requires TransferMethod"}, "TransferMethod", ""),
        ({"MessageId": "Base.1.5.PropertyUnknown", "RelatedProperties": ["#/Inserted"]}, "", "Inserted"),
        ({"MessageId": "Base.1.5.InternalError", "Message": "TransferMethod"}, "", ""),
    ],
)
def test_the_parameter_that_a_message_blames_is_found(message: Any, missing: str, unwanted: str) -> None:
    found = said({"error": {"@Message.ExtendedInfo": [message]}}).blames(("TransferMethod", "Inserted"))
    assert found == (frozenset({missing} - {""}), frozenset({unwanted} - {""}))


def test_messages_are_shortened_to_one_line() -> None:
    assert one_line("a\n\tb\x00\x1b[31mc") == "a b [31mc"
    assert len(one_line("x" * 100_000)) == LONGEST


# patience ---------------------------------------------------------------------------------------------------------------


async def test_pauses_grow_until_the_time_is_over() -> None:
    time = Time()
    patience = Patience(60, Random(1), time.sleep, time)
    while await patience.pause():
        pass
    assert sum(time.slept) == pytest.approx(60)
    assert 0.25 <= time.slept[0] <= 0.5
    assert max(time.slept) <= 8
    assert 9 <= len(time.slept) <= 20


async def test_two_clients_do_not_retry_in_step() -> None:
    slept = []
    for seed in (1, 2):
        time = Time()
        await Patience(60, Random(seed), time.sleep, time).pause()
        slept.append(time.slept)
    assert slept[0] != slept[1]


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("7", None, 7),
        (" 7 ", None, 7),
        (None, None, None),
        ("", None, None),
        ("-7", None, None),
        ("soon", None, None),
        ("9" * 12, None, None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", None, 60),  # by our clock, which is at 40
        (
            "Thu, 01 Jan 2004 00:01:40 GMT",
            "Thu, 01 Jan 2004 00:01:30 GMT",
            10,
        ),  # by the BMC's clock, which is years off
        ("Thu, 01 Jan 1970 00:00:10 GMT", None, 0),
    ],
)
def test_every_format_of_retry_after_is_parsed(value: str | None, date: str | None, seconds: float | None) -> None:
    assert retry_after(value, date, 40.0) == seconds


# vendors, power, identity -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "vendor"),
    [
        ("Dell Inc.", "dell"),
        ("HPE", "hpe"),
        ("Hewlett-Packard", "hpe"),
        ("Supermicro", "supermicro"),
        ("Super Micro Computer", "supermicro"),
        ("LENOVO", "lenovo"),
        ("Sushy Emulator", "sushy"),
        ("Contoso", "other"),
        ("", "other"),
        (None, "other"),
    ],
)
def test_vendors_are_from_a_closed_set(name: str | None, vendor: str) -> None:
    assert vendor_of(name) == vendor
    assert vendor in VENDORS


def test_every_row_of_quirks_is_found_by_its_vendor_and_by_its_name() -> None:
    for row in ROWS:
        assert quirks_of(row.vendor, "") == row
        assert quirks_named(row.name) == row
    assert quirks_named("gone since") == quirks_of("other", "")


@pytest.mark.parametrize(
    ("shown", "power"),
    [
        ("On", "On"),
        ("off", "Off"),
        ("Powering On", "PoweringOn"),
        ("Reset", "Resetting"),
        (None, "Unknown"),
        (7, "Unknown"),
    ],
)
def test_power_states_are_normalised(shown: Any, power: str) -> None:
    assert power_of(shown) == power


@pytest.mark.parametrize(
    ("record", "system", "fits"),
    [
        ({}, {"SerialNumber": "sn-1"}, True),
        ({}, {"SerialNumber": "SN-10"}, False),
        ({}, {"SerialNumber": "", "UUID": "u"}, False),
        ({"system_uuid": "u"}, {"UUID": "U"}, True),
        ({"system_uuid": "u"}, {"SerialNumber": "SN-1"}, True),
        ({"system_uuid": "u"}, {"SerialNumber": "SN-1", "UUID": "v"}, False),
        ({"system_uuid": "u"}, {"SerialNumber": "SN-2", "UUID": "u"}, False),
        ({"serial": "0" * 8}, {"SerialNumber": "0" * 8}, False),
        ({"system_uuid": "0" * 32}, {"UUID": "00000000-0000-0000-0000-000000000000"}, False),
        ({"serial": "aaaa-bbbb"}, {"UUID": "AAAABBBB"}, True),
        ({}, {"Manufacturer": "Dell Inc.", "SKU": "SN-1", "SerialNumber": "CN-board"}, True),
        ({}, {"Manufacturer": "Contoso", "SKU": "SN-1", "SerialNumber": "CN-board"}, False),
    ],
)
def test_a_system_matches_if_serial_or_uuid_match_and_neither_contradicts(
    record: dict[str, Any], system: dict[str, Any], fits: bool
) -> None:
    bmc = Bmc(**{"address": "https://bmc", "username": "", "password": "", "serial": "SN-1", **record})
    assert is_it(bmc, system) is fits


# random answers ---------------------------------------------------------------------------------------------------------

KEYS = (
    *(
        "@odata.id",
        "Systems",
        "Managers",
        "Links",
        "Sessions",
        "Members",
        "ManagedBy",
        "VirtualMedia",
        "Actions",
        "target",
    ),
    *(
        "#ComputerSystem.Reset",
        "#VirtualMedia.InsertMedia",
        "#VirtualMedia.EjectMedia",
        "@Redfish.ActionInfo",
        "Parameters",
    ),
    *(
        "Boot",
        "BootSourceOverrideEnabled",
        "BootSourceOverrideTarget",
        "PowerState",
        "SerialNumber",
        "UUID",
        "MediaTypes",
    ),
    *("Image", "Inserted", "TaskState", "error", "@Message.ExtendedInfo", "ResetType@Redfish.AllowableValues"),
    *("BootSourceOverrideTarget@Redfish.AllowableValues", "Members@odata.nextLink", "@odata.etag", "Manufacturer"),
)
WORDS = (
    *(
        "/redfish/v1/x",
        "//evil.example/x",
        "http://evil.example/x",
        "not a path",
        "",
        "\x00\x1b",
        "x" * 5000,
        "http://[",
        "/a#b",
    ),
    *("SN-1", "On", "Once", "Cd", "CD", "ForceRestart", "Running", "Exception", "Dell Inc."),
)


def nonsense(random: Random, depth: int = 0) -> Any:
    kind = random.random()
    if depth < 5 and kind < 0.65:
        return {random.choice(KEYS): nonsense(random, depth + 1) for _ in range(random.randrange(8))}
    if depth < 5 and kind < 0.75:
        return [nonsense(random, depth + 1) for _ in range(random.randrange(4))]
    return random.choice((*WORDS, None, True, False, 0, -1, 1e300))


@asynccontextmanager
async def babbler(random: Random) -> AsyncIterator[str]:
    async def babble(request: web.Request) -> web.Response:
        status = random.choice((200, 200, 200, 200, 201, 202, 204, 307, 400, 404, 412, 500, 503))
        headers = {"X-Auth-Token": "t", "Location": random.choice(("/redfish/v1/y", "http://[", "//", ""))}
        page = nonsense(random)
        if request.path == "/redfish/v1/" or not isinstance(page, dict):
            return web.json_response(page, headers=headers)
        return web.json_response({"SerialNumber": "SN-1", **page}, status=status, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", babble)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("seed", range(20))
async def test_random_answers_of_a_bmc_raise_only_redfish_errors(seed: int) -> None:
    random, time = Random(seed), Time()
    slot = VirtualDrive("/redfish/v1/slot", "Cd", "cd")
    facts = MachineFacts("/redfish/v1/x", ("/redfish/v1/m",), slots=(slot,), quirks=random.choice(ROWS).name)
    said_so: list[str] = []
    async with babbler(random) as url:
        bmc = Bmc(url, "user", "password", "SN-1", unidentified=True)
        for _ in range(10):
            async with Machine(
                bmc, policy=LOCAL, timeout_seconds=5, random=random, sleep=time.sleep, clock=time, patience_seconds=2
            ) as it:
                for call in (
                    lambda: it.resume(facts),
                    it.discover,
                    it.glance,
                    lambda: it.insert(slot, "http://media.example/a.iso"),
                    lambda: it.eject(slot),
                    lambda: it.boot_from_cd(slot),
                    it.clear_override,
                    it.reset,
                    it.power_off,
                ):
                    try:
                        await call()
                        said_so.append("")
                    except RedfishError as error:
                        said_so.append(error.message)
    assert len(said_so) == 90
    assert all(message.isprintable() and len(message) < 1000 for message in said_so)
