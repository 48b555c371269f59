#!/usr/bin/env bash
# Builds both programs of the baseline commit, which e2e/baseline names, into the
# folder $1. The upgrade test starts its runs on them and finishes them on today's.
# The word HEAD means the last commit: then nothing is promised to an older one.
set -euo pipefail
out=$1
baseline=$(<e2e/baseline)
# A shallow clone may lack the commit.
git cat-file -e "$baseline^{commit}" 2>/dev/null || git fetch -q --unshallow || true
if ! commit=$(git rev-parse --verify --quiet "$baseline^{commit}"); then
  echo "deploy/previous.sh: this clone lacks the baseline commit $baseline (e2e/baseline): fetch the history of its branch with: git fetch --unshallow" >&2
  exit 1
fi
mkdir -p "$out" && out=$(cd "$out" && pwd)
[[ -x $out/ingot && -x $out/worker-agent && $(cat "$out/commit" 2>/dev/null) == "$commit" ]] && exit 0
src=$out/src
rm -rf "$src" && mkdir -p "$src"
git archive "$commit" | tar -x -C "$src"
flags="-s -w -X main.version=$(git describe --tags --always "$commit")"
cd "$src"
go build -ldflags "$flags" -o "$out/" ./cmd/ingot
CGO_ENABLED=0 go build -ldflags "$flags" -o "$out/" ./cmd/worker-agent
echo "$commit" > "$out/commit"
rm -rf "$src"
