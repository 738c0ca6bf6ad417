"""Build a bootable image: GRUB for BIOS and UEFI, the kernel with a small initramfs, and the system.

grub-mkrescue, GRUB's own program for this, puts the time and random numbers into the image; so its parts are built here.
"""

from pathlib import Path

from maintenance.build.run import EPOCH, run

VOLUME = "MAINTENANCE"
GRUB = Path("/usr/lib/grub")
# The last console is /dev/console. Nothing untrusted runs here, so mitigations are off.
KERNEL_LINE = "console=tty0 console=ttyS0,115200 systemd.firstboot=no systemd.show_status=true net.ifnames=0 printk.devkmsg=on mitigations=off"
# fmt: off
COMMON = [
    "iso9660", "part_gpt", "part_msdos", "fat", "linux", "normal", "configfile", "search", "search_fs_file", "serial", "terminal",
    "echo", "test", "sleep", "reboot", "halt", "all_video", "gfxterm",
]
# fmt: on
BIOS, UEFI = [*COMMON, "biosdisk", "vga"], [*COMMON, "efi_gop", "efi_uga"]
FAT_SERIAL = "C4A26E4D"
FAT_KIB = 2880

# Identified by its own file, so that another bootable disk in the machine is not mistaken for this one.
MARK = "boot/chargehand-maintenance"
CONFIG = f"""\
search --no-floppy --file --set=root /{MARK}
serial --unit=0 --speed=115200
terminal_input console serial
terminal_output console serial
echo "Loading the maintenance system ..."
linux /boot/vmlinuz {KERNEL_LINE}
initrd /boot/initrd.zst
boot
"""


def make(kernel: bytes, initrd: Path, system: Path, output: Path, work: Path) -> None:
    tree = work / "iso"
    boot = tree / "boot"
    boot.mkdir(parents=True)
    (tree / "EFI/BOOT").mkdir(parents=True)
    (boot / "vmlinuz").write_bytes(kernel)
    initrd.rename(boot / "initrd.zst")
    system.rename(boot / "system.squashfs")
    (tree / MARK).write_text("")
    config = work / "grub.cfg"
    config.write_text(CONFIG)
    core = work / "core.img"
    run("grub-mkimage", "-O", "i386-pc", "-d", GRUB / "i386-pc", "-p", "/boot/grub", "-c", config, "-o", core, *BIOS)
    (boot / "bios.img").write_bytes((GRUB / "i386-pc/cdboot.img").read_bytes() + core.read_bytes())
    efi = tree / "EFI/BOOT/BOOTX64.EFI"
    run(
        "grub-mkimage",
        "-O",
        "x86_64-efi",
        "-d",
        GRUB / "x86_64-efi",
        "-p",
        "/boot/grub",
        "-c",
        config,
        "-o",
        efi,
        *UEFI,
    )
    fat = work / "efi.img"
    _fat(fat, efi)
    _xorriso(tree, fat, output)


def _fat(image: Path, efi: Path) -> None:
    image.write_bytes(bytes(FAT_KIB * 1024))
    run("mformat", "-i", image, "-f", str(FAT_KIB), "-N", FAT_SERIAL, "-v", "EFI", "::")
    run("mmd", "-i", image, "::/EFI", "::/EFI/BOOT")
    run("mcopy", "-i", image, efi, "::/EFI/BOOT/BOOTX64.EFI")


def _xorriso(tree: Path, fat: Path, output: Path) -> None:
    date = "2023111422132000"  # EPOCH in the format of the volume's dates
    # fmt: off
    run(
        "xorriso", "-as", "mkisofs", "-o", output, "-V", VOLUME, "-r", "-J", "-joliet-long", "--set_all_file_dates", f"={EPOCH}",
        f"--modification-date={date}",
        "--grub2-boot-info", "--grub2-mbr", GRUB / "i386-pc/boot_hybrid.img",
        "-b", "boot/bios.img", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table",
        "-append_partition", "2", "0xef", fat, "-appended_part_as_gpt", "-partition_offset", "16",
        "-eltorito-alt-boot", "-e", "--interval:appended_partition_2:all::", "-no-emul-boot",
        tree,
    )
    # fmt: on
