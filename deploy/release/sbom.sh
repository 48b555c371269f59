#!/usr/bin/env bash
# sbom.sh BIN VERSION SECONDS OUT: write what the programs in BIN, the agent's system, the loaders and the container image consist
# of, in CycloneDX's form: Go modules as the programs name them, and Debian packages: those that deploy/deps.sh unpacked, and those
# of this host from which files are taken.
set -euo pipefail
cd "$(dirname "$0")/../.."
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab/pkg
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# owners FILE...: the packages of this host that the files are of, as names of .deb files. With /usr merged, dpkg knows a file by
# either of its paths. The list of certificates is made on the host.
owners() {
  local file found packages=(ca-certificates)
  for file; do
    found=$(dpkg-query -S "$file" "${file#/usr}" "/usr$file" 2>/dev/null | sed -n '/^diversion /d; s/: .*//p') || true
    [ -n "$found" ] || { echo "sbom: $file is of no package" >&2; return 1; }
    packages+=("$found")
  done
  # shellcheck disable=SC2016 # the fields are dpkg's
  printf '%s\n' "${packages[@]}" | sort -u | xargs dpkg-query -W -f '${Package}_${Version}_${Architecture}.deb\n' | sed 's/:/%3a/' | sort -u
}
mapfile -t files < <(awk '$2 ~ "^/(usr/|lib)" {print $2}' "$1/agentos/inputs.txt"
  echo /usr/bin/ipmitool; ldd /usr/bin/ipmitool "$1/ingot" | awk '$2 == "=>" {print $3} $1 ~ "^/.*ld-linux" {print $1}')
owners "${files[@]}" > "$work/host"

packages=(-packages "$work/host")
for name in kernel programs crun secureboot ipxe; do packages+=(-packages "$CACHE/$name/.packages"); done
shopt -s nullglob # a package is also made from programs without the clients
go run ./deploy/release sbom -version "$2" -seconds "$3" "${packages[@]}" -out "$4" "$1/ingot" "$1/worker-agent" "$1"/client/*
