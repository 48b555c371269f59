package ingot

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unwantedWords are whole words, in any case, that readers have to decode; CONTRIBUTING.md says what to write instead.
var unwantedWords = regexp.MustCompile(
	`(?i)\b(deeds?|whoever|anew|lament|inVain|in vain|beforehand|ballast|persons?|stands|meanwhile|for good|is right|that of|of which)\b`,
)

// isNo finds `X is no Y` and `X is none of …` in errors; "there is no X" and "is no longer" are plain English.
var isNo = regexp.MustCompile(`(\S+) is (no|none of) ([\w%"]+)`)

// allowedWords are lines, by file and part of the line, in which an unwanted word may stand.
var allowedWords = map[string][]string{
	"limits_test.go": {"deeds?|", `"person"`}, // the list itself

	// What an older database holds.
	"inventory/sqlite/migrations/0016_operator.sql": {"person"},
	"inventory/sqlite/schema_test.go":               {"person"},
}

// TestWords keeps the words of unwantedWords out of code, documentation, help and page.
func TestWords(t *testing.T) {
	kinds := []string{".go", ".md", ".sh", ".sql", ".ts", ".tsx", ".html", ".yaml", ".yml", ".txt"}
	walkFiles(t, func(path string) {
		if path != "Makefile" && !slices.Contains(kinds, filepath.Ext(path)) {
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			word := unwantedWords.FindString(line)
			allowed := func(part string) bool { return strings.Contains(line, part) }
			if word == "" || slices.ContainsFunc(allowedWords[path], allowed) {
				continue
			}
			t.Errorf("%s:%d: write %q in plain English", path, i+1, word)
		}
	})
	for _, f := range goFiles(t, false) {
		for _, text := range findIsNo(f) {
			t.Error(text)
		}
	}
}

// TestSize keeps files and functions of the product short enough to read.
func TestSize(t *testing.T) {
	for _, text := range oversizeFiles(productFiles(t)) {
		t.Error(text)
	}
}

// findIsNo returns where a string literal of f says `X is no Y`.
func findIsNo(f goFile) (found []string) {
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		for _, match := range isNo.FindAllStringSubmatch(literal.Value, -1) {
			subject, object := strings.Trim(match[1], "\"`("), strings.Trim(match[3], "\"")
			if !strings.EqualFold(subject, "there") && object != "longer" {
				found = append(found, fmt.Sprintf("%s: %q: write `invalid %s`, or `must be …`",
					f.set.Position(literal.Pos()), match[0], object))
			}
		}
		return true
	})
	return found
}
