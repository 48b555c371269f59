#!/usr/bin/env bash
# sim.sh OUT.raw PKG : the image of simulated machines. No kernel is in it: the machine's own program plays the system that
# mini.sh would be, and looks for it here.
#   p1  "labroot", ext4 with /etc/os-release      p2  8 MiB that do not compress
# Behind p2 is nothing but the backup GPT, so that an installer can add a partition at the end of the disk.
set -euo pipefail
OUT=$1
T=$(mktemp -d "$(dirname "$OUT")/sim.XXXXXX"); trap 'rm -rf "$T"' EXIT
mkdir -p "$T/root/etc/ingot"
cat > "$T/root/etc/os-release" <<'R'
ID=lab-sim
NAME="Ingot lab sim"
PRETTY_NAME="Ingot lab sim"
VERSION_ID=1
R
truncate -s 2M "$T/fs"
mke2fs -q -t ext4 -b 1024 -L labroot -O ^has_journal,^metadata_csum_seed -d "$T/root" "$T/fs"
rm -f "$OUT"; truncate -s 12M "$OUT"
sgdisk -o -n 1:2048:+2M -t 1:8300 -c 1:labroot -n 2:0:+8M -t 2:8300 -c 2:payload "$OUT" >/dev/null
dd if="$T/fs" of="$OUT" bs=1M seek=1 conv=notrunc status=none
dd if=/dev/urandom of="$OUT" bs=1M seek=3 count=8 conv=notrunc status=none
printf 'Ingot lab: a system for simulated machines' | dd of="$OUT" bs=1 conv=notrunc status=none
