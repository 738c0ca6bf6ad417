"""Which disk is chosen, and which are never used."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.disks import Disk, choose, find, read_disks
from provision.errors import Exit, Trouble
from provision.partition import log_what_is_erased
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


def test_a_udev_link_is_resolved_to_its_disk(tmp_path: Path) -> None:
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
def test_a_disk_that_does_not_match_or_is_in_use_is_refused(seen: list[Disk], wanted: Any, reason: str) -> None:
    with pytest.raises(Trouble, match=reason) as caught:
        choose(seen, wanted, PLACES)
    assert caught.value.code == Exit.DISK


RAID = "linux_raid_member"
LEG_A = device("sda", fstype=RAID, uuid="u1", serial="A1")
LEG_B = device("sdb", children=[device("sdb1", "part", fstype=RAID, uuid="u1")], size=T // 2)


@pytest.mark.parametrize(
    "other",
    [
        LEG_B,
        device("sdb", fstype=RAID, uuid="u1", size=T // 2),
    ],
)
def test_one_disk_of_an_array_is_used_only_if_it_is_named(other: dict[str, Any]) -> None:
    seen = disks(LEG_A, other)
    with pytest.raises(Trouble, match="belongs together with /dev/sdb") as caught:
        choose(seen, {"min_size": "900G"}, PLACES)
    assert caught.value.code == Exit.DISK
    for named in ("/dev/sda", {"serial": "A1"}, {"path": "/dev/sda", "min_size": "900G"}):
        assert choose(seen, named, PLACES).path == "/dev/sda"


def test_two_paths_to_one_disk_are_recognised_by_its_wwn_and_other_arrays_do_not_count() -> None:
    def path(name: str, size: int) -> dict[str, Any]:
        return device(name, fstype="mpath_member", wwn="0x5000", size=size)

    with pytest.raises(Trouble, match="belongs together with"):
        choose(disks(path("sda", T), path("sdb", T // 2)), {"min_size": "900G"}, PLACES)
    other = device("sdb", fstype=RAID, uuid="u2", size=T // 2)
    plain = device("sdc", fstype="ext4", uuid="u1", size=T // 2)
    assert choose(disks(LEG_A, other, plain), {"min_size": "900G"}, PLACES).path == "/dev/sda"


def test_erased_arrays_and_encrypted_volumes_are_logged_and_old_file_systems_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = ("LVM2_member", "zfs_member", "crypto_LUKS", "ddf_raid_member", "ext4", "vfat")
    [disk] = disks(device("sda", children=[device(f"sda{n}", "part", fstype=kind) for n, kind in enumerate(kinds, 1)]))
    log_what_is_erased(disk)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"this is erased: {kind} on /dev/sda{n}" for n, kind in enumerate(kinds[:4], 1)]


def test_a_virtio_disk_has_a_transport_although_lsblk_reports_none() -> None:
    seen = disks(device("vda"), device("sda"), device("nvme0n1", tran="nvme"))
    assert [disk.transport for disk in seen] == ["virtio", "", "nvme"]
    assert choose(seen, {"transport": "virtio"}, PLACES).path == "/dev/vda"


def test_the_sector_size_of_a_disk_is_the_logical_one() -> None:
    assert [disk.sector for disk in disks(device("sda"), {**device("sdb"), "log-sec": 4096})] == [512, 4096]


def test_the_task_medium_is_never_the_target_disk() -> None:
    with pytest.raises(Trouble, match="the task medium is in it"):
        choose(SEEN, "/dev/sda", PLACES, medium="/dev/sda")


def test_old_partitions_are_listed_so_that_they_can_be_wiped() -> None:
    [disk] = disks(device("sda", children=[device("sda1", "part"), device("sda2", "part")]))
    assert (disk.partitions, disk.used) == (("/dev/sda1", "/dev/sda2"), ())


def test_unreadable_output_of_lsblk_is_an_error_that_names_it() -> None:
    with pytest.raises(Trouble, match="lsblk"):
        read_disks("lsblk: failed")


class Time:
    """A clock that advances while the code sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def looking(seen: Callable[[float], list[Disk]], wanted: Any) -> tuple[Disk, float, int]:
    """Return the disk, the time it took, and how often udev was waited for."""
    time, settled = Time(), [0]

    def settle() -> None:
        settled[0] += 1

    disk = find(wanted, PLACES, "", 20, lambda: seen(time.now), time.sleep, lambda: time.now, settle)
    return disk, time.now, settled[0]


def test_hints_are_evaluated_when_no_disk_has_appeared_for_a_while() -> None:
    """At first only the wrong disk is there, and matches."""

    def seen(now: float) -> list[Disk]:
        return disks(SDA) if now < 4 else disks(SDA, device("sdb", size=T * 3))

    with pytest.raises(Trouble, match="fits 2 disks"):
        looking(seen, {"min_size": "1G"})
    disk, after, settled = looking(lambda _now: disks(SDA), {"min_size": "1G"})
    assert (disk.path, after, settled) == ("/dev/sda", 5.0, 1)
    late = looking(lambda now: disks(SDA) if now < 4 else disks(SDA, CD), {"min_size": "1G"})
    assert late[1] == 9.0


@pytest.mark.parametrize("wanted", ["/dev/sda", {"serial": "A1"}, {"wwn": "5000C500A1B2C3D4"}, {"path": "/dev/sda"}])
def test_a_named_disk_needs_no_such_wait(wanted: Any) -> None:
    assert looking(lambda _now: SEEN, wanted)[1:] == (0.0, 0)


def test_disks_that_keep_appearing_and_disappearing_are_an_error() -> None:
    with pytest.raises(Trouble, match="disks keep appearing"):
        looking(lambda now: disks(SDA, *([CD] if int(now) % 4 < 2 else [])), {"rotational": True})


def test_a_disk_that_appears_late_is_waited_for_and_an_ambiguous_hint_fails_at_once() -> None:
    seen = [disks(CD), disks(CD), disks(CD, SDA)]
    waits: list[float] = []
    assert find("/dev/sda", PLACES, "", 60, lambda: seen.pop(0), waits.append).path == "/dev/sda"
    assert waits == [2.0, 2.0]
    with pytest.raises(Trouble, match="fits 2 disks"):
        find({"min_size": "1G"}, PLACES, "", 60, lambda: SEEN, waits.append, settle=lambda: None)
    with pytest.raises(Trouble, match="no disk fits"):
        find("/dev/sdb", PLACES, "", -1, lambda: SEEN, waits.append)
    assert len(waits) == 2
