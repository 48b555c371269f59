#!/usr/bin/env bash
# vulncheck.sh PROGRAM...: report known vulnerabilities of the Go modules in these programs.
#
# It fails if there are any. Ingot's programs have no symbol table (-ldflags -s), so every vulnerability of a module counts, also one in
# code that is not linked; in a program with symbols, only vulnerable functions that are linked count. Where the database does not
# answer, it says that nothing was checked, and succeeds. VULNDB is the URL of the database, by default Go's own.
set -euo pipefail
VULNDB=${VULNDB:-https://vuln.go.dev}
GOVULNCHECK=${GOVULNCHECK:-$(dirname "${BASH_SOURCE[0]}")/../.tools/govulncheck}

if ! curl --silent --fail --location --max-time 20 --output /dev/null "$VULNDB/index/db.json"; then
  echo "vulncheck: NOT DONE: $VULNDB does not answer"
  exit 0
fi

rc=0
for program in "$@"; do
  echo "vulncheck: $program"
  "$GOVULNCHECK" -db "$VULNDB" -mode=binary "$program" || rc=$?
done
exit $rc
