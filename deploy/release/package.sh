#!/usr/bin/env bash
# package.sh BIN VERSION SECONDS OUT: make a Debian package in the folder OUT.
#
#   BIN      ingot, worker-agent, agentos/, ipxe/: as "make build" or "make release" leaves them
#   VERSION  as version.sh prints it
#   SECONDS  the time of all files, in seconds since 1970
#
# The same files give the same bytes. It prints the path of the package.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 4 ] || { echo "usage: package.sh BIN VERSION SECONDS OUT" >&2; exit 2; }
BIN=$1 VERSION=$2 OUT=$4
export SOURCE_DATE_EPOCH=$3 LC_ALL=C TZ=UTC0
HERE=deploy/release/debian
NFPM=$PWD/.tools/nfpm
[ -x "$NFPM" ] || { echo "package.sh: .tools/nfpm is missing: make deps-release" >&2; exit 1; }

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
R=$work/root
# Debian's version: a pre-release sorts before its release, and only the last hyphen may stand before a revision.
debian=${VERSION/-/\~}
debian=${debian//-/.}

install -D -m 755 -t "$R/usr/bin" "$BIN/ingot"
install -D -m 755 -t "$R/usr/lib/ingot" "$BIN/worker-agent" # a simulated machine: worker-agent -help
install -D -m 644 -t "$R/usr/share/ingot" "$BIN"/agentos/{vmlinuz,initramfs,runtime.tar.zst}
install -D -m 644 -t "$R/usr/share/ingot/ipxe" "$BIN"/ipxe/*
install -D -m 644 -t "$R/usr/lib/systemd/system" "$HERE"/ingot.service "$HERE"/ingot-backup.{service,timer}
install -D -m 644 "$HERE/sysusers.conf" "$R/usr/lib/sysusers.d/ingot.conf"
install -D -m 644 -t "$R/usr/share/doc/ingot" "$HERE/copyright"
deploy/release/docs.sh "$R/usr/share/doc/ingot"

# Manual pages and completions of this tree; the list of modules is read from BIN.
go run ./deploy/release manual -version "$VERSION" -seconds "$SOURCE_DATE_EPOCH" "$work/manual"
install -D -m 644 -t "$R/usr/share/man/man1" "$work"/manual/*.1
gzip -9n "$R"/usr/share/man/man1/*
install -D -m 644 "$work/manual/bash" "$R/usr/share/bash-completion/completions/ingot"
install -D -m 644 "$work/manual/zsh" "$R/usr/share/zsh/vendor-completions/_ingot"
install -D -m 644 "$work/manual/fish" "$R/usr/share/fish/vendor_completions.d/ingot.fish"
deploy/release/sbom.sh "$BIN" "$VERSION" "$SOURCE_DATE_EPOCH" "$R/usr/share/doc/ingot/sbom.cdx.json"
find "$R" -type d -exec chmod 755 {} +
find "$R" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +

# The C library that the program was linked with may be newer than the one of its symbols: these decide.
libc=$(readelf -V "$BIN/ingot" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
for f in preinst postinst prerm postrm nfpm.yaml default; do
  sed "s/@VERSION@/$debian/; s/@LIBC@/${libc#GLIBC_}/" "$HERE/$f" > "$work/$f"
done
touch -d "@$SOURCE_DATE_EPOCH" "$work/default"
mkdir -p "$OUT"
deb=$(cd "$OUT" && pwd)/ingot_${debian}_amd64.deb
(cd "$work" && "$NFPM" package --packager deb --config nfpm.yaml --target "$deb") >&2
echo "$deb"
