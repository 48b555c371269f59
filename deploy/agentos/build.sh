#!/usr/bin/env bash
# build.sh OUTDIR AGENT [KERNELTREE]: make the in-memory system that Ingot boots machines into.
#
#   OUTDIR      gets vmlinuz, initramfs (cpio, zstd), runtime.tar.zst, contents.txt, which lists what is in the initramfs, and inputs.txt
#   AGENT       the worker-agent, built with CGO_ENABLED=0; it becomes /init
#   KERNELTREE  an unpacked Debian linux-image package (apt-get download linux-image-amd64's dependency; dpkg -x);
#               default: the one that deploy/deps.sh unpacks
#
# The modules of deploy/agentos/modules.txt go in, with what they need, and the programs that rootio and syslinux run (mdadm, lvm, mkfs, extlinux)
# with their libraries. runtime.tar.zst is what agents fetch before their first container: crun with its libraries. Environment:
#
#   BUSYBOX     a static busybox; it becomes /bin/sh of a rescue boot (ingot.rescue=1). Default: none, no shell
#   CA_BUNDLE   certificates for image servers with https. Default: the build host's, if it has some; empty = none
#   CRUN        an unpacked tree with the package crun; default: the one that deploy/deps.sh unpacks, or else the build host
#   PROGRAMS    an unpacked tree with the packages mdadm, lvm2, extlinux and syslinux-common; default: the one that deploy/deps.sh unpacks. What it lacks
#               is taken from the build host
#   ZSTD_LEVEL  default 12, in seconds; 19 saves 2 MB more and takes a minute
#
# The same inputs give the same bytes: names are sorted, times are 0, owner is root.
set -euo pipefail
export LC_ALL=C
die() { echo "agentos: $*" >&2; exit 1; }
[ $# = 2 ] || [ $# = 3 ] || die "usage: build.sh OUTDIR AGENT [KERNELTREE]"
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$1 AGENT=$2 TREE=${3:-${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab/pkg/kernel}
[ -x "$AGENT" ] || die "$AGENT: no program is there"
! grep -aq /ld-linux "$AGENT" || die "$AGENT is not static: build it with CGO_ENABLED=0"
for tool in depmod cpio zstd awk; do
  PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || die "$tool is missing: apt-get install kmod cpio zstd gawk"
done
PATH=$PATH:/usr/sbin:/sbin
kernels=("$TREE"/boot/vmlinuz-*)
[ ${#kernels[@]} = 1 ] && [ -r "${kernels[0]}" ] || die "$TREE/boot: want one vmlinuz-VERSION"
KERNEL=${kernels[0]}
VERSION=${KERNEL##*/vmlinuz-}
MODULES=$(cd "$TREE" && echo lib/modules/"$VERSION")
[ -d "$TREE/$MODULES" ] || MODULES=usr/$MODULES # merged /usr of Debian 13
[ -d "$TREE/$MODULES" ] || die "$TREE: no modules of $VERSION"

CA_BUNDLE=${CA_BUNDLE-/etc/ssl/certs/ca-certificates.crt}
[ -r "$CA_BUNDLE" ] || CA_BUNDLE=

# The programs, "FILE NAME" in each line: first those themselves, then the libraries that the build host's loader finds for them.
PROGRAMS=${PROGRAMS-${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab/pkg/programs}
programs=()
for name in mdadm lvm mke2fs mkfs.xfs mkfs.fat mkswap extlinux; do
  file=
  for dir in "$PROGRAMS"/{usr/sbin,sbin,usr/bin} /usr/sbin /sbin /usr/bin; do [ -n "$file" ] || [ ! -x "$dir/$name" ] || file=$dir/$name; done
  [ -n "$file" ] || die "$name is missing: deploy/deps.sh demo"
  programs+=("$file")
done
# list_libraries TREE PROGRAM...: the libraries of programs, from TREE if they are there.
list_libraries() {
  local tree=$1 found; shift
  found=$(LD_LIBRARY_PATH=$tree/lib/x86_64-linux-gnu:$tree/usr/lib/x86_64-linux-gnu ldd "$@") || die "ldd fails for $*"
  ! grep 'not found' <<< "$found" >&2 || die "libraries are missing: deploy/deps.sh demo"
  awk '$2 == "=>" {print $3} $1 ~ /^\/.*ld-linux/ {print $1}' <<< "$found" | sort -u
}
libraries=$(list_libraries "$PROGRAMS" "${programs[@]}")

CRUN=${CRUN-${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab/pkg/crun}
crun=$CRUN/usr/bin/crun
[ -x "$crun" ] || crun=/usr/bin/crun
[ -x "$crun" ] || die "crun is missing: deploy/deps.sh demo"
crun_libraries=$(list_libraries "$CRUN" "$crun")

boot=
for dir in "$PROGRAMS" ""; do [ -n "$boot" ] || [ ! -r "$dir/usr/lib/syslinux/mbr/gptmbr.bin" ] || boot=$dir/usr/lib/syslinux/mbr; done
[ -n "$boot" ] || die "gptmbr.bin is missing: deploy/deps.sh demo"
boot=("$boot"/{mbr,gptmbr}.bin)

# OUTDIR is left alone if it was made from the same inputs. The digest of the kernel covers its modules.
inputs=$(sha256sum "$HERE"/{build.sh,modules.txt} "$AGENT" "$KERNEL" "${programs[@]}" "${boot[@]}" $libraries "$crun" $crun_libraries ${CA_BUNDLE:+"$CA_BUNDLE"} ${BUSYBOX:+"$BUSYBOX"}; echo "level ${ZSTD_LEVEL:-12}")
[ "$(cat "$OUT/inputs.txt" 2>/dev/null)" != "$inputs" ] || { echo "agentos: $OUT is up to date"; exit 0; }

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
R=$work/root
mkdir -p "$OUT" "$R"/{proc,sys,dev,run,tmp,etc,bin,sbin,"lib/modules/$VERSION"}

# depmod writes into a tree of its own: the kernel tree is not ours.
mkdir -p "$work/all/lib/modules"
cp -rs "$(cd "$TREE/$MODULES" && pwd)" "$work/all/lib/modules/$VERSION"
depmod -b "$work/all" "$VERSION"

# The wanted modules and all that they need: dependencies and soft ones (a file system needs some crc32c).
awk -v OFS='\t' '
  function name(f) { sub(/.*\//, "", f); sub(/\.ko.*/, "", f); gsub(/-/, "_", f); return f }
  function want(n,   i, k, f) {
    if (n in done) return
    done[n] = 1
    if (!(n in path)) { if (!(n in builtin)) missing = missing " " n; return }
    print path[n]
    k = split(deps[n], f, " "); for (i = 1; i <= k; i++) want(name(f[i]))
    k = split(soft[n], f, " "); for (i = 1; i <= k; i++) if (f[i] in path) want(f[i])
  }
  FILENAME ~ /modules\.dep$/     { f = $1; sub(/:$/, "", f); n = name(f); path[n] = f; $1 = ""; deps[n] = $0; next }
  FILENAME ~ /modules\.builtin$/ { builtin[name($1)] = 1; next }
  FILENAME ~ /modules\.softdep$/ { if ($1 != "softdep") next; n = $2; gsub(/-/, "_", n)
                                   for (i = 3; i <= NF; i++) if ($i !~ /:$/) { s = $i; gsub(/-/, "_", s); soft[n] = soft[n] " " s }; next }
  { sub(/#.*/, ""); for (i = 1; i <= NF; i++) { n = $i; gsub(/-/, "_", n); wanted[++count] = n } }
  END { for (i = 1; i <= count; i++) want(wanted[i])
        if (missing != "") print "agentos: this kernel has no" missing > "/dev/stderr" }
' "$work/all/lib/modules/$VERSION"/modules.{dep,builtin,softdep} "$HERE/modules.txt" | sort -u > "$work/list"
while read -r f; do
  mkdir -p "$R/lib/modules/$VERSION/${f%/*}"
  case $f in
    *.ko) cp "$TREE/$MODULES/$f" "$R/lib/modules/$VERSION/$f" ;;
    # Packed modules are unpacked: the agent loads plain ones, and the whole is packed better.
    *.ko.xz) xz -dc "$TREE/$MODULES/$f" > "$R/lib/modules/$VERSION/${f%.xz}" ;;
    *.ko.zst) zstd -qdc "$TREE/$MODULES/$f" > "$R/lib/modules/$VERSION/${f%.zst}" ;;
    *) die "$f: how is that packed?" ;;
  esac
done < "$work/list"
cp "$TREE/$MODULES"/modules.{builtin,builtin.modinfo,order} "$R/lib/modules/$VERSION/"
depmod -b "$R" "$VERSION"
# Of depmod's tables the agent reads three.
find "$R/lib/modules/$VERSION" -maxdepth 1 -type f ! -name modules.dep ! -name modules.alias ! -name modules.softdep -delete

install -m755 "$AGENT" "$R/init"
ln -s /init "$R/sbin/modprobe"
: > "$R/etc/resolv.conf"
install -m755 "${programs[@]}" "$R/sbin/"
install -D -m644 -t "$R/usr/lib/syslinux/mbr" "${boot[@]}"
install_libraries() { # ROOT FILE...
  local root=$1 file; shift
  for file in "$@"; do
    case $file in
      */ld-linux*) install -Dm755 "$file" "$root$file" ;; # the programs contain its path
      *) install -Dm644 -t "$root/lib/x86_64-linux-gnu" "$file" ;;
    esac
  done
}
install_libraries "$R" $libraries
install -D -m755 -t "$work/runtime/bin" "$crun"
install_libraries "$work/runtime" $crun_libraries
if [ -n "${BUSYBOX:-}" ]; then
  install -m755 "$BUSYBOX" "$R/bin/busybox"
  for name in $("$BUSYBOX" --list); do [ "$name" = busybox ] || ln -s busybox "$R/bin/$name"; done
fi
if [ -n "$CA_BUNDLE" ]; then
  mkdir -p "$R/etc/ssl/certs"
  install -m644 "$CA_BUNDLE" "$R/etc/ssl/certs/ca-certificates.crt"
fi

chmod -R u=rwX,go=rX "$R"
find "$R" -exec touch -hd @0 {} +
(cd "$R" && find . -print0 | sort -z | cpio --null -o -H newc --owner=0:0 --reproducible --quiet) > "$work/cpio"
zstd -q -f -"${ZSTD_LEVEL:-12}" -T0 "$work/cpio" -o "$work/initramfs"
tar -C "$work/runtime" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -cf - bin lib lib64 |
  zstd -q -19 > "$work/runtime.tar.zst" # 19 takes two seconds here
cp "$KERNEL" "$work/vmlinuz"
chmod 644 "$work/vmlinuz" "$work/initramfs" "$work/runtime.tar.zst"
(cd "$R" && find . -type f -printf '%s %P\n' | sort -k2) > "$OUT/contents.txt"
mv "$work/vmlinuz" "$OUT/vmlinuz"
mv "$work/initramfs" "$OUT/initramfs"
mv "$work/runtime.tar.zst" "$OUT/runtime.tar.zst"
echo "$inputs" > "$OUT/inputs.txt"
mb() { awk -v n="$1" 'BEGIN { printf "%.1f MB", n / 1000000 }'; }
k=$(stat -c %s "$OUT/vmlinuz") i=$(stat -c %s "$OUT/initramfs")
echo "agentos: kernel $VERSION $(mb "$k"), initramfs $(mb "$i") ($(wc -l < "$work/list") modules, unpacked $(mb "$(stat -c %s "$work/cpio")")), together $(mb $((k + i))); container runtime $(mb "$(stat -c %s "$OUT/runtime.tar.zst")")"
