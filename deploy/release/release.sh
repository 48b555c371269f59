#!/usr/bin/env bash
# release.sh BIN OUT: make everything that is given out for the present commit.
#
#   BIN  gets the programs and boot files, built for release: -trimpath compiles everything again, the Temporal server among it
#   OUT  gets the tarball, the Debian package, the container image, the compose file, the Kubernetes manifests, the client-only
#        programs, the list of what is in them, and SHA256SUMS
#
# SIGN_KEY=FILE signs SHA256SUMS with a minisign key; INGOT_SIGN_PASSWORD is its password, if it has one. The same commit gives the
# same bytes on the same Debian release, with the same packages in the cache of deploy/deps.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 2 ] || { echo "usage: release.sh BIN OUT" >&2; exit 2; }
BIN=$1 OUT=$2
STAGE=deploy/stage.sh
[ -n "${DIRTY:-}" ] || [ -z "$(git status --porcelain)" ] ||
  { echo "release.sh: there are changes that are not committed, and a release is of a commit (DIRTY=1: do it nevertheless)" >&2; exit 1; }
read -r VERSION SECONDS_OF_COMMIT < <(deploy/release/version.sh)
export SOURCE_DATE_EPOCH=$SECONDS_OF_COMMIT LC_ALL=C TZ=UTC0
umask 022

build=(go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$VERSION" -o "$BIN/")
mkdir -p "$BIN"
$STAGE ingot "6 to 9 min; 20 s when repeated" "${build[@]}" ./cmd/ingot
$STAGE worker-agent "30 s; 5 s when repeated" env CGO_ENABLED=0 "${build[@]}" ./cmd/worker-agent
rm -rf "$BIN/client"
mkdir "$BIN/client"
for platform in {linux,darwin,windows}/{amd64,arm64}; do
  name=ingot-client-$VERSION-${platform/\//-}
  case $platform in windows/*) name+=.exe ;; esac
  $STAGE "client $platform" "1 to 2 min; 10 s when repeated" \
    env CGO_ENABLED=0 GOOS="${platform%/*}" GOARCH="${platform#*/}" "${build[@]}" -o "$BIN/client/$name" ./cmd/ingot-client
done
$STAGE agentos "10 s" deploy/agentos/build.sh "$BIN/agentos" "$BIN/worker-agent"
mkdir -p "$BIN/ipxe"
cp bin/ipxe/* "$BIN/ipxe/"

rm -rf "$OUT"
mkdir -p "$OUT"
install -m 755 -t "$OUT" "$BIN"/client/*
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# archive NAME: pack $work/NAME into $OUT/NAME.tar.gz.
archive() {
  tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -cf - "$1" |
    gzip -9n > "$OUT/$1.tar.gz"
}

# tarball: the programs find agentos/ and ipxe/ next to them.
tarball() {
  local name=ingot-$VERSION-linux-amd64
  deploy/release/sbom.sh "$BIN" "$VERSION" "$SOURCE_DATE_EPOCH" "$OUT/ingot-$VERSION.cdx.json"
  install -D -m 755 -t "$work/$name" "$BIN"/{ingot,worker-agent}
  install -D -m 644 -t "$work/$name/agentos" "$BIN"/agentos/{vmlinuz,initramfs,runtime.tar.zst}
  install -D -m 644 -t "$work/$name/ipxe" "$BIN"/ipxe/*
  go run ./deploy/release manual -version "$VERSION" -seconds "$SOURCE_DATE_EPOCH" "$work/manual"
  install -D -m 644 -t "$work/$name/man" "$work"/manual/*.1
  install -D -m 644 -t "$work/$name/completions" "$work"/manual/{bash,zsh,fish}
  deploy/release/docs.sh "$work/$name"
  install -m 644 LICENSE deploy/release/debian/ingot.service deploy/release/debian/ingot-backup.{service,timer} "$work/$name/"
  archive "$name"
}

# manifests: what runs this version of the image.
manifests() {
  deploy/release/manifests.sh "$VERSION" "$work"
  install -m 644 "$work/ingot-$VERSION.compose.yaml" "$OUT/"
  archive "ingot-$VERSION-kubernetes"
}

export -f archive tarball manifests
export BIN OUT VERSION work
$STAGE tarball "20 s" bash -euo pipefail -c tarball
$STAGE package "20 s" deploy/release/package.sh "$BIN" "$VERSION" "$SOURCE_DATE_EPOCH" "$OUT"
$STAGE image "20 s" go run ./deploy/image -bin "$BIN" -version "$VERSION" -name "ingot:$VERSION" -out "$OUT/ingot-$VERSION.oci.tar"
$STAGE manifests "1 s" bash -euo pipefail -c manifests

(cd "$OUT" && sha256sum -- * > "$work/SHA256SUMS")
install -m 644 "$work/SHA256SUMS" "$OUT/SHA256SUMS"
if [ -n "${SIGN_KEY:-}" ]; then
  go run ./deploy/release sign -key "$SIGN_KEY" -version "$VERSION" "$OUT/SHA256SUMS"
else
  echo "SHA256SUMS is not signed: SIGN_KEY=FILE names a minisign key"
fi
cat "$OUT/SHA256SUMS"
