#!/usr/bin/env bash
# standin.sh OUTDIR PKG GUESTOS PRODUCT : kernel, initramfs and loader of a stand-in guest (talos, harvester or vyos).
#
#   vmlinuz      the lab's kernel
#   base         initramfs with GUESTOS as /init: what an installed system boots
#   initramfs    base, and behind it an archive with /payload/esp.zst and /payload/mbr.bin: what an installer writes to a disk
#   esp.zst      EFI system partition that boots BIOS (syslinux, behind gptmbr) and UEFI (GRUB, standalone) with kernel and base
#   talos.raw    the image of path B, with the partitions EFI, BIOS, BOOT, META and the platform nocloud
#   vyos.raw     VyOS's image: BIOS boot, EFI, persistence; its squashfs is OUTDIR/vyos.squashfs, packed by the caller before
# PKG is the lab's folder of unpacked packages. Nothing is mounted.
set -euo pipefail
OUT=$1 PKG=$2 GUESTOS=$3 PRODUCT=$4
TREE=$PKG/kernel
T=$(mktemp -d "$OUT/standin.XXXXXX"); trap 'rm -rf "$T"' EXIT
ver=$(basename "$TREE"/lib/modules/*)
cp "$TREE"/boot/vmlinuz-* "$OUT/vmlinuz"

# --- initramfs
common="virtio_pci virtio_blk virtio_net virtio_rng nvme sd_mod ahci e1000e"
LABEL=EFI # of the EFI system partition
case $PRODUCT in
  talos) modules=$common ARGS="talos.platform=metal" ;;
  harvester) modules="$common squashfs overlay loop" ARGS="root=LABEL=COS_STATE cos-img/filename=/cOS/active.img panic=0 net.ifnames=1" LABEL=COS_GRUB ;;
  vyos)
    VERSION=1.5-lab
    modules="$common ext4 squashfs overlay loop 8021q"
    ARGS="boot=live rootdelay=5 noautologin net.ifnames=0 biosdevname=0 vyos-union=/boot/$VERSION"
    ;;
esac
I=$T/initramfs
mkdir -p "$I"/{proc,sys,dev,run,tmp,mnt,lib/mods}
install -m755 "$GUESTOS" "$I/init"
echo "$PRODUCT" > "$I/product"
mkdir -p "$T/depmod/lib"; cp -as "$TREE/lib/modules" "$T/depmod/lib/"; depmod -b "$T/depmod" "$ver"
: > "$I/lib/modules.order"
for m in $modules; do
  # "insmod FILE" in the order of loading; built-in modules give no such line
  modprobe -d "$T/depmod" -S "$ver" --show-depends "$m" | awk '$1=="insmod"{print $2}' | while read -r f; do
    b=$(basename "$f")
    grep -qx "$b" "$I/lib/modules.order" || { echo "$b" >> "$I/lib/modules.order"; cp -L "$f" "$I/lib/mods/$b"; }
  done
done
pack() { (cd "$1" && find . -print0 | LC_ALL=C sort -z | cpio --null -o -H newc --owner=0:0 --reproducible --quiet) | zstd -q -"$2" -T0 > "$3"; }
pack "$I" 12 "$OUT/base"

# esp FILE KERNEL_ARGS : the EFI system partition
esp() {
  local file=$1 args="console=tty0 console=ttyS0,115200 quiet $2" modules="part_gpt fat ext2 search search_label linux normal configfile"
  rm -f "$file"; truncate -s 48M "$file"
  mkfs.vfat -F 32 -s 1 -n "$LABEL" "$file" >/dev/null
  printf 'DEFAULT lab\nPROMPT 0\nTIMEOUT 1\nLABEL lab\n  LINUX /vmlinuz\n  INITRD /initrd\n  APPEND %s\n' "$args" > "$T/syslinux.cfg"
  printf 'search --no-floppy --set=root --label %s\nlinux /vmlinuz %s\ninitrd /initrd\nboot\n' "$LABEL" "$args" > "$T/grub.cfg"
  grub-mkstandalone -O x86_64-efi -o "$T/BOOTX64.EFI" --modules="$modules" --install-modules="$modules boot echo test" \
    --fonts= --locales= --themes= "boot/grub/grub.cfg=${3:-$T/grub.cfg}"
  export MTOOLS_SKIP_CHECK=1
  mmd -i "$file" ::/EFI ::/EFI/BOOT
  mcopy -i "$file" "$T/BOOTX64.EFI" ::/EFI/BOOT/
  mcopy -i "$file" "$OUT/vmlinuz" ::/vmlinuz
  mcopy -i "$file" "$OUT/base" ::/initrd
  mcopy -i "$file" "$T/syslinux.cfg" ::/
  syslinux --install "$file"
}
MBR=/usr/lib/syslinux/mbr/gptmbr.bin
if [ "$PRODUCT" != vyos ]; then
  esp "$T/esp" "$ARGS"
  zstd -q -3 -T0 "$T/esp" -o "$OUT/esp.zst"
  cp $MBR "$OUT/mbr.bin"
  mkdir -p "$T/payload/payload"
  cp "$OUT/esp.zst" "$T/payload/payload/"; cp $MBR "$T/payload/payload/mbr.bin"
  pack "$T/payload" 1 "$T/payload.cpio"
  # Talos's installer image comes from a registry; here it travels with the initramfs. Harvester's is in the ISO.
  cp "$OUT/base" "$OUT/initramfs"
  if [ "$PRODUCT" = talos ]; then
    truncate -s %4 "$OUT/initramfs" # archives begin at multiples of 4
    cat "$T/payload.cpio" >> "$OUT/initramfs"
  fi
fi

case $PRODUCT in
talos)
  esp "$T/esp" "talos.platform=nocloud"
  rm -f "$OUT/talos.raw"; truncate -s 60M "$OUT/talos.raw"
  sgdisk -o -n 1:2048:+48M -t 1:EF00 -c 1:EFI -A 1:set:2 -n 2:0:+1M -t 2:EF02 -c 2:BIOS -n 3:0:+4M -t 3:8300 -c 3:BOOT \
    -n 4:0:+4M -t 4:8300 -c 4:META "$OUT/talos.raw" >/dev/null
  dd if="$T/esp" of="$OUT/talos.raw" bs=1M seek=1 conv=notrunc,sparse status=none
  dd if=$MBR of="$OUT/talos.raw" bs=440 count=1 conv=notrunc status=none
  ;;
vyos)
  # p3 is what an operator sees: the version's folder, and the loader's configuration, which the loader for UEFI reads. The one for
  # BIOS has its own copies on p2: GRUB's would want grub-pc.
  P=$T/persistence
  mkdir -p "$P/boot/$VERSION"/{rw,work} "$P/boot/grub/grub.cfg.d/vyos-versions"
  echo "/ union" > "$P/persistence.conf"
  mv "$OUT/vyos.squashfs" "$P/boot/$VERSION/$VERSION.squashfs"
  cp "$OUT/vmlinuz" "$P/boot/$VERSION/vmlinuz"; cp "$OUT/base" "$P/boot/$VERSION/initrd.img"
  printf 'set default=0\nset timeout=0\nsource /boot/grub/grub.cfg.d/vyos-versions/%s.cfg\n' "$VERSION" > "$P/boot/grub/grub.cfg"
  printf 'menuentry "%s" {\n  linux /boot/%s/vmlinuz console=tty0 console=ttyS0,115200 quiet %s\n  initrd /boot/%s/initrd.img\n}\n' \
    "$VERSION" "$VERSION" "$ARGS" "$VERSION" > "$P/boot/grub/grub.cfg.d/vyos-versions/$VERSION.cfg"
  printf 'search --no-floppy --set=root --label persistence\nconfigfile /boot/grub/grub.cfg\n' > "$T/uefi.cfg"
  esp "$T/esp" "$ARGS" "$T/uefi.cfg"
  truncate -s 96M "$T/p3"
  mke2fs -q -t ext4 -L persistence -O ^metadata_csum_seed -d "$P" "$T/p3"
  rm -f "$OUT/vyos.raw"; truncate -s 147M "$OUT/vyos.raw"
  sgdisk -o -n 1:2048:4095 -t 1:EF02 -c 1:BIOS -n 2:4096:+48M -t 2:EF00 -c 2:EFI -A 2:set:2 -n 3:0:+96M -t 3:8300 -c 3:persistence "$OUT/vyos.raw" >/dev/null
  dd if="$T/esp" of="$OUT/vyos.raw" bs=1M seek=2 conv=notrunc,sparse status=none
  dd if="$T/p3" of="$OUT/vyos.raw" bs=1M seek=50 conv=notrunc,sparse status=none
  dd if=$MBR of="$OUT/vyos.raw" bs=440 count=1 conv=notrunc status=none
  ;;
esac
