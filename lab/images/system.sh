#!/usr/bin/env bash
# system.sh OUT PKG: the root file system of a Debian 12 as a tar archive, with a kernel, md and GRUB for BIOS. It has no boot loader
# yet. When the system is up, it prints one line on the serial console:
#   LAB-SYSTEM-BOOTED root=<device> disks=<those that the array should have, and has, such as [2/1]>
# PKG, the lab's folder of unpacked packages, is not used.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$1
# In a mount namespace of its own, so that nothing stays mounted when this is killed.
[ "${LAB_UNSHARED:-}" = 1 ] || LAB_UNSHARED=1 exec unshare --mount --propagation private "$0" "$@"
T=$(mktemp -d "$(dirname "$OUT")/system.XXXXXX"); trap 'umount -l "$T" 2>/dev/null || true; rm -rf --one-file-system "$T"' EXIT
# In memory if there is plenty: dpkg syncs each file to the disk.
[ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -lt 6000000 ] || mount -t tmpfs -o size=1500m tmpfs "$T"
R=$T/root
. "$HERE/bootstrap.sh"
debian "$R" "virtio_pci virtio_blk ext4 raid1" mdadm grub-pc-bin grub2-common
echo "LABEL=ROOT / ext4 defaults,errors=remount-ro 0 1" > "$R/etc/fstab"
cat > "$R/etc/default/grub" <<'E'
GRUB_TIMEOUT=0
GRUB_TERMINAL=console
GRUB_CMDLINE_LINUX="console=ttyS0,115200 mitigations=off"
E
cat > "$R/etc/systemd/system/lab-booted.service" <<'E'
[Unit]
Description=lab: report that the installed system is up
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo "LAB-SYSTEM-BOOTED root=$$(findmnt -no SOURCE /) disks=$$(grep -o "[[][0-9]*/[0-9]*[]]" /proc/mdstat)" > /dev/ttyS0'
[Install]
WantedBy=multi-user.target
E
chroot "$R" systemctl -q enable lab-booted.service
tar --xattrs --xattrs-include='*' --numeric-owner -C "$R" -cf "$OUT" .
