#!/usr/bin/env bash
# repeat.sh: make the release of the present commit twice, in two directories, the second time with an empty build cache, and compare
# (30 minutes on two cores).
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d); trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
sources=()
for n in one two; do
  # Names of different lengths: a path that enters a file changes its size as well.
  src=$work/$n-${n//?/x}
  git clone -q . "$src"
  cp -al .tools "$src/.tools"
  sources+=("$src")
done
make -C "${sources[0]}" --no-print-directory release
mkdir "$work/cache"
GOCACHE=$work/cache make -C "${sources[1]}" --no-print-directory release
diff -r "${sources[0]}/dist" "${sources[1]}/dist"
echo "both builds of $(git rev-parse --short HEAD) are equal"
