package ingot

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// goFile is a parsed Go file of this repository.
type goFile struct {
	path   string // from the root of the repository
	text   string
	syntax *ast.File
	set    *token.FileSet
}

// walkFiles calls visit for every file of the repository that is not built, downloaded or hidden.
func walkFiles(t *testing.T, visit func(path string)) {
	t.Helper()
	skip := map[string]bool{"node_modules": true, "bin": true, "dist": true}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (skip[entry.Name()] || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.Type().IsRegular():
			visit(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// goFiles returns the Go files, with tests or without.
func goFiles(t *testing.T, tests bool) (files []goFile) {
	t.Helper()
	walkFiles(t, func(path string) {
		if !strings.HasSuffix(path, ".go") || !tests && strings.HasSuffix(path, "_test.go") {
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := goFile{path: path, text: string(text), set: token.NewFileSet()}
		if f.syntax, err = parser.ParseFile(f.set, path, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	})
	return files
}

// productFiles returns the Go files that are part of the two programs and of the image builder: no tests, nothing that tests
// share, and not the lab.
func productFiles(t *testing.T) (files []goFile) {
	t.Helper()
	for _, f := range goFiles(t, false) {
		if !strings.HasPrefix(f.path, "lab/") && !strings.HasPrefix(f.path, "e2e/") &&
			!strings.HasPrefix(f.path, "bootsvc/tftp/tftptest/") &&
			!strings.HasPrefix(f.path, "worker-agent/disk/disktest/") &&
			!strings.HasPrefix(f.path, "worker-agent/disk/filesystest/") {
			files = append(files, f)
		}
	}
	return files
}

// lineCount counts lines by what is on them.
type lineCount struct{ code, comment, blank int }

func (c lineCount) total() int { return c.code + c.comment + c.blank }

func (c *lineCount) add(other lineCount) {
	c.code += other.code
	c.comment += other.comment
	c.blank += other.blank
}

// countLines counts a line with code and a comment as code.
func (f goFile) countLines() (count lineCount) {
	set := token.NewFileSet()
	file := set.AddFile(f.path, -1, len(f.text))
	var s scanner.Scanner
	s.Init(file, []byte(f.text), nil, 0) // 0: comments are skipped
	code := map[int]bool{}
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue // inserted by the scanner
		}
		for i := range strings.Count(literal, "\n") + 1 {
			code[file.Line(pos)+i] = true
		}
	}
	for i, line := range f.lines() {
		switch {
		case code[i+1]:
			count.code++
		case strings.TrimSpace(line) == "":
			count.blank++
		default:
			count.comment++
		}
	}
	return count
}

func (f goFile) lines() []string {
	return strings.Split(strings.TrimSuffix(f.text, "\n"), "\n")
}
