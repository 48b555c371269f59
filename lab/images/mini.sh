#!/usr/bin/env bash
# mini.sh OUT.raw PKG : the lab's small operating system, a Debian kernel and busybox, that boots in seconds.
#
# When up it takes an address by DHCP, looks for its seed and prints one line on the serial console:
#   LAB-MINI-BOOTED fw=bios|efi ip=… root=… instance-id=… hostname=… seed=root|cidata|url|ec2|none
# and, for a seed in its root, LAB-MINI-USER-DATA with the last line of the user-data;
# and when the seed's vendor-data or user-data has a phone_home URL, it posts instance_id and hostname there, as cloud-init
# does, again and again until it gets an answer of 200 to 299, and says LAB-MINI-PHONED-HOME.
# The seed is the folder of NoCloud in its root, or a filesystem labelled CIDATA, or the NoCloud tree at the URL in
# /etc/ingot/metadata-url. Its root is the filesystem with the label that root=LABEL= of the kernel command line gives, or labroot.
# PKG is the lab's folder of unpacked packages.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$1 PKG=$2
TREE=$PKG/kernel BB=$PKG/busybox/bin/busybox
T=$(mktemp -d "$(dirname "$OUT")/mini.XXXXXX"); trap 'rm -rf "$T"' EXIT
ver=$(basename "$TREE"/lib/modules/*)

# --- initramfs: load the modules of disks and network cards, mount the root, switch to it
I=$T/initramfs
mkdir -p "$I"/{proc,sys,dev,mnt,bin,lib/mods}
cp "$BB" "$I/bin/busybox"; ln -s busybox "$I/bin/sh"
mkdir -p "$T/depmod/lib"; cp -as "$TREE/lib/modules" "$T/depmod/lib/"; depmod -b "$T/depmod" "$ver"
: > "$I/lib/modules.order"
for m in virtio_pci virtio_blk virtio_net virtio_rng nvme sd_mod ahci e1000 e1000e ext4 vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8; do
  # "insmod FILE" in the order of loading; built-in modules give no such line
  modprobe -d "$T/depmod" -S "$ver" --show-depends "$m" | awk '$1=="insmod"{print $2}' | while read -r f; do
    b=$(basename "$f")
    grep -qx "$b" "$I/lib/modules.order" || { echo "$b" >> "$I/lib/modules.order"; cp -L "$f" "$I/lib/mods/$b"; }
  done
done
cat > "$I/init" <<'E'
#!/bin/sh
export PATH=/bin; b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
while read -r m; do $b insmod /lib/mods/$m 2>/dev/null; done < /lib/modules.order
label=labroot
for w in $($b cat /proc/cmdline); do case $w in root=LABEL=*) label=${w#root=LABEL=};; esac; done
i=0; while [ $i -lt 200 ]; do d=$($b findfs LABEL=$label 2>/dev/null) && break; i=$((i+1)); $b usleep 50000; done
$b mount -t ext4 -o ro "$d" /mnt && exec $b switch_root /mnt /sbin/init
echo "LAB-MINI-FAILED no root filesystem"; exec $b sh
E
chmod +x "$I/init"
(cd "$I" && find . -print0 | LC_ALL=C sort -z | cpio --null -o -H newc --owner=0:0 --reproducible --quiet) | gzip -9n > "$T/initrd.gz"

# --- the root filesystem
R=$T/root
mkdir -p "$R"/{bin,sbin,etc/ingot,proc,sys,dev,tmp,run,var,mnt,boot,root,usr/share/udhcpc}
cp "$BB" "$R/bin/busybox"; ln -s busybox "$R/bin/sh"; ln -s ../bin/busybox "$R/sbin/init"
cp "$TREE"/boot/vmlinuz-* "$R/boot/vmlinuz"; cp "$T/initrd.gz" "$R/boot/initrd.gz"   # for kexec
cat > "$R/etc/os-release" <<'E'
ID=lab-mini
NAME="Ingot lab mini"
PRETTY_NAME="Ingot lab mini"
VERSION_ID=1
E
cat > "$R/etc/inittab" <<'E'
::sysinit:/etc/rc
::once:/etc/phone-home
ttyS0::respawn:/bin/sh -l
::ctrlaltdel:/bin/busybox reboot -f
E
cat > "$R/usr/share/udhcpc/default.script" <<'E'
#!/bin/sh
b=/bin/busybox
case $1 in bound|renew)
  $b ip addr flush dev $interface; $b ip addr add $ip/${mask:-24} dev $interface
  for r in $router; do $b ip route add default via $r; done
  # clients of RFC 3442 take option 121 instead of the router; the link-local metadata address comes this way
  set -- $staticroutes; while [ $# -ge 2 ]; do $b ip route add $1 via $2 2>/dev/null; shift 2; done
  echo "$hostname" > /run/dhcp-hostname;;
esac
E
cat > "$R/etc/http" <<'E'
trap '' PIPE # a refused connection must not end the script
# http METHOD URL [BODY] : the answer with its header on standard output. (busybox-static's wget ends with a segmentation
# fault here; its nc does not.)
http() {
  _rest=${2#http://}; _hostport=${_rest%%/*}; _path=${_rest#"$_hostport"}; _path=${_path:-/}
  _host=${_hostport%%:*}; _port=${_hostport##*:}; [ "$_port" = "$_hostport" ] && _port=80
  # The writing side stays open until the answer is there: a server that sees it closed takes the client for gone.
  _pipe=/tmp/http.$$; /bin/busybox rm -f $_pipe; /bin/busybox mkfifo $_pipe
  /bin/busybox timeout 10 /bin/busybox nc "$_host" "$_port" < $_pipe 2>/dev/null & _nc=$!
  exec 3> $_pipe
  printf '%s %s HTTP/1.0\r\nHost: %s\r\nUser-Agent: lab-mini\r\nConnection: close\r\n' "$1" "$_path" "$_hostport" >&3
  [ -z "$3" ] || printf 'Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %s\r\n' "${#3}" >&3
  printf '\r\n%s' "$3" >&3
  wait $_nc; exec 3>&-
}
http_ok() { /bin/busybox head -n 1 "$1" | /bin/busybox grep -q '^HTTP/1.. 2'; }
http_body() { /bin/busybox sed '1,/^\r*$/d' "$1"; }
E
cat > "$R/etc/rc" <<'E'
#!/bin/sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev; $b mount -t tmpfs tmp /tmp; $b mount -t tmpfs run /run
. /etc/http
mkdir() { $b mkdir "$@"; }
mkdir -p /run/seed /run/cidata
$b ip link set lo up
for n in /sys/class/net/*; do n=${n##*/}; [ $n = lo ] || { ifn=$n; break; }; done
$b ip link set $ifn up
$b udhcpc -q -n -t 5 -T 1 -i $ifn -s /usr/share/udhcpc/default.script >/run/dhcp.log 2>&1

