#!/usr/bin/env bash
# mkimage.sh OUT.raw ROOTDIR KERNEL INITRD ROOT_MB KERNEL_ARGS PKG
#
# A raw disk image that boots on BIOS (syslinux on the ESP, behind gptmbr) and on UEFI, also with Secure Boot (Debian's shim and
# signed GRUB, from PKG, the folder of unpacked packages), made without mounts or loop devices: GPT by sgdisk, FAT by mtools,
# ext4 by mke2fs -d.
#   p1  ESP, label LABESP: the loaders, kernel, initrd       p2  root, ext4, label labroot
# Behind p2 is nothing but the backup GPT, so that an installer can add a partition at the end of the disk.
set -euo pipefail
OUT=$1 ROOTDIR=$2 KERNEL=$3 INITRD=$4 MB=$5 ARGS=$6 SIGNED=$7/secureboot/usr/lib
ESP_MB=$(( ( $(stat -Lc %s "$KERNEL") + $(stat -Lc %s "$INITRD") ) / 1048576 + 8 ))
[ "$ESP_MB" -ge 40 ] || ESP_MB=40        # FAT32 needs more than 65525 clusters (of 512 bytes)
T=$(mktemp -d "$(dirname "$OUT")/mkimage.XXXXXX"); trap 'rm -rf "$T"' EXIT
APPEND="root=LABEL=labroot ro console=tty0 console=ttyS0,115200 $ARGS"

truncate -s "${ESP_MB}M" "$T/esp"
mkfs.vfat -F 32 -s 1 -n LABESP "$T/esp" >/dev/null
cat > "$T/syslinux.cfg" <<E
DEFAULT lab
PROMPT 0
TIMEOUT 1
LABEL lab
  LINUX /vmlinuz
  INITRD /initrd
  APPEND $APPEND
E
cat > "$T/grub.cfg" <<E
search --no-floppy --set=root --label LABESP
linux /vmlinuz ${APPEND//;/\\;}
initrd /initrd
boot
E
export MTOOLS_SKIP_CHECK=1
mmd -i "$T/esp" ::/EFI ::/EFI/BOOT ::/EFI/debian
mcopy -i "$T/esp" "$SIGNED/shim/shimx64.efi.signed" ::/EFI/BOOT/BOOTX64.EFI
mcopy -i "$T/esp" "$SIGNED/grub/x86_64-efi-signed/grubx64.efi.signed" ::/EFI/BOOT/grubx64.efi
mcopy -i "$T/esp" "$T/grub.cfg" ::/EFI/debian/ # where the signed GRUB looks
mcopy -i "$T/esp" "$KERNEL" ::/vmlinuz
mcopy -i "$T/esp" "$INITRD" ::/initrd
mcopy -i "$T/esp" "$T/syslinux.cfg" ::/
syslinux --install "$T/esp"

truncate -s "${MB}M" "$T/root"
mke2fs -q -t ext4 -L labroot -O ^metadata_csum_seed -d "$ROOTDIR" "$T/root"

rm -f "$OUT"; truncate -s $((ESP_MB + MB + 2))M "$OUT"
# Attribute bit 2 of p1 is "legacy BIOS bootable": gptmbr looks for it.
sgdisk -o -n 1:2048:+${ESP_MB}M -t 1:EF00 -c 1:esp -A 1:set:2 -n 2:0:+"${MB}"M -t 2:8300 -c 2:labroot "$OUT" >/dev/null
dd if="$T/esp" of="$OUT" bs=1M seek=1 conv=notrunc,sparse status=none
dd if="$T/root" of="$OUT" bs=1M seek=$((1 + ESP_MB)) conv=notrunc,sparse status=none
dd if=/usr/lib/syslinux/mbr/gptmbr.bin of="$OUT" bs=440 count=1 conv=notrunc status=none
