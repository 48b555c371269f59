#!/usr/bin/env bash
# host.sh OUT.raw PKG : a Debian 12 with systemd for a server: the root file system, and next to it vmlinuz and initrd, which start it.
#
# Nothing configures its network. It mounts the second disk, read-only, at /media. When it is up, it prints LAB-HOST-UP on the first
# serial port. The second serial port is a shell of root: one command per line; its output comes back, then a line
# "guest-done STATUS". PKG, the lab's folder of unpacked packages, is not used.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$1
# In a mount namespace of its own, so that nothing stays mounted when this is killed.
[ "${LAB_UNSHARED:-}" = 1 ] || LAB_UNSHARED=1 exec unshare --mount --propagation private "$0" "$@"
T=$(mktemp -d "$(dirname "$OUT")/host.XXXXXX"); trap 'umount -l "$T" 2>/dev/null || true; rm -rf --one-file-system "$T"' EXIT
# In memory if there is plenty: dpkg syncs each file to the disk.
[ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -lt 6000000 ] || mount -t tmpfs -o size=1500m tmpfs "$T"
R=$T/root
. "$HERE/bootstrap.sh"
debian "$R" "virtio_pci virtio_blk ext4" iproute2 ipmitool procps
printf '/dev/vda / ext4 defaults 0 1\n/dev/vdb /media ext4 ro 0 0\n' > "$R/etc/fstab"
echo lab-host > "$R/etc/hostname"
cat > "$R/usr/local/sbin/lab-shell" <<'E2'
#!/bin/bash
export DEBIAN_FRONTEND=noninteractive TERM=dumb HOME=/root
exec 3<> /dev/ttyS1 # what comes before this is lost
stty -F /dev/ttyS1 raw -echo
echo LAB-HOST-UP > /dev/ttyS0
while read -r line <&3; do
  eval "$line" >&3 2>&1 < /dev/null
  echo "guest-done $?" >&3
done
E2
chmod 755 "$R/usr/local/sbin/lab-shell"
cat > "$R/etc/systemd/system/lab-shell.service" <<'E2'
[Unit]
Description=lab: a shell on the second serial port
[Service]
ExecStart=/usr/local/sbin/lab-shell
[Install]
WantedBy=multi-user.target
E2
chroot "$R" systemctl -q enable lab-shell.service
chroot "$R" systemctl -q mask serial-getty@ttyS1.service getty@tty1.service systemd-hwdb-update.service apt-daily.timer \
  apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_reap.service e2scrub_all.timer fstrim.timer
mv "$R"/boot/vmlinuz-* "$(dirname "$OUT")/vmlinuz"
mv "$R"/boot/initrd.img-* "$(dirname "$OUT")/initrd"
rm -f "$OUT"
truncate -s 3G "$OUT" # room for two packages and a server's data
mke2fs -q -t ext4 -d "$R" "$OUT"
