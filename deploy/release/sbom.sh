#!/usr/bin/env bash
# sbom.sh BIN VERSION SECONDS OUT: write what the programs in BIN, the agent's system and the loaders consist of, in CycloneDX's
# form: Go modules as the programs name them, and the Debian packages that deploy/deps.sh unpacked for the rest.
set -euo pipefail
cd "$(dirname "$0")/../.."
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/ingot-lab/pkg
packages=()
for name in kernel programs secureboot ipxe; do packages+=(-packages "$CACHE/$name/.packages"); done
go run ./deploy/release sbom -version "$2" -seconds "$3" "${packages[@]}" -out "$4" "$1/ingot" "$1/worker-agent"
