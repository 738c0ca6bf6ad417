#!/bin/sh
# Run by mmdebstrap with the new root as its argument: makes a Linux small enough to be installed by an emulated processor.
set -eu
root=$1
kernel=$(basename "$root"/usr/lib/modules/*)
modules="$root/usr/lib/modules/$kernel"

cat > "$root/etc/initramfs-tools/conf.d/small" <<'END'
MODULES=list
COMPRESS=zstd
END
printf 'virtio_pci\nvirtio_blk\next4\n' > "$root/etc/initramfs-tools/modules"

find "$modules/kernel" -name '*.ko' \
  ! -name 'virtio*' ! -name 'net_failover.ko' ! -name 'failover.ko' ! -name 'ext4.ko' ! -name 'jbd2.ko' ! -name 'mbcache.ko' \
  ! -name '*crc*' ! -name 'fat.ko' ! -name 'vfat.ko' ! -name 'nls_*' ! -name 'efivarfs.ko' ! -name 'autofs4.ko' ! -name 'evdev.ko' \
  ! -name 'qemu_fw_cfg.ko' ! -name 'rng-core.ko' ! -name 'af_packet.ko' ! -name 'cryptomgr.ko' -delete
chroot "$root" depmod "$kernel"
chroot "$root" update-initramfs -u -k all

cat > "$root/etc/default/grub" <<'END'
GRUB_TIMEOUT=0
GRUB_DISTRIBUTOR="Test"
GRUB_DISABLE_RECOVERY=true
GRUB_DISABLE_SUBMENU=y
GRUB_DISABLE_OS_PROBER=true
GRUB_CMDLINE_LINUX="mitigations=off"
END
cat > "$root/etc/systemd/network/wired.network" <<'END'
[Match]
Type=ether
[Network]
DHCP=ipv4
LinkLocalAddressing=no
END
# Only what the tests check: the name, the users with their keys, the files.
cat > "$root/etc/cloud/cloud.cfg" <<'END'
datasource_list: [NoCloud, None]
network: {config: disabled}
disable_root: true
preserve_hostname: false
cloud_init_modules: [write-files, set_hostname, update_hostname, users-groups]
cloud_config_modules: []
cloud_final_modules: []
system_info: {distro: debian, default_user: {name: debian, lock_passwd: true, shell: /bin/bash}, network: {renderers: [networkd]}}
END
rm -f "$root"/etc/cloud/cloud.cfg.d/90_*
cat > "$root/usr/local/sbin/greet" <<'END'
#!/usr/bin/python3
"""Says where this system is from, to whoever /etc/greeting names: written there by cloud-init, or there is nobody to greet."""
import json, os, pathlib, socket, time, urllib.request

def text(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""

said = {
    "hostname": socket.gethostname(),
    "keys": text("/home/keeper/.ssh/authorized_keys"),
    "uefi": os.path.isdir("/sys/firmware/efi"),
    "fstab": text("/etc/fstab"),
    "mounts": text("/proc/mounts"),
    "serial": text("/sys/class/dmi/id/product_serial").strip(),
    "uptime": float(text("/proc/uptime").split()[0]),
}
request = urllib.request.Request(text("/etc/greeting").strip(), json.dumps(said).encode(), {"Content-Type": "application/json"})
for _ in range(60):
    try:
        urllib.request.urlopen(request, timeout=5).close()
        break
    except OSError:
        time.sleep(1)
END
chmod 755 "$root/usr/local/sbin/greet"
cat > "$root/etc/systemd/system/greet.service" <<'END'
[Unit]
After=cloud-init.service systemd-networkd.service
ConditionPathExists=/etc/greeting
[Service]
ExecStart=/usr/local/sbin/greet
[Install]
WantedBy=multi-user.target
END
chroot "$root" systemctl enable greet.service systemd-networkd.service serial-getty@ttyS0.service
chroot "$root" systemctl mask systemd-networkd-wait-online.service cloud-config.service cloud-final.service \
  apt-daily.timer apt-daily-upgrade.timer e2scrub_reap.service systemd-timesyncd.service
rm -f "$root"/etc/grub.d/20_* "$root"/etc/grub.d/30_* "$root"/etc/grub.d/05_* "$root"/etc/grub.d/4*
rm -rf "$root"/usr/share/perl "$root"/usr/lib/x86_64-linux-gnu/perl "$root"/usr/lib/x86_64-linux-gnu/libperl* "$root"/usr/lib/udev/hwdb.* \
  "$root"/usr/lib/grub/x86_64-efi/monolithic "$root"/var/lib/apt "$root"/var/cache/apt "$root"/var/lib/dpkg/info "$root"/boot/System.map* \
  "$root"/usr/lib/python3.11/pydoc_data "$root"/usr/lib/python3/dist-packages/cloudinit/tests "$root"/usr/share/zoneinfo
rm -f "$root/etc/hostname" "$root/etc/machine-id"
: > "$root/etc/machine-id"
