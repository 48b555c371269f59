#!/usr/bin/env bash
# vyos-root.sh ROOT PKG : what the stand-in for VyOS has in its root file system besides its configuration: a shell, and the DHCP
# relay of ISC with its libraries.
set -euo pipefail
ROOT=$1 PKG=$2
mkdir -p "$ROOT"/{bin,usr/sbin,lib64,var/lib/dhcp,root}
# Links are made when it boots: who packs the file system cannot pack them.
cp "$PKG/busybox/bin/busybox" "$ROOT/bin/sh"
relay=$PKG/relay/usr/sbin/dhcrelay
install -m755 "$relay" "$ROOT/usr/sbin/dhcrelay"
# "NAME => FILE (ADDRESS)", and the loader's own line with nothing but its path
ldd "$relay" | awk '$2 == "=>" {print $3} $1 ~ /^\// {print $1}' | while read -r lib; do
  mkdir -p "$ROOT$(dirname "$lib")"
  cp -L "$lib" "$ROOT$lib"
done
