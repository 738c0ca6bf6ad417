#!/bin/sh
# Run by mmdebstrap with the new root as its argument. The kernel is only unpacked, into its own folder: as an installed
# package it would need the tools for an initramfs, which this system does not have.
set -eu
root=$1
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
name=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
mkdir "$root/kernel"
cd "$root/kernel"
apt-get download -o APT::Sandbox::User=root "$name"
dpkg-deb -x linux-image-*.deb "$root/kernel"
rm linux-image-*.deb
