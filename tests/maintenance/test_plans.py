"""The plans of the steps: partitions, file systems, fstab, GRUB for BIOS and UEFI, the first-boot configuration."""

from pathlib import Path
from typing import Any

import pytest

from provision.bootloader import MOST as GRUB_MOST
from provision.bootloader import Grub, look, serial_console
from provision.bootloader import plan as grub_plan
from provision.config_drive import SEED, hosts
from provision.config_drive import plan as seed_plan
from provision.errors import Exit, Trouble
from provision.fstab import HEADER, fstab
from provision.image import untar
from provision.layout import MIB, Partition, check_fits, device_of, mounted, read_layout
from provision.mounts import MOST as MOUNTS_MOST
from provision.partition import MOST as MKFS_MOST
from provision.partition import check_boots, fingerprint, matches, mkfs, partition, script
from provision.partition import plan as disk_plan
from provision.places import Places
from provision.plan import Command, WaitFor, WriteFile, execute
from provision.windows import MOST as WINDOWS_MOST
from tests.maintenance.test_disks import device, disks

G = 1 << 30
UNITS = Path(__file__).parents[2] / "maintenance" / "units"
BOTH: list[dict[str, Any]] = [
    {"size": "1M", "type_guid": "ef02", "format": "none"},
    {"size": "512M", "type_guid": "EF00", "format": "vfat", "label": "esp"},
    {"size": "2GiB", "type_guid": "8200", "format": "swap", "label": "swap"},
    {"size": "8G", "type_guid": "8300", "format": "xfs", "label": "a label that is long", "mountpoint": "/var/log"},
    {"size": "1G", "type_guid": "8300", "format": "ext4", "mountpoint": "/var"},
    {"size": "100%", "type_guid": "4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "format": "ext4", "label": "root", "mountpoint": "/", "bootable": True},
]  # fmt: skip
UEFI_ONLY = [BOTH[1], BOTH[5]]
BIOS_ONLY = [BOTH[0], BOTH[5]]
FULL = Grub("grub-install", ("update-grub",), bios=True, efi=True)


def argvs(plan: Any) -> list[list[str]]:
    return [list(action.argv) for action in plan if isinstance(action, Command)]


# partitions -----------------------------------------------------------------------------------------------------------


def test_the_table_is_one_script_with_sizes_types_and_names() -> None:
    assert script(read_layout(BOTH)).splitlines() == [
        "label: gpt",
        "",
        "size=1024KiB, type=21686148-6449-6E6F-744E-656564454649",
        'size=524288KiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name="esp"',
        'size=2097152KiB, type=0657FD6D-A4AB-43C4-84E5-0933C84B4F4F, name="swap"',
        'size=8388608KiB, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, name="a label that is long"',
        "size=1048576KiB, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4",
        'type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, name="root", attrs="LegacyBIOSBootable"',
    ]


def test_old_signatures_go_first_then_the_table_then_the_file_systems() -> None:
    [disk] = disks(device("nvme0n1", children=[device("nvme0n1p1", "part")]))
    plan = disk_plan(disk, read_layout(BOTH))
    assert argvs(plan) == [
        ["wipefs", "--all", "--force", "/dev/nvme0n1p1"],
        ["wipefs", "--all", "--force", "/dev/nvme0n1"],
        ["sfdisk", "--wipe", "always", "--wipe-partitions", "always", "/dev/nvme0n1"],
        ["partx", "--update", "/dev/nvme0n1"],
        ["udevadm", "settle", "--timeout=30"],
        ["wipefs", "--all", "--force", "/dev/nvme0n1p1"],
        ["mkfs.vfat", "-F", "32", "-n", "ESP", "/dev/nvme0n1p2"],
        ["mkswap", "--force", "-L", "swap", "/dev/nvme0n1p3"],
        ["mkfs.xfs", "-f", "-q", "-L", "a label that", "/dev/nvme0n1p4"],
        ["mkfs.ext4", "-F", "-q", "/dev/nvme0n1p5"],
        ["mkfs.ext4", "-F", "-q", "-L", "root", "/dev/nvme0n1p6"],
        ["udevadm", "settle", "--timeout=30"],
    ]
    assert [action.path for action in plan if isinstance(action, WaitFor)] == [f"/dev/nvme0n1p{n}" for n in range(1, 7)]
    assert next(action for action in plan if isinstance(action, Command) and action.stdin).argv[0] == "sfdisk"


def test_a_disk_for_a_whole_image_is_only_wiped() -> None:
    [disk] = disks(device("vda", children=[device("vda1", "part")]))
    assert argvs(disk_plan(disk, ())) == [["wipefs", "--all", "--force", path] for path in ("/dev/vda1", "/dev/vda")]


def test_every_format_has_its_program() -> None:
    made = {each["format"]: mkfs(read_layout([each])[0], "/dev/x1")[0] for each in [
        {"size": "1G", "type_guid": "8300", "format": name} for name in ("vfat", "ext4", "xfs", "btrfs", "ntfs")
    ]}  # fmt: skip
    assert made == {name: f"mkfs.{name}" for name in ("vfat", "ext4", "xfs", "btrfs", "ntfs")}


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ([BOTH[5], BOTH[1]], "only the last partition can take 100%"),
        ([BOTH[1], {**BOTH[3], "label": "ESP"}], "same label"),
        ([{**BOTH[3], "mountpoint": "/"}, BOTH[5]], "same mountpoint"),
        ([], "no partitions"),
    ],
)
def test_an_invalid_layout_is_refused_here_too(layout: Any, reason: str) -> None:
    with pytest.raises(Trouble, match=reason):
        read_layout(layout)


