#!/usr/bin/env bash
# stage.sh NAME USUALLY COMMAND...: run COMMAND as one stage of several that may run side by side.
#
# It prints the stage's name and how long it usually takes, every 30 s that it is still running, and at the end how long it
# took. What COMMAND prints is shown only if it fails.
set -euo pipefail
name=$1 usually=$2; shift 2
log=$(mktemp)
timer=
trap '[ -z "$timer" ] || kill "$timer" 2>/dev/null || true; rm -f "$log"' EXIT
say() { printf '%-12s %s\n' "$name" "$*"; }

say "started: usually $usually"
(
  while sleep 30 >/dev/null 2>&1; do say "still running after $SECONDS s"; done
) &
timer=$!
"$@" > "$log" 2>&1 || { rc=$?; cat "$log" >&2; say "failed after $SECONDS s"; exit $rc; }
say "done in $SECONDS s"
