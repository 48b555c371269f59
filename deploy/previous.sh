#!/usr/bin/env bash
# Builds both programs of the commit before this one into the folder $1. The
# upgrade test starts its runs on them and finishes them on today's.
# With uncommitted changes, "the commit before" is the last commit. A clone
# without history has none: then it is this very commit, and that is said.
set -euo pipefail
out=$1
commit=HEAD
git diff --quiet HEAD -- '*.go' go.mod go.sum && commit=HEAD^
if ! commit=$(git rev-parse --verify --quiet "$commit^{commit}"); then
  echo "deploy/previous.sh: this clone has no commit before HEAD; the upgrade is one to the same commit" >&2
  commit=$(git rev-parse HEAD)
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
