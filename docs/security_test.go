package docs_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// securityProperty is a section of security.md: number, text, place and tests.
	securityProperty = regexp.MustCompile(
		`(?ms)^### (S[0-9]+) [^\n]+\n\n(.+?)\n\n\*Held in:\* (.+?)\n\n\*Tests:\* (.+?)(?:\n\n|\n?\z)`)
	securityHeading = regexp.MustCompile(`(?m)^### (S[0-9]+)`)
	securityTest    = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")

	securityNumber = regexp.MustCompile(`\bS[0-9]+\b`)
	nameNumber     = regexp.MustCompile(`S[0-9]+`)
)

// TestSecurityNamesTestsThatExist compares the properties in security.md with the
// tests: each test exists, and carries the number in its name, its comment or its
// body. Each number that a test carries has a section.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	sources := map[string]string{}
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && file != "..") {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		src := []byte(read(t, file))
		f, err := parser.ParseFile(set, file, src, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				begin := fn.Pos()
				if fn.Doc != nil {
					begin = fn.Doc.Pos()
				}
				body := src[set.Position(begin).Offset:set.Position(fn.End()).Offset]
				sources[fn.Name.Name] += string(bytes.TrimSpace(body))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	page := read(t, "security.md")
	properties := securityProperty.FindAllStringSubmatch(page, -1)
	if headings := securityHeading.FindAllString(page, -1); len(properties) != len(headings) {
		t.Errorf("security.md: %d of %d properties have a text, a place and tests", len(properties), len(headings))
	}
	seen := map[string]bool{}
	for _, property := range properties {
		number, text := property[1], property[2]
		if seen[number] || strings.Contains(text, "\n#") {
			t.Errorf("%s: twice, or without a text, a place or tests", number)
		}
		seen[number] = true
		tests := securityTest.FindAllStringSubmatch(property[4], -1)
		if len(tests) == 0 {
			t.Errorf("%s names no test", number)
		}
		carries := regexp.MustCompile(number + `([^0-9]|$)`)
		for _, m := range tests {
			body, ok := sources[m[1]]
			switch {
			case !ok:
				t.Errorf("%s: there is no test %s", number, m[1])
			case !carries.MatchString(body):
				t.Errorf("%s does not carry the number %s", m[1], number)
			}
		}
	}
	for name, body := range sources {
		numbers := append(securityNumber.FindAllString(body, -1), nameNumber.FindAllString(name, -1)...)
		for _, number := range numbers {
			if !seen[number] {
				t.Errorf("%s has no section, and %s carries it", number, name)
			}
		}
	}
}
