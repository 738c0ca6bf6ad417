"""Which disk is taken, and which never is."""

import json
from pathlib import Path
from typing import Any

import pytest

from provision.disks import Disk, choose, find, read_disks
from provision.errors import Exit, Trouble
from provision.places import Places

T = 10**12


def device(name: str, kind: str = "disk", **more: Any) -> dict[str, Any]:
    return {
        "name": name, "path": f"/dev/{name}", "type": kind, "size": T, "rm": False, "ro": False, "serial": None, "wwn": None,
        "model": None, "vendor": None, "rota": False, "tran": None, "fstype": None, "mountpoints": [None], **more,
    }  # fmt: skip


def disks(*devices: dict[str, Any]) -> list[Disk]:
    return read_disks(json.dumps({"blockdevices": list(devices)}))


SDA = device("sda", serial="A1", wwn="0x5000c500a1b2c3d4", model="ACME HDD ", vendor="ATA     ", rota=True, tran="sata")
NVME = device("nvme0n1", serial="N1", wwn="eui.0025385b71b00a11", model="ACME_SSD", size=2 * T, tran="nvme")
CD = device("sr0", "rom", rm=True, fstype="iso9660")
EMPTY = device("sdz", size=0)
SEEN = disks(SDA, NVME, CD, EMPTY)
PLACES = Places()


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("/dev/sda", "/dev/sda"),
        ({"serial": "n1"}, "/dev/nvme0n1"),
        ({"wwn": "5000C500A1B2C3D4"}, "/dev/sda"),
        ({"wwn": "0x0025385b71b00a11"}, "/dev/nvme0n1"),
        ({"model": "acme hdd"}, "/dev/sda"),
        ({"model": "ACME SSD"}, "/dev/nvme0n1"),
        ({"vendor": "ATA"}, "/dev/sda"),
        ({"rotational": False}, "/dev/nvme0n1"),
        ({"min_size": "1T"}, "/dev/nvme0n1"),
        ({"max_size": "1T"}, "/dev/sda"),
        ({"transport": "sata", "rotational": True, "path": "/dev/sda"}, "/dev/sda"),
    ],
)
def test_a_disk_is_found_by_its_path_or_by_hints(wanted: Any, path: str) -> None:
    assert choose(SEEN, wanted, PLACES).path == path


def test_a_link_of_udev_leads_to_its_disk(tmp_path: Path) -> None:
    (tmp_path / "dev/disk/by-path").mkdir(parents=True)
    (tmp_path / "dev/sda").touch()
    (tmp_path / "dev/disk/by-path/pci-1").symlink_to("../../sda")
    assert choose(SEEN, "/dev/disk/by-path/pci-1", Places(tmp_path)).path == "/dev/sda"


@pytest.mark.parametrize(
    ("seen", "wanted", "reason"),
    [
        (SEEN, "/dev/sdb", "no disk fits /dev/sdb; there are: /dev/sda .*serial A1"),
        (SEEN, "/dev/sr0", "no disk fits"),
        (SEEN, {"serial": "A1", "rotational": False}, "no disk fits rotational False, serial A1"),
        (SEEN, {"serial": ""}, "no disk fits"),
        (SEEN, {"min_size": "1G"}, "fits 2 disks: /dev/sda .*, /dev/nvme0n1"),
        (SEEN, {"colour": "red"}, "not known: colour"),
        (disks(device("sda", rm=True)), "/dev/sda", "it is removable"),
        (disks(device("sda", ro=True)), {"min_size": "1G"}, "it is read-only"),
        (disks(device("sda", fstype="iso9660")), "/dev/sda", "holds an ISO 9660 medium"),
        (disks(device("sda", mountpoints=["/mnt"])), "/dev/sda", "/dev/sda is in use as /mnt"),
        (disks(device("sda", children=[device("sda1", "part", mountpoints=["[SWAP]"])])), "/dev/sda", r"in use as \[SWAP\]"),
        (disks(device("sda", children=[device("sda1", "part", children=[device("vg-lv", "lvm")])])), "/dev/sda",
         r"/dev/vg-lv \(lvm\) holds /dev/sda1"),
        (disks(device("sda", children=[device("md0", "raid1", mountpoints=["/srv"])])), "/dev/sda", "raid1.*in use as /srv"),
    ],
)  # fmt: skip
def test_no_other_disk_is_touched(seen: list[Disk], wanted: Any, reason: str) -> None:
    with pytest.raises(Trouble, match=reason) as caught:
        choose(seen, wanted, PLACES)
    assert caught.value.code == Exit.DISK


def test_the_medium_that_brought_the_task_is_not_installed_to() -> None:
    with pytest.raises(Trouble, match="the task medium is in it"):
        choose(SEEN, "/dev/sda", PLACES, medium="/dev/sda")


def test_partitions_of_before_are_known_so_that_they_can_be_wiped() -> None:
    [disk] = disks(device("sda", children=[device("sda1", "part"), device("sda2", "part")]))
    assert (disk.partitions, disk.used) == (("/dev/sda1", "/dev/sda2"), ())


def test_what_lsblk_cannot_say_is_trouble_with_a_name() -> None:
    with pytest.raises(Trouble, match="lsblk"):
        read_disks("lsblk: failed")


def test_a_disk_that_appears_late_is_waited_for_and_a_doubt_is_not() -> None:
    seen = [disks(CD), disks(CD), disks(CD, SDA)]
    waits: list[float] = []
    assert find("/dev/sda", PLACES, "", 60, lambda: seen.pop(0), waits.append).path == "/dev/sda"
    assert waits == [2.0, 2.0]
    with pytest.raises(Trouble, match="fits 2 disks"):
        find({"min_size": "1G"}, PLACES, "", 60, lambda: SEEN, waits.append)
    with pytest.raises(Trouble, match="no disk fits"):
        find("/dev/sdb", PLACES, "", -1, lambda: SEEN, waits.append)
    assert len(waits) == 2
