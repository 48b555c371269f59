package ingot

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	graphFile  = "docs/architecture.md"
	graphBegin = "<!-- import graph: \"make graph\" writes it -->\n"
	graphEnd   = "<!-- end of the import graph -->\n"
)

var writeGraph = flag.Bool("graph", false, `write the import graph into `+graphFile+` ("make graph")`)

// TestImportGraph: the drawing in docs/architecture.md shows the packages as they import each other now.
func TestImportGraph(t *testing.T) {
	text, err := os.ReadFile(graphFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(text, []byte(graphBegin))
	_, after, ok2 := bytes.Cut(rest, []byte(graphEnd))
	if !ok || !ok2 {
		t.Fatalf("%s lacks the lines %q and %q", graphFile, graphBegin, graphEnd)
	}

	drawing := graphBegin + drawImports(reduceImports(productImports(t))) + graphEnd
	want := slices.Concat(before, []byte(drawing), after)
	if bytes.Equal(text, want) {
		return
	}
	if !*writeGraph {
		t.Fatalf("the import graph in %s is out of date: run make graph", graphFile)
	}
	if err := os.WriteFile(graphFile, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// productImports returns, for each package folder, the folders of this module that it imports.
func productImports(t *testing.T) map[string]map[string]bool {
	t.Helper()
	imports := map[string]map[string]bool{}
	for _, f := range productFiles(t) {
		folder := filepath.Dir(f.path)
		if folder == "." || strings.HasPrefix(folder, "deploy/") {
			continue
		}
		if imports[folder] == nil {
			imports[folder] = map[string]bool{}
		}
		for _, spec := range f.syntax.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if inside, ok := strings.CutPrefix(path, module); ok {
				imports[folder][inside] = true
			}
		}
	}
	return imports
}

// reduceImports leaves out each arrow that follows from others: when a imports b and b imports c, a → c is not drawn.
func reduceImports(imports map[string]map[string]bool) map[string]map[string]bool {
	var reaches func(from, to string) bool
	reaches = func(from, to string) bool {
		for next := range imports[from] {
			if next == to || reaches(next, to) {
				return true
			}
		}
		return false
	}

	reduced := map[string]map[string]bool{}
	for from, targets := range imports {
		reduced[from] = map[string]bool{}
		for to := range targets {
			implied := false
			for other := range targets {
				implied = implied || other != to && reaches(other, to)
			}
			if !implied {
				reduced[from][to] = true
			}
		}
	}
	return reduced
}

// drawImports returns a Mermaid flow chart, which Git hosts show as a drawing: a line for each package that imports others.
// A package without an arrow has a line of its own.
func drawImports(imports map[string]map[string]bool) string {
	imported := map[string]bool{}
	for _, targets := range imports {
		maps.Copy(imported, targets)
	}

	var b strings.Builder
	b.WriteString("```mermaid\nflowchart TD\n")
	for _, from := range slices.Sorted(maps.Keys(imports)) {
		switch targets := slices.Sorted(maps.Keys(imports[from])); {
		case len(targets) > 0:
			fmt.Fprintf(&b, "  %s --> %s\n", from, strings.Join(targets, " & "))
		case !imported[from]:
			fmt.Fprintf(&b, "  %s\n", from)
		}
	}
	b.WriteString("```\n")
	return b.String()
}
