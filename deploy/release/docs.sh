#!/usr/bin/env bash
# docs.sh DIR: copy the documentation to DIR, and what monitoring.md names to the place where its links find it.
set -euo pipefail
[ $# = 1 ] || { echo "usage: docs.sh DIR" >&2; exit 2; }
mkdir -p "$1"
DIR=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
install -D -m 644 -t "$DIR/docs" docs/*.{md,png}
install -D -m 644 -t "$DIR/deploy/monitoring" deploy/monitoring/*
