"""Whether the task is for this machine, by the firmware's data and the registration."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from provision.errors import Exit, Trouble
from provision.identity import check
from provision.places import Places

OWN = "4c4c4544-0042-3510-8057-b7c04f4a3532"
SWAPPED = str(uuid.UUID(bytes=uuid.UUID(OWN).bytes_le))


def machine(tmp_path: Path, serial: str | None = None, system: str | None = None, board: str | None = None) -> Places:
    places = Places(tmp_path)
    places.dmi.mkdir(parents=True)
    for name, value in (("product_serial", serial), ("product_uuid", system), ("board_serial", board)):
        if value is not None:
            (places.dmi / name).write_text(value + "\n")
    return places


def record(serial: str = "SN-1", system: str | None = None) -> dict[str, Any]:
    return {"server_serial": serial, "system_uuid": system}


@pytest.mark.parametrize(
    ("serial", "system", "named"),
    [
        ("SN-1", None, record()),
        ("  sn-1 ", OWN, record()),
        ("SN-1", OWN, record(system=OWN.upper())),
        ("Not Specified", OWN, record(system=OWN)),
        ("Default string", SWAPPED, record(system=OWN)),
        ("SN-1", OWN, record("Not Specified", OWN)),
        ("SN-1", "00000000-0000-0000-0000-000000000000", record(system=OWN)),
        ("SN-1", None, {"server_serial": "SN-1"}),
    ],
)
def test_the_right_machine_is_recognised(tmp_path: Path, serial: str, system: str | None, named: Any) -> None:
    check(machine(tmp_path, serial, system), named)


@pytest.mark.parametrize(
    ("serial", "system", "named"),
    [
        ("SN-2", None, record()),
        ("SN-2", OWN, record()),
        ("SN-2", OWN, record(system=OWN)),
        ("SN-1", OWN, record(system="4c4c4544-0042-3510-8057-b7c04f4a3533")),
        (None, None, record()),
        ("", "", record(system=OWN)),
        ("Not Specified", None, record("Not Specified")),
        ("To be filled by O.E.M.", OWN, record("To be filled by O.E.M.")),
        ("0000000", OWN, record("0000000")),
        ("Default string", OWN, record("Default string")),
        ("SN-1", OWN, record("")),
        ("SN-2", "ffffffff-ffff-ffff-ffff-ffffffffffff", record(system="ffffffff-ffff-ffff-ffff-ffffffffffff")),
    ],
)
def test_any_other_machine_is_refused(tmp_path: Path, serial: str | None, system: str | None, named: Any) -> None:
    with pytest.raises(Trouble, match="this machine has serial") as caught:
        check(machine(tmp_path, serial, system), named)
    assert caught.value.code == Exit.WRONG_MACHINE


@pytest.mark.parametrize("on_record", ["TAG-1", "CN7016300AB", ".TAG-1.CN7016300AB."])
def test_a_machine_may_be_registered_by_the_serial_of_its_board(tmp_path: Path, on_record: str) -> None:
    check(machine(tmp_path, "TAG-1", OWN, ".TAG-1.CN7016300AB."), record(on_record, OWN))


def test_a_machine_may_be_registered_by_its_uuid_alone(tmp_path: Path) -> None:
    check(machine(tmp_path, "made up by the hypervisor", OWN), record(OWN))


def test_a_wrong_uuid_is_refused_although_the_serial_of_the_board_matches(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match="UUID"):
        check(machine(tmp_path, "TAG-1", OWN, "BOARD-1"), record("BOARD-1", SWAPPED.replace("4", "5")))
