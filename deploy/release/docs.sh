#!/usr/bin/env bash
# docs.sh DIR: copy the documentation to DIR, and the files of deploy/monitoring to where the links of monitoring.md lead. Links of other
# pages to the rest of deploy/ lead nowhere in the copy.
set -euo pipefail
[ $# = 1 ] || { echo "usage: docs.sh DIR" >&2; exit 2; }
mkdir -p "$1"
DIR=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
install -D -m 644 -t "$DIR/docs" docs/*.{md,png}
install -D -m 644 -t "$DIR/deploy/monitoring" deploy/monitoring/*
