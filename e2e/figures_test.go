package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// figures are rows of a table in docs/performance.md.
type figures struct{ rows []string }

// add adds a row and logs it.
func (f *figures) add(t *testing.T, figure, format string, args ...any) {
	t.Helper()
	value := fmt.Sprintf(format, args...)
	t.Logf("%-50s %s", figure, value)
	f.rows = append(f.rows, fmt.Sprintf("| %s | %s |\n", figure, value))
}

// write replaces the part of docs/performance.md that begins with "written by" and the name of the test.
func (f *figures) write(t *testing.T) {
	t.Helper()
	head, _, tail := cutWritten(t, performancePage, t.Name())
	text := fmt.Sprintf("Commit %s, %s.\n\n| figure | value |\n|---|---|\n", commit(), time.Now().UTC().Format(time.DateOnly))
	require.NoError(t, os.WriteFile(performancePage, []byte(head+text+strings.Join(f.rows, "")+tail), 0o644))
}

const performancePage = "../docs/performance.md"

// cutWritten splits a page before and after the part that a test writes. Head and tail include the part's markers.
func cutWritten(t *testing.T, page, test string) (head, part, tail string) {
	t.Helper()
	begin, end := "<!-- begin: written by "+test+" -->\n", "<!-- end -->"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(text), begin)
	part, tail, found := strings.Cut(rest, end)
	require.True(t, ok && found, "the markers of %s are missing in %s", test, page)
	return head + begin, part, end + tail
}
