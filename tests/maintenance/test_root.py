"""The steps on real block devices, checked with other programs. Run by `make test-root`."""

import asyncio
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from provision.errors import Exit
from provision.layout import MIB
from provision.mounts import mount, taken_down
from provision.run import CommandFailed
from tests.api.serving import on_sqlite, until
from tests.maintenance.cutting import WHOLE, cutting
from tests.maintenance.hive import empty_hive
from tests.maintenance.loop import loop_disk, tool, under
from tests.maintenance.machine import Machine
from tests.maintenance.rootfs import rootfs
from tests.maintenance.test_windows import windows_tree
from tests.provisioning.guest import Script
from tests.provisioning.lab import Lab, lab
from tests.provisioning.registering import Client, digest

pytestmark = [pytest.mark.root, on_sqlite]

NAME = "os-images/test"
LINUX: list[dict[str, Any]] = [
    {"size": "1M", "type_guid": "ef02", "format": "none", "label": "bios"},
    {"size": "64M", "type_guid": "8200", "format": "swap", "label": "swap"},
    {"size": "16M", "type_guid": "8300", "format": "ext4", "label": "cidata"},
    {"size": "64M", "type_guid": "8300", "format": "ext4", "label": "log", "mountpoint": "/var/log"},
    {"size": "100%", "type_guid": "8304", "format": "ext4", "label": "root", "mountpoint": "/"},
]
STEPS = ("partition", "image-linux", "bootloader-linux", "config-drive")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    with loop_disk(tmp_path / "disk.raw", 512 * MIB) as device:
        yield device


@asynccontextmanager
async def room_with(store_url: str, tmp_path: Path, content: bytes) -> AsyncIterator[tuple[Lab, str]]:
    """Yield a controller whose registry has the image, and the image's URL."""
    settings = {"provisioning.install_seconds": 120, "provisioning.silence_seconds": 60}
    async with lab(store_url, tmp_path, script=Script(silent=True), settings=settings) as room:
        address = room.server.url.removeprefix("http://")
        await Client(address, room.api.session, cast(Any, None)).image(NAME, "1", content)
        yield room, f"{address}/{NAME}:1"


async def started(room: Lab, tmp_path: Path, recipe: dict[str, Any]) -> tuple[Machine, str]:
    """Return the machine of a new job, after its dispatcher."""
    job_id = await room.waiting(recipe=recipe)
    machine = Machine(tmp_path)
    for number, drive in enumerate(room.bmc.system.drives.values()):
        async with room.api.session.get(drive.image) as response:
            machine.insert(**{f"sr{number}": await response.read()})
    ran = await machine.agent("dispatch")
    assert ran.code == 0, ran.said
    return machine, job_id


async def does(machine: Machine, step: str) -> str:
    ran = await machine.agent("step", step)
    assert ran.code == 0, ran.said
    assert under(machine.root) == []
    return ran.said


def linux(disk: str, url: str, **more: Any) -> dict[str, Any]:
    return {
        "task_target": "install-linux.target", "target_disk": disk, "wipe": True, "oci_url": url, "partition_layout": LINUX,
        "hostname": "n1.example.com", "user_data": "#cloud-config\npassword: swordfish\n", **more,
    }  # fmt: skip


def read(device: str, path: str) -> str:
    """Read a file from an unmounted ext4 file system."""
    return subprocess.run(["debugfs", "-R", f"cat {path}", device], capture_output=True, check=True, text=True).stdout


def uuid_of(device: str) -> str:
    return tool("blkid", "-p", "-s", "UUID", "-o", "value", device).strip()


