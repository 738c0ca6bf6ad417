#!/bin/busybox sh
# The first program of the maintenance system. Firmware reads slowly, so it loads only the kernel and this; this copies the rest
# from the medium into memory with the kernel's drivers, after which the medium may be removed.
/bin/busybox --install -s /bin
export PATH=/bin

say() { echo "maintenance: $*" > /dev/kmsg; }

# Open a shell on the console: the machine stays as it is for inspection.
fail() {
  say "the system could not be started: $*"
  exec sh
}

mount -t devtmpfs dev /dev || fail "no /dev"
mount -t proc proc /proc || fail "no /proc"
mount -t sysfs sys /sys || fail "no /sys"
mkdir -p /medium /run
mount -t tmpfs -o mode=0755 run /run || fail "no /run"

# Drivers are loaded as devices are found behind others: a controller, then a hub, then a drive.
drivers() { find /sys/devices -name modalias -exec cat {} + 2> /dev/null | sort -u | xargs modprobe -abq 2> /dev/null; }

mounted() {
  for device in /dev/sr* /dev/sd* /dev/vd* /dev/nvme*; do
    [ -b "$device" ] || continue
    [ "$(dd if="$device" bs=1 skip=32808 count=11 2> /dev/null)" = "@VOLUME@" ] || continue
    mount -t iso9660 -o ro "$device" /medium 2> /dev/null || continue
    [ -f /medium/boot/system.squashfs ] && say "the system is on $device" && return 0
    umount /medium
  done
  return 1
}

for module in isofs squashfs loop overlay sr_mod sd_mod; do modprobe -q "$module"; done
tries=0
until drivers; mounted; do
  tries=$((tries + 1))
  [ $((tries % 20)) -eq 0 ] && say "still looking for the medium with the label @VOLUME@"
  sleep 0.5
done
mkdir -p /run/system/lower /run/system/upper /run/system/work /run/system/root
cp /medium/boot/system.squashfs /run/system/ || fail "the medium cannot be read, or there is too little memory"
umount /medium
mount -t squashfs -o ro,loop /run/system/system.squashfs /run/system/lower || fail "system.squashfs cannot be mounted"
mount -t tmpfs -o mode=0755 system /run/system/upper || fail "no memory for what is written"
mkdir /run/system/upper/changes /run/system/upper/work
mount -t overlay -o lowerdir=/run/system/lower,upperdir=/run/system/upper/changes,workdir=/run/system/upper/work \
  root /run/system/root || fail "no overlay"
mkdir -p /run/system/root/run
[ -x /run/system/root/usr/lib/systemd/systemd ] || fail "system.squashfs holds no systemd"
umount /proc /sys
mount -o move /dev /run/system/root/dev || fail "/dev cannot be moved"
exec switch_root /run/system/root /usr/lib/systemd/systemd