# the seed: in the root first, then a CIDATA volume, then a URL that was written into the image; EC2's address gives an
# instance id at least
seed=none
if $b cp /var/lib/cloud/seed/nocloud/* /run/seed/ 2>/dev/null; then seed=root; fi
for label in CIDATA cidata; do
  [ $seed = none ] || break
  dev=$($b findfs LABEL=$label 2>/dev/null) || continue
  $b mount -t vfat -o ro "$dev" /run/cidata || continue
  $b cp /run/cidata/* /run/seed/ 2>/dev/null; seed=cidata; break
done
if [ $seed = none ] && [ -s /etc/ingot/metadata-url ]; then
  seed=url
  url=$($b tr -d ' \r\n' < /etc/ingot/metadata-url); url=${url%/}
  # The server may be away for a moment: ask for the first file, which must be there, a few times.
  for try in 1 2 3 4 5; do
    http GET "$url/meta-data" '' > /tmp/answer; http_ok /tmp/answer && break
    $b sleep 2
  done
  for f in meta-data user-data vendor-data; do
    http GET "$url/$f" '' > /tmp/answer && http_ok /tmp/answer && http_body /tmp/answer > /run/seed/$f
  done
fi
field() { $b awk -v k="$1" '{gsub(/":/,"\": "); gsub(/["{}\r]/,""); gsub(/,/," ")} {for(i=1;i<NF;i++) if($i==k":"){print $(i+1); exit}}' /run/seed/meta-data 2>/dev/null; }
id=$(field instance-id); host=$(field local-hostname); [ -n "$host" ] || host=$(field hostname)
if [ $seed = none ]; then
  # Route and server are there only when Ingot answered; without a route this fails at once.
  http GET http://169.254.169.254/2009-04-04/meta-data/instance-id '' > /tmp/answer
  if http_ok /tmp/answer; then id=$(http_body /tmp/answer); seed=ec2; fi
fi
[ -n "$host" ] || host=$($b cat /run/dhcp-hostname 2>/dev/null)
[ -z "$host" ] || $b hostname "$host"
echo "$id" > /run/instance-id; echo "$ifn" > /run/interface
fw=bios; [ -d /sys/firmware/efi ] && fw=efi
label=labroot
for w in $($b cat /proc/cmdline); do case $w in root=LABEL=*) label=${w#root=LABEL=};; esac; done
dev=$($b findfs LABEL=$label)
ip=$($b ip -4 -o addr show $ifn | $b awk '{print $4; exit}')
echo "LAB-MINI-BOOTED fw=$fw ip=${ip:-none} root=$dev instance-id=${id:-none} hostname=$($b hostname) seed=$seed up=$($b cut -d' ' -f1 /proc/uptime)"
[ $seed != root ] || echo "LAB-MINI-USER-DATA $($b tail -n 1 /run/seed/user-data)"
E
cat > "$R/etc/phone-home" <<'E'
#!/bin/sh
b=/bin/busybox; . /etc/http
id=$($b cat /run/instance-id); ifn=$($b cat /run/interface)
for f in vendor-data user-data; do
  [ -s /run/seed/$f ] || continue
  # the first URL after the word phone_home, in YAML's block or flow form, or JSON
  url=$($b sed -n '/phone_home/,$p' /run/seed/$f | $b tr -d '\r' | $b grep -o "http://[^\"' ,}]*" | $b head -n 1)
  [ -z "$url" ] || break
done
[ -n "$url" ] || exit 0
url=$(echo "$url" | $b sed "s|\$INSTANCE_ID|$id|")
try=0
while [ $try -lt 150 ]; do
  try=$((try+1))
  [ -n "$($b ip -4 -o addr show $ifn)" ] || $b udhcpc -q -n -t 3 -T 1 -i $ifn -s /usr/share/udhcpc/default.script >>/run/dhcp.log 2>&1
  http POST "$url" "instance_id=$id&hostname=$($b hostname)&fqdn=$($b hostname)" > /tmp/phone
  if http_ok /tmp/phone; then echo "LAB-MINI-PHONED-HOME try=$try"; exit 0; fi
  echo "LAB-MINI-PHONE-HOME-AGAIN try=$try answer=$($b head -n 1 /tmp/phone | $b tr -d '\r')"
  $b sleep 2
done
E
chmod +x "$R/etc/rc" "$R/etc/phone-home" "$R/usr/share/udhcpc/default.script"
"$HERE/mkimage.sh" "$OUT" "$R" "$TREE"/boot/vmlinuz-* "$T/initrd.gz" 40 "quiet panic=-1" "$PKG"
