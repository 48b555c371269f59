#!/usr/bin/env bash
# guest.sh OUT.cpio.gz PKG : the initramfs of a guest that runs a program of this machine under a clock of its own.
#
# The guest's root is this machine's, read-only, over 9p. What it runs is in the file /guest that Guest appends as a
# second archive: variables in the shell's syntax (see Guest in ../guest.go).
# The second serial port is a shell: one command per line; its output comes back, then a line "guest-done STATUS".
set -euo pipefail
OUT=$1 PKG=$2
TREE=$PKG/kernel BB=$PKG/busybox/bin/busybox
T=$(mktemp -d); trap 'rm -rf "$T"' EXIT
ver=$(basename "$TREE"/lib/modules/*)
I=$T/initramfs
mkdir -p "$I"/{proc,sys,dev,host,bin,lib/mods}
cp "$BB" "$I/bin/busybox"; ln -s busybox "$I/bin/sh"
mkdir -p "$T/depmod/lib"; cp -as "$TREE/lib/modules" "$T/depmod/lib/"; depmod -b "$T/depmod" "$ver"
: > "$I/lib/modules.order"
for m in virtio_pci virtio_net virtio_rng 9pnet_virtio 9p af_packet; do
  { modprobe -d "$T/depmod" -S "$ver" --show-depends "$m" || true; } | awk '$1=="insmod"{print $2}' | while read -r f; do
    b=$(basename "$f")
    grep -qx "$b" "$I/lib/modules.order" || { echo "$b" >> "$I/lib/modules.order"; cp -L "$f" "$I/lib/mods/$b"; }
  done
done
cat > "$I/init" <<'E'
#!/bin/sh
export PATH=/bin; b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
while read -r m; do $b insmod /lib/mods/$m 2>/dev/null; done < /lib/modules.order
. /guest
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host || echo "LAB-GUEST-FAILED no root"
$b mount -t proc proc /host/proc; $b mount -t sysfs sys /host/sys; $b mount -o bind /dev /host/dev; $b mount -t tmpfs run /host/run
$b mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=262144 writable "/host$WRITABLE" || echo "LAB-GUEST-FAILED no writable folder"
$b mount -t tmpfs volatile "/host$VOLATILE" || echo "LAB-GUEST-FAILED no volatile folder"
$b ip link set lo up
# eth0 and eth1 in the order of their MACs, which end in :00 and :01
for n in /sys/class/net/e*; do
  case $($b cat $n/address) in
  *:00) dev0=${n##*/};;
  *:01) dev1=${n##*/};;
  esac
done
$b ip link set $dev0 name eth0; $b ip link set $dev1 name eth10
$b ip link set eth0 up; $b ip link set eth10 up
for a in $ADDRESSES0; do $b ip addr add $a dev eth0; done
for a in $ADDRESSES1; do $b ip addr add $a dev eth10; done
$b ip route add default via $GATEWAY
(
  $b stty -F /dev/ttyS1 raw -echo
  while :; do
    while read -r line; do eval "$line" 2>&1; echo "guest-done $?"; done
  done < /dev/ttyS1 > /dev/ttyS1
) &
echo "LAB-GUEST-UP"
$b chroot /host /bin/sh -c "$COMMAND"
echo "LAB-GUEST-ENDED $?"
while :; do $b sleep 3600; done
E
chmod +x "$I/init"
(cd "$I" && find . -print0 | LC_ALL=C sort -z | cpio --null -o -H newc --owner=0:0 --reproducible --quiet) | gzip -1n > "$OUT"