def test_a_layout_that_is_larger_than_the_disk_is_refused_before_anything_is_done() -> None:
    parts = read_layout(BOTH)
    check_fits(parts, "/dev/vda", 12 * G)
    with pytest.raises(Trouble, match="/dev/vda has"):
        check_fits(parts, "/dev/vda", 11 * G)


def test_an_esp_has_room_for_fat32_in_the_sectors_of_its_disk() -> None:
    def esp(size: str, **more: Any) -> Any:
        return read_layout([*more.get("before", ()), {**BOTH[1], "size": size}])

    check_fits(esp("33M"), "/dev/vda", G, 512)
    check_fits(esp("260M"), "/dev/vda", G, 4096)
    check_fits(esp("100%", before=[BOTH[0]]), "/dev/vda", 300 * MIB, 4096)
    for size, disk, sector, least in (
        ("32M", G, 512, "33M"),
        ("259M", G, 4096, "260M"),
        ("100%", 200 * MIB, 4096, "260M"),
    ):
        with pytest.raises(Trouble, match=f"needs at least {least}"):
            check_fits(esp(size), "/dev/vda", disk, sector)


@pytest.mark.parametrize(("layout", "efi"), [(BIOS_ONLY, True), (UEFI_ONLY, False)])
def test_a_layout_that_could_never_boot_here_is_refused_before_the_disk_is_wiped(
    tmp_path: Path, layout: Any, efi: bool
) -> None:
    places, recipe = Places(tmp_path), {"task_target": "install-linux.target"}
    if efi:
        places.efi.mkdir(parents=True)
    with pytest.raises(Trouble, match="the layout has no") as caught:
        check_boots(places, recipe, read_layout(layout))
    assert caught.value.code == Exit.DISK
    check_boots(places, recipe, read_layout(BOTH))


def test_no_command_has_more_time_than_its_unit() -> None:
    for unit, most in {
        "partition": MKFS_MOST,
        "bootloader-linux": GRUB_MOST,
        "image-windows": WINDOWS_MOST,
        "config-drive": MOUNTS_MOST,
        "bootloader-windows": MOUNTS_MOST,
    }.items():
        given = (UNITS / f"{unit}.service").read_text().split("TimeoutStartSec=")[1].split("min")[0]
        assert most < int(given) * 60, unit


def test_without_consent_no_disk_is_read(tmp_path: Path) -> None:
    for wipe in ({}, {"wipe": False}, {"wipe": 1}, {"wipe": "true"}):
        with pytest.raises(Trouble, match="does not consent") as caught:
            partition(Places(tmp_path), {"target_disk": "/dev/null", "partition_layout": BOTH, **wipe})
        assert caught.value.code == Exit.DISK


def test_the_fingerprint_of_a_plan_depends_on_disk_and_layout() -> None:
    [one], [other] = disks(device("vda", serial="1")), disks(device("vda", serial="2"))
    parts = read_layout(BOTH)
    names = {fingerprint(one, parts), fingerprint(other, parts), fingerprint(one, parts[:-1]), fingerprint(one, ())}
    assert len(names) == 4
    assert fingerprint(one, read_layout(BOTH)) == fingerprint(one, parts)