def hash_of(device: str) -> str:
    with open(device, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def test_a_disk_is_installed_and_a_second_run_of_every_step_changes_nothing(
    store_url: str, tmp_path: Path, disk: str
) -> None:
    async with room_with(store_url, tmp_path, gzip.compress(rootfs())) as (room, url):
        machine, job_id = await started(room, tmp_path, linux(disk, url))
        for step in STEPS:
            await does(machine, step)

        table = json.loads(tool("sfdisk", "--json", disk))["partitiontable"]
        assert [each.get("name") for each in table["partitions"]] == ["bios", "swap", "cidata", "log", "root"]
        assert table["partitions"][0]["type"] == "21686148-6449-6E6F-744E-656564454649"
        root, log, cidata = f"{disk}p5", f"{disk}p4", f"{disk}p3"
        assert tool("blkid", "-p", "-s", "LABEL", "-o", "value", root).strip() == "root"
        assert read(root, "/etc/fstab").splitlines()[1:] == [
            f"UUID={uuid_of(root)}\t/\text4\terrors=remount-ro\t0 1",
            f"UUID={uuid_of(log)}\t/var/log\text4\tdefaults\t0 2",
            f"UUID={uuid_of(f'{disk}p2')}\tnone\tswap\tsw\t0 0",
        ]
        assert read(log, "/old") == "from the image\n"
        assert read(root, "/grub-was-asked").splitlines() == [
            f"grub-install --target=i386-pc --recheck {disk}",
            "sees",
            "update-grub ",
            "sees",
        ]
        assert read(cidata, "/user-data") == "#cloud-config\npassword: swordfish\n"
        assert f'instance-id: "{job_id}"' in read(cidata, "/meta-data")
        assert read(root, "/etc/hostname") == "n1\n"
        assert "127.0.1.1\tn1.example.com n1\n" in read(root, "/etc/hosts")
        described = tool("debugfs", "-R", "stat /usr/bin/su", root) + tool(
            "debugfs", "-R", "stat /etc/os-release", root
        )
        assert "Mode:  04755" in described
        assert "User:  1234" in described

        before = [hash_of(device) for device in (root, log, cidata)]
        assert "nothing is done" in await does(machine, "partition")
        assert "nothing is done" in await does(machine, "image-linux")
        assert [hash_of(device) for device in (root, log, cidata)] == before
        await does(machine, "config-drive")
        assert read(root, "/etc/hosts").count("127.0.1.1") == 1

        assert (await machine.agent("report", "success")).code == 0
        job = await room.reaches(job_id, "complete")
        assert job["outcome"] == "succeeded"
        units = [step["step"] for step in job["progress"]["steps"] if step["step"].endswith(".service")]
        assert set(units) == {"provision-dispatcher.service", *(f"{name}.service" for name in STEPS)}
        assert tool("e2fsck", "-fn", root)


async def test_a_disk_without_consent_or_in_use_is_not_touched(store_url: str, tmp_path: Path, disk: str) -> None:
    tool("mkfs.ext4", "-q", disk)
    async with room_with(store_url, tmp_path, b"x") as (room, url):
        machine, _ = await started(room, tmp_path, linux(disk, url))
        folder = tmp_path / "mounted"
        folder.mkdir()
        tool("mount", disk, str(folder))
        try:
            (folder / "precious").write_text("data")
            ran = await machine.agent("step", "partition")
            assert (ran.code, f"{disk} is in use as {folder}" in ran.said) == (Exit.DISK, True), ran.said
            machine.places.write("recipe.json", {**machine.kept("recipe.json"), "wipe": False})
            ran = await machine.agent("step", "partition")
            assert (ran.code, "does not consent" in ran.said) == (Exit.DISK, True)
            assert (folder / "precious").read_text() == "data"
        finally:
            tool("umount", str(folder))


async def test_a_disk_that_the_kernel_uses_is_not_touched(store_url: str, tmp_path: Path, disk: str) -> None:
    tool("sfdisk", "--quiet", disk, given="label: gpt\nsize=64MiB\n")
    tool("partx", "--update", disk)
    machine = Machine(tmp_path)
    machine.places.write("recipe.json", {"wipe": True, "target_disk": disk, "partition_layout": LINUX})
    before = hash_of(disk)
    for held in (disk, f"{disk}p1"):
        handle = os.open(held, os.O_RDWR | os.O_EXCL)  # opened exclusively, as RAID, LVM and mounts do
        try:
            ran = await machine.agent("step", "partition")
        finally:
            os.close(handle)
        assert (ran.code, "the kernel says that it is in use" in ran.said) == (Exit.DISK, True), ran.said
        assert hash_of(disk) == before
    await does(machine, "partition")


async def test_file_systems_are_created_anew_for_another_image(store_url: str, tmp_path: Path, disk: str) -> None:
    async with room_with(store_url, tmp_path, rootfs()) as (room, url):
        machine, _ = await started(room, tmp_path, linux(disk, url))
        await does(machine, "partition")
        uuid = uuid_of(f"{disk}p5")
        folder = tmp_path / "seen"
        folder.mkdir()
        tool("mount", f"{disk}p5", str(folder))
        (folder / "of-another").write_text("left over")
        tool("umount", str(folder))
        machine.places.write("image-begun.json", {"digest": "sha256:" + "0" * 64, "uuid": uuid})
        assert "they are made anew" in await does(machine, "image-linux")
        assert uuid_of(f"{disk}p5") != uuid
        assert read(f"{disk}p5", "/of-another") == ""
        assert read(f"{disk}p5", "/etc/os-release") == "ID=test\n"
        assert "nothing is done" in await does(machine, "image-linux")


async def test_a_step_fails_if_its_tree_cannot_be_unmounted(tmp_path: Path, disk: str, store_url: str) -> None:
    tool("mkfs.ext4", "-q", disk)
    folder = tmp_path / "mounted"
    holders = []

    def hold() -> None:
        with mount(disk, folder):
            (folder / "file").write_text("written all the same")
            holders.append((folder / "file").open())

    try:
        with pytest.raises(CommandFailed, match="busy"):
            hold()
        assert under(folder) == [str(folder)]
        # A step that failed already keeps its own error.
        with pytest.raises(ZeroDivisionError), taken_down(folder):
            _ = 1 // 0
    finally:
        for holder in holders:
            holder.close()
        tool("umount", str(folder))
    assert read(disk, "/file") == "written all the same"


async def test_a_mount_is_private_so_that_no_other_namespace_keeps_it(
    tmp_path: Path, disk: str, store_url: str
) -> None:
    tool("mkfs.ext4", "-q", disk)
    with mount(disk, tmp_path / "mounted") as folder:
        assert tool("findmnt", "--noheadings", "--output", "PROPAGATION", str(folder)).strip() == "private"
    assert under(tmp_path) == []


async def test_a_tree_with_a_wrong_digest_leaves_no_mountable_file_system(
    store_url: str, tmp_path: Path, disk: str
) -> None:
    content = rootfs()
    async with room_with(store_url, tmp_path, content) as (room, url):
        machine, _ = await started(room, tmp_path, linux(disk, url))
        await does(machine, "partition")
        wrong = content.replace(b"from the image", b"from elsewhere")
        for stored in (tmp_path / "data").rglob(digest(content)[7:]):
            if stored.stat().st_size == len(content):
                stored.chmod(0o600)
                stored.write_bytes(wrong)
        ran = await machine.agent("step", "image-linux")
        assert (ran.code, under(machine.root)) == (Exit.DIGEST, []), ran.said
        for number in (4, 5):
            assert " TYPE=" not in tool("blkid", "-p", f"{disk}p{number}")
        assert (await machine.agent("step", "bootloader-linux")).code == Exit.COMMAND
        # A second run starts from the beginning.
        await does(machine, "partition")
        assert uuid_of(f"{disk}p5")


async def test_a_step_that_systemd_stops_unmounts_its_mounts(store_url: str, tmp_path: Path, disk: str) -> None:
    async with room_with(store_url, tmp_path, rootfs()) as (room, url):
        machine, _ = await started(room, tmp_path, linux(disk, url))
        await does(machine, "partition")
        address = url.partition("/")[0]
        # The manifest arrives, but only a part of the image.
        async with cutting(address, [WHOLE, 50_000], hold=True) as proxy:
            report, recipe = machine.kept("report.json"), machine.kept("recipe.json")
            machine.places.write("report.json", {**report, "registry_url": f"http://{proxy}"})
            machine.places.write("recipe.json", {**recipe, "oci_url": url.replace(address, proxy)})
            argv = [sys.executable, "-m", "provision", "step", "image-linux"]
            process = await asyncio.create_subprocess_exec(*argv, env=machine.env(), stderr=asyncio.subprocess.DEVNULL)
            try:
                await until(lambda: (machine.run / "target/usr/sbin/grub-install").exists())
                assert len(under(machine.root)) == 2
            finally:
                process.terminate()
                ended = await asyncio.wait_for(process.wait(), 30)
            assert ended == 128 + 15
        assert under(machine.root) == []
        # The next run succeeds.
        machine.places.write("report.json", report)
        machine.places.write("recipe.json", recipe)
        await does(machine, "image-linux")
        assert read(f"{disk}p5", "/etc/os-release") == "ID=test\n"


async def test_an_image_of_a_whole_disk_gets_its_configuration(store_url: str, tmp_path: Path, disk: str) -> None:
    with loop_disk(tmp_path / "image.raw", 64 * MIB) as made:
        table = "label: gpt\nsize=8MiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B\ntype=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709\n"
        tool("sfdisk", "--quiet", made, given=table)
        tool("partx", "--update", made)
        tool("mkfs.ext4", "-q", f"{made}p2")
        tool("sync")
    content = gzip.compress((tmp_path / "image.raw").read_bytes(), 1)
    async with room_with(store_url, tmp_path, content) as (room, url):
        recipe = linux(disk, url, image_format="raw-disk")
        del recipe["partition_layout"]
        machine, _ = await started(room, tmp_path, recipe)
        for step in STEPS:
            await does(machine, step)
        table = json.loads(tool("sfdisk", "--json", disk))["partitiontable"]
        assert table["lastlba"] > 512 * MIB // 512 - 100, "the table knows how large the disk is"
        assert read(f"{disk}p2", "/etc/hostname") == "n1\n"
        assert "swordfish" in read(f"{disk}p2", "/var/lib/cloud/seed/nocloud/user-data")
        assert "nothing is done" in await does(machine, "image-linux")


@pytest.mark.root("mkfs.vfat", "mkfs.xfs", "mkfs.btrfs", "mkfs.ntfs")
async def test_every_supported_file_system_can_be_created(store_url: str, tmp_path: Path) -> None:
    formats = ("vfat", "ext4", "xfs", "btrfs", "ntfs")
    layout = [
        {"size": "320M", "type_guid": "ef00" if name == "vfat" else "8300", "format": name, "label": f"The {name}"} for name in formats
    ]  # fmt: skip
    with loop_disk(tmp_path / "large.raw", 2048 * MIB) as disk:
        machine = Machine(tmp_path)
        recipe = {"wipe": True, "target_disk": disk, "partition_layout": layout}
        machine.places.write("recipe.json", recipe)
        await does(machine, "partition")
        for number, name in enumerate(formats, 1):
            found = tool("blkid", "-p", "-o", "export", f"{disk}p{number}")
            label = f"THE {name.upper()}" if name == "vfat" else f"The {name}"
            assert f"TYPE={name}" in found
            assert label in found.replace("\\", "")


@pytest.mark.root("wimlib-imagex", "mkfs.ntfs", "ntfsresize", "ntfs-3g")
async def test_windows_is_applied_to_its_volume_which_then_fills_the_partition(store_url: str, tmp_path: Path) -> None:
    if not Path("/dev/fuse").exists():  # noqa: ASYNC240 - nobody waits
        pytest.fail("this machine has no FUSE: there is no /dev/fuse")
    tree = windows_tree(tmp_path / "tree", empty_hive())
    (tree / "WINDOWS/big").write_bytes(hashlib.shake_128(b"big").digest(30 * MIB))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/wrong").write_text("this is index 1")
    wim = str(tmp_path / "install.wim")
    tool("wimlib-imagex", "capture", str(tmp_path / "other"), wim, "other")
    tool("wimlib-imagex", "append", str(tree), wim, "windows")
    layout = [
        {"size": "64M", "type_guid": "ef00", "format": "vfat", "label": "ESP"},
        {"size": "100%", "type_guid": "0700", "format": "ntfs", "label": "Windows"},
    ]
    with loop_disk(tmp_path / "disk.raw", 512 * MIB) as disk:
        async with room_with(store_url, tmp_path, (tmp_path / "install.wim").read_bytes()) as (room, url):
            recipe = {
                "task_target": "install-windows.target", "target_disk": disk, "wipe": True, "oci_url": url, "wim_index": 2,
                "partition_layout": layout,
            }  # fmt: skip
            machine, _ = await started(room, tmp_path, recipe)
            ran = await machine.agent("step", "partition")
            assert (ran.code, "booted by BIOS" in ran.said) == (Exit.DISK, True), ran.said
            machine.places.efi.mkdir(parents=True)
            await does(machine, "partition")
            await does(machine, "image-windows")
            assert str(tmp_path) not in tool("losetup", "--list", "--noheadings", "--output", "NAME,OFFSET").replace(
                disk, ""
            )
            folder = tmp_path / "c"
            folder.mkdir()
            tool("mount", "-t", "ntfs-3g", f"{disk}p2", str(folder))
            try:
                assert (folder / "WINDOWS/big").stat().st_size == 30 * MIB
                assert os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize > 400 * MIB
            finally:
                tool("umount", str(folder))
            assert "nothing is done" in await does(machine, "image-windows")
            if "vfat" in Path("/proc/filesystems").read_text().split() and shutil.which("hivexsh"):  # noqa: ASYNC240
                await does(machine, "bootloader-windows")
