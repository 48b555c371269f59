package docs_test

import (
	"bytes"
	"fmt"
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
	securityRow  = regexp.MustCompile(`(?m)^\| (S[0-9]+) \|(.*)\|$`)
	securityTest = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")
)

// TestSecurityNamesTestsThatExist holds the table of security.md against the
// tests: each exists, and carries the number in its name, its comment or its
// body.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	text := map[string]string{}
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
				text[fn.Name.Name] += string(bytes.TrimSpace(body))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := securityRow.FindAllStringSubmatch(read(t, "security.md"), -1)
	seen := map[string]bool{}
	for _, row := range rows {
		number, cells := row[1], strings.Split(row[2], "|")
		if seen[number] || len(cells) != 3 {
			t.Errorf("%s: twice, or not of three cells", number)
		}
		seen[number] = true
		tests := securityTest.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(tests) == 0 {
			t.Errorf("%s names no test", number)
		}
		carries := regexp.MustCompile(number + `([^0-9]|$)`)
		for _, m := range tests {
			body, ok := text[m[1]]
			switch {
			case !ok:
				t.Errorf("%s: there is no test %s", number, m[1])
			case !carries.MatchString(body):
				t.Errorf("%s does not carry the number %s", m[1], number)
			}
		}
	}
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 28, 29, 30, 31, 32, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50} {
		if number := fmt.Sprintf("S%d", n); !seen[number] {
			t.Errorf("%s has no row", number)
		}
	}
}
