package docs_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Words of all pages and of the README, and lines of the README. They may only fall, but for docs/commands.md, which is
// made from the commands: 2,400 words.
const (
	maxWords       = 65400
	maxReadmeWords = 900
	maxReadmeLines = 120
)

// TestPagesAreShort counts words as wc does, code and generated parts included.
func TestPagesAreShort(t *testing.T) {
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := read(t, "../README.md")
	words := len(strings.Fields(readme))
	if words > maxReadmeWords {
		t.Errorf("README.md has %d words; the limit is %d", words, maxReadmeWords)
	}
	if lines := strings.Count(readme, "\n"); lines > maxReadmeLines {
		t.Errorf("README.md has %d lines; the limit is %d", lines, maxReadmeLines)
	}
	for _, file := range files {
		words += len(strings.Fields(read(t, file)))
	}
	if words > maxWords {
		t.Errorf("README.md and docs have %d words; the limit is %d: shorten another page", words, maxWords)
	}
}

// twoSentences finds an end of a sentence within a cell.
var twoSentences = regexp.MustCompile(`[.?!] [A-Z]`)

// TestCellsAreOneSentence: what needs two sentences is prose, not a cell of a table.
func TestCellsAreOneSentence(t *testing.T) {
	for _, file := range []string{"security.md", "architecture.md"} {
		for i, line := range strings.Split(fence.ReplaceAllStringFunc(read(t, file), blankLines), "\n") {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			for cell := range strings.SplitSeq(line, "|") {
				if twoSentences.MatchString(cell) || len(cell) > 200 {
					t.Errorf("%s:%d: write %q as prose", file, i+1, strings.TrimSpace(cell))
				}
			}
		}
	}
}

// blankLines returns as many line ends as text has.
func blankLines(text string) string { return strings.Repeat("\n", strings.Count(text, "\n")) }