def test_a_partition_table_matches_only_if_all_of_it_does() -> None:
    parts = read_layout(UEFI_ONLY)
    good: dict[str, Any] = {
        "label": "gpt",
        "sectorsize": 512,
        "partitions": [
            {"size": G // 1024, "type": "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "name": "esp"},
            {"size": 99, "type": "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "name": "root"},
        ],
    }
    assert matches(good, parts)
    first, second = good["partitions"]
    for bad in (
        {**good, "label": "dos"},
        {**good, "partitions": [first]},
        {**good, "partitions": [{**first, "size": G // 512}, second]},
        {**good, "partitions": [{**first, "name": "ESP"}, second]},
        {**good, "partitions": [first, {**second, "type": first["type"]}]},
    ):
        assert not matches(bad, parts)


def test_partitions_have_the_device_names_of_the_kernel() -> None:
    assert [device_of(disk, 2) for disk in ("/dev/sda", "/dev/nvme0n1", "/dev/loop7")] == [
        "/dev/sda2",
        "/dev/nvme0n1p2",
        "/dev/loop7p2",
    ]


# image, fstab ---------------------------------------------------------------------------------------------------------


def test_a_tree_keeps_owners_modes_attributes_and_lists() -> None:
    argv = untar("/run/provision/target")
    assert {"--numeric-owner", "--preserve-permissions", "--xattrs", "--acls"} <= set(argv)


def test_parents_are_mounted_before_their_children() -> None:
    assert [part.mountpoint for part in mounted(read_layout(BOTH))] == ["/", "/var", "/boot/efi", "/var/log"]


def test_fstab_names_every_file_system_by_uuid_and_swap_and_the_esp_too() -> None:
    def uuid_of(part: Partition) -> str:
        return f"u{part.number}"

    assert fstab(read_layout(BOTH), uuid_of) == HEADER + (
        "UUID=u6\t/\text4\terrors=remount-ro\t0 1\n"
        "UUID=u5\t/var\text4\tdefaults\t0 2\n"
        "UUID=u2\t/boot/efi\tvfat\tumask=0077\t0 2\n"
        "UUID=u4\t/var/log\txfs\tdefaults\t0 0\n"
        "UUID=u3\tnone\tswap\tsw\t0 0\n"
    )
    with pytest.raises(Trouble, match="has no UUID"):
        fstab(read_layout(BOTH), lambda _part: "")


# GRUB -----------------------------------------------------------------------------------------------------------------

T = Path("/run/provision/target")
BIOS_INSTALL = ["chroot", str(T), "grub-install", "--target=i386-pc", "--recheck", "/dev/vda"]
EFI = ["chroot", str(T), "grub-install", "--target=x86_64-efi", "--efi-directory=/boot/efi", "--recheck"]
REMOVABLE = [*EFI, "--removable", "--no-nvram"]
UPDATE = ["chroot", str(T), "update-grub"]


def grub(layout: Any, *, efi: bool, has: Grub = FULL, console: str = "") -> Any:
    return grub_plan(T, "/dev/vda", read_layout(layout), has, efi=efi, console=console)


def test_grub_is_installed_for_a_machine_that_booted_by_bios() -> None:
    assert argvs(grub(BIOS_ONLY, efi=False)) == [BIOS_INSTALL, UPDATE]


def test_grub_for_uefi_boots_with_and_without_an_entry_in_the_firmware() -> None:
    plan = grub(UEFI_ONLY, efi=True)
    assert argvs(plan) == [REMOVABLE, [*EFI, "--bootloader-id=linux"], UPDATE]
    assert [action.may_fail for action in plan] == [False, True, False]


def test_the_grub_of_red_hat_gets_force_for_uefi() -> None:
    has = Grub("grub2-install", ("grub2-mkconfig", "-o", "/boot/grub2/grub.cfg"), bios=True, efi=True)
    bios, removable, entry, _ = argvs(grub(BOTH, efi=True, has=has))
    assert bios[2:] == ["grub2-install", "--target=i386-pc", "--recheck", "/dev/vda"]
    common = ["grub2-install", "--target=x86_64-efi", "--efi-directory=/boot/efi", "--recheck", "--force"]
    assert removable[2:] == [*common, "--removable", "--no-nvram"]
    assert entry[2:] == [*common, "--bootloader-id=linux"]


def test_a_layout_for_bios_and_uefi_gets_both() -> None:
    assert argvs(grub(BOTH, efi=False)) == [BIOS_INSTALL, REMOVABLE, UPDATE]
    assert argvs(grub(BOTH, efi=True)) == [BIOS_INSTALL, REMOVABLE, [*EFI, "--bootloader-id=linux"], UPDATE]


def test_a_grub_that_the_image_lacks_is_skipped_if_this_machine_does_not_need_it() -> None:
    assert argvs(grub(BOTH, efi=False, has=Grub("grub-install", ("update-grub",), True, False))) == [
        BIOS_INSTALL,
        UPDATE,
    ]


@pytest.mark.parametrize(
    ("layout", "efi", "has", "reason"),
    [
        (BIOS_ONLY, True, FULL, "no EFI system partition"),
        (UEFI_ONLY, False, FULL, "no BIOS boot partition"),
        (BOTH, True, Grub("grub-install", ("update-grub",), True, False), "no GRUB for UEFI"),
        (BOTH, False, Grub("grub-install", ("update-grub",), False, True), "no GRUB for BIOS"),
    ],
)
def test_an_image_that_cannot_boot_on_this_machine_is_an_error(layout: Any, efi: bool, has: Grub, reason: str) -> None:
    with pytest.raises(Trouble, match=reason):
        grub(layout, efi=efi, has=has)


def test_the_installed_system_gets_the_serial_console_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("console=tty0 console=ttyS1,57600n8 quiet\n")
    console = serial_console(Places(tmp_path))
    assert console == "ttyS1,57600n8"
    [drop_in] = [action for action in grub(BIOS_ONLY, efi=False, console=console) if isinstance(action, WriteFile)]
    assert drop_in.path == "/etc/default/grub.d/60-provision.cfg"
    assert drop_in.content.decode().splitlines() == [
        'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX console=tty0 console=ttyS1,57600n8"',
        'GRUB_TERMINAL="console serial"',
        'GRUB_SERIAL_COMMAND="serial --unit=1 --speed=57600"',
    ]
    assert serial_console(Places(tmp_path / "elsewhere")) == ""


def test_the_grub_of_an_image_is_searched_in_its_own_tree(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    with pytest.raises(Trouble, match="no kernel"):
        look(tmp_path)
    (tmp_path / "boot/vmlinuz-6.1").touch()
    with pytest.raises(Trouble, match="no grub-install"):
        look(tmp_path)
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "sbin").symlink_to("/usr/sbin")  # as in real images; followed here, it would be our own
    (tmp_path / "usr/sbin/grub2-install").touch()
    (tmp_path / "usr/lib/grub/i386-pc").mkdir(parents=True)
    assert look(tmp_path) == Grub("grub2-install", ("grub2-mkconfig", "-o", "/boot/grub2/grub.cfg"), True, False)
    (tmp_path / "usr/sbin/grub-install").touch()
    assert look(tmp_path).config == ("grub-mkconfig", "-o", "/boot/grub/grub.cfg")
    (tmp_path / "usr/sbin/update-grub").touch()
    assert look(tmp_path).config == ("update-grub",)


# first boot -----------------------------------------------------------------------------------------------------------


def test_the_seed_is_readable_only_by_root_and_the_host_name_is_set_without_cloud_init_too(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 image\n::1 localhost\n")
    files = {"user-data": b"#cloud-config\n", "meta-data": b"instance-id: x\n"}
    for _ in range(2):
        execute(seed_plan(tmp_path, SEED, files, "n1.example.com"))
        assert (tmp_path / "etc/hostname").read_text() == "n1\n"
        assert (
            tmp_path / "etc/hosts"
        ).read_text() == "127.0.0.1 localhost\n127.0.1.1\tn1.example.com n1\n::1 localhost\n"
        for name, content in files.items():
            path = tmp_path / "var/lib/cloud/seed/nocloud" / name
            assert (path.read_bytes(), path.stat().st_mode & 0o777) == (content, 0o600)


def test_a_tree_without_etc_hosts_gets_one() -> None:
    assert hosts("", "n1") == "127.0.0.1\tlocalhost\n127.0.1.1\tn1\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def test_links_in_an_image_do_not_lead_out_of_it(tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    (target / "etc").mkdir(parents=True)
    outside.mkdir()
    (outside / "hostname").write_text("mine\n")
    (target / "etc/hostname").symlink_to(outside / "hostname")
    (target / "var").symlink_to("../../../../../../../" + str(outside))
    execute(seed_plan(target, SEED, {"meta-data": b"x"}, "n1"))
    assert (outside / "hostname").read_text() == "mine\n"
    assert [path.name for path in outside.iterdir()] == ["hostname"]
    assert (target / str(outside / "hostname").lstrip("/")).read_text() == "n1\n"
    (target / "etc/hosts").unlink()
    (target / "etc/hosts").symlink_to("hosts")
    with pytest.raises(Trouble, match="goes round"):
        execute(seed_plan(target, None, {}, "n1"))


def test_the_repr_of_a_plan_shows_no_content_of_files() -> None:
    plan = seed_plan(T, SEED, {"user-data": b"swordfish"}, "n1")
    assert "swordfish" not in repr(plan)
    assert "/var/lib/cloud/seed/nocloud/user-data" in repr(plan)
