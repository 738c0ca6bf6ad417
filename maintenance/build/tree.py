"""The content of the maintenance system: the packages without unneeded files, kernel modules, our units and the agent."""

import fnmatch
import importlib.util
import marshal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from maintenance.build.archive import DIRECTORY, FILE, LINK, Entry
from maintenance.build.iso import VOLUME
from maintenance.build.modules import FIRST, WANTED, Modules
from maintenance.build.rootfs import KERNEL
from maintenance.build.run import BuildFailed

HERE = Path(__file__).parents[1]
UNITS, SYSTEM, AGENT = HERE / "units", HERE / "system", HERE / "agent" / "provision"
STAGE1 = Path(__file__).with_name("stage1.sh")
BUSYBOX = "usr/bin/busybox"
PACKAGE = "usr/lib/python3/dist-packages/provision"
PYTHON_3_11 = b"\xa7\r\r\n"  # the magic number of its compiled files

# fmt: off
LEFT_OUT = (
    KERNEL, "boot/*", "dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "var/lib/apt/*", "var/lib/dpkg/*", "var/cache/*", "var/log/*",
    "usr/share/perl*", "usr/lib/x86_64-linux-gnu/perl*", "usr/bin/perl*", "usr/lib/x86_64-linux-gnu/libperl*", "usr/share/doc", "usr/share/man", "usr/share/locale",
    "usr/lib/udev/hwdb.d/*", "usr/lib/udev/hwdb.bin", "usr/share/pixmaps*", "usr/share/ca-certificates", "usr/share/polkit-1",
    "usr/lib/python3.11/test", "usr/lib/python3.11/unittest", "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/idlelib", "usr/lib/python3.11/ensurepip", "usr/lib/python3.11/tkinter",
    "etc/hostname", "etc/machine-id", "etc/issue", "etc/shadow-", "etc/passwd-", "etc/group-", "etc/gshadow-", "etc/resolv.conf", "etc/kernel",
    # These contain build times, or are useless without a package manager.
    "etc/.pwd.lock", "etc/apt", "etc/cron.d", "etc/cron.daily", "etc/ld.so.cache.*",
)
# Units that would prompt, wait, or do useless work in a system that runs in memory.
MASKED = (
    "systemd-firstboot.service", "systemd-timesyncd.service", "e2scrub_reap.service", "e2scrub_all.timer", "apt-daily.timer",
    "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service", "systemd-journal-catalog-update.service", "systemd-hwdb-update.service",
    "systemd-pstore.service", "systemd-journal-flush.service", "systemd-machine-id-commit.service", "systemd-random-seed.service",
    "systemd-remount-fs.service", "systemd-sysusers.service", "ldconfig.service", "mdcheck_start.timer", "xfs_scrub_all.timer",
    "systemd-networkd-persistent-storage.service", "remote-fs.target", "systemd-update-done.service", "systemd-boot-system-token.service",
    "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount", "systemd-logind.service", "systemd-ask-password-console.path", "systemd-ask-password-wall.path",
    "modprobe@drm.service", "modprobe@configfs.service", "modprobe@fuse.service", "sys-fs-fuse-connections.mount", "modprobe@dm_mod.service",
    "modprobe@loop.service", "systemd-resolved.service", "dbus.service", "dbus.socket", "systemd-user-sessions.service", "systemd-tmpfiles-clean.timer",
)
# fmt: on
ENABLED = {
    "multi-user.target.wants": ("systemd-networkd.service", "provision-dispatcher.service"),
    "network-online.target.wants": ("systemd-networkd-wait-online.service",),
    "getty.target.wants": ("getty@tty1.service",),
}
PLACES = ("boot", "dev", "proc", "sys", "run", "tmp", "var/log", "var/cache", "var/lib/dpkg", "mnt")


class Tree(NamedTuple):
    kernel: bytes
    first: list[Entry]  # loaded by the firmware together with the kernel
    system: list[Entry]  # copied into memory and started by the former


def read(rootfs: Path, work: Path) -> Tree:
    with tarfile.open(rootfs) as tar:
        modules = Modules(tar, work / "all")
        found = {entry.path: entry for entry in _packages(tar)}
        kernel = tar.extractfile(f"./{KERNEL}/boot/vmlinuz-{modules.version}")
        if kernel is None:
            raise BuildFailed("the kernel is not in the root file system")
        first = {entry.path: entry for entry in _first(found.pop(BUSYBOX))}
        for entry in _files(modules.choose(FIRST, work / "first"), f"lib/modules/{modules.version}"):
            first[entry.path] = entry
        for entry in (*_ours(), *_files(modules.choose(WANTED, work / "system"), f"usr/lib/modules/{modules.version}")):
            found[entry.path] = entry
        for tree in (first, found):
            for path in list(tree):
                _make_folders(tree, path)
        return Tree(kernel.read(), list(first.values()), list(found.values()))


def _first(busybox: Entry) -> Iterator[Entry]:
    yield busybox._replace(path="bin/busybox")
    yield Entry("init", FILE | 0o755, STAGE1.read_text().replace("@VOLUME@", VOLUME).encode())
    for place in ("dev", "proc", "sys", "run"):
        yield Entry(place, DIRECTORY | 0o755)


def _packages(tar: tarfile.TarFile) -> Iterator[Entry]:
    for member in tar:
        path = member.name.removeprefix("./").rstrip("/")
        if not path or path == "." or _left_out(path):
            continue
        if member.isdir():
            yield Entry(path, DIRECTORY | member.mode, b"", member.uid, member.gid)
        elif member.issym():
            yield Entry(path, LINK | 0o777, member.linkname.encode(), member.uid, member.gid)
        elif member.isfile() or member.islnk():
            source = tar.extractfile(member)
            data = source.read() if source else b""
            data = _trusted(data) if path.endswith(".pyc") else data
            yield Entry(path, FILE | member.mode, data, member.uid, member.gid)


def _trusted(code: bytes) -> bytes:
    """Mark compiled Python as not to be compared with its source, whose timestamp differs here; compiling takes seconds."""
    return code[:4] + (1).to_bytes(4, "little") + bytes(8) + code[16:]


def _left_out(path: str) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*") for pattern in LEFT_OUT)


def _ours() -> Iterator[Entry]:
    yield from _files(SYSTEM, "")
    yield from _files(UNITS, "usr/lib/systemd/system")
    for entry in _files(AGENT, PACKAGE):
        if entry.path.endswith(".py"):
            yield entry
            if importlib.util.MAGIC_NUMBER == PYTHON_3_11:
                yield _compiled(entry)
    for folder, units in ENABLED.items():
        for unit in units:
            file = f"{unit.partition('@')[0]}@.service" if "@" in unit else unit
            yield _link(f"etc/systemd/system/{folder}/{unit}", f"/usr/lib/systemd/system/{file}")
    for unit in MASKED:
        yield _link(f"etc/systemd/system/{unit}", "/dev/null")
    yield _link("etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target")
    yield Entry("etc/resolv.conf", FILE | 0o644)  # the agent fills it
    # Empty, not missing: then systemd generates one for this boot without prompting.
    yield Entry("etc/machine-id", FILE | 0o444)
    for place in PLACES:
        yield Entry(place, DIRECTORY | (0o1777 if place == "tmp" else 0o755))


def _compiled(source: Entry) -> Entry:
    """Compile the agent, which saves seconds at its first start. Version 2 of the marshal format is reproducible."""
    code = compile(source.data, f"/{source.path}", "exec", dont_inherit=True, optimize=0)
    name = source.path.rpartition("/")[2].removesuffix(".py")
    return Entry(
        f"{PACKAGE}/__pycache__/{name}.cpython-311.pyc",
        source.mode,
        _trusted(PYTHON_3_11 + bytes(12) + marshal.dumps(code, 2)),
    )


def _link(path: str, target: str) -> Entry:
    return Entry(path, LINK | 0o777, target.encode())


def _files(folder: Path, at: str) -> Iterator[Entry]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(Path(at) / path.relative_to(folder))
            yield Entry(name, FILE | (0o755 if path.stat().st_mode & 0o100 else 0o644), path.read_bytes())


def _make_folders(found: dict[str, Entry], path: str) -> None:
    for parent in Path(path).parents:
        if str(parent) != "." and str(parent) not in found:
            found[str(parent)] = Entry(str(parent), DIRECTORY | 0o755)
