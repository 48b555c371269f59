#!/usr/bin/env bash
# docs.sh DIR: copy the documentation to DIR, and the other files to which its links lead. The compose file and the chart name the
# image of a clone there; manifests.sh writes those of a release.
set -euo pipefail
[ $# = 1 ] || { echo "usage: docs.sh DIR" >&2; exit 2; }
mkdir -p "$1"
DIR=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
install -D -m 644 -t "$DIR/docs" docs/*.{md,png}
# Keys and passwords in deploy/genesis are examples.
find CONTRIBUTING.md deploy/agentos/README.md deploy/compose.yaml deploy/genesis deploy/kubernetes deploy/monitoring -type f ! -name '*.go' -exec install -D -m 644 {} "$DIR/{}" \;
