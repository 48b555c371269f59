package ingot

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// journeys are the lists of stops in docs/architecture.md, by heading: how many stops each may have, and whether each stop is
// called by one before it.
var journeys = map[string]struct {
	most   int
	called bool
}{
	"### The journey of one machine": {most: 15},
	"### The way of a DHCP packet":   {most: 20, called: true},
}

var (
	stopLine = regexp.MustCompile(`^[0-9]+\. `)
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// TestJourneys: the functions of each stop are in its files.
func TestJourneys(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	declared := functionsByFile(t)
	for heading, limits := range journeys {
		_, text, found := strings.Cut(string(page), heading+"\n")
		text, _, _ = strings.Cut(text, "\n#")
		stops := 0
		calls := map[string]bool{} // the names that the stops so far call
		for line := range strings.Lines(text) {
			if !stopLine.MatchString(line) {
				continue
			}
			stops++
			functions, files := splitStop(line)
			for _, name := range functions {
				if limits.called && stops > 1 && !calls[name] {
					t.Errorf("%s, stop %d: no stop before it calls %s", heading, stops, name)
				}
				at := slices.IndexFunc(files, func(file string) bool { return declared[file+" "+name] != nil })
				if at < 0 {
					t.Errorf("%s, stop %d: no function %s in %v", heading, stops, name, files)
					continue
				}
				ast.Inspect(declared[files[at]+" "+name], func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						calls[id.Name] = true
					}
					return true
				})
			}
		}
		if !found || stops == 0 || stops > limits.most {
			t.Errorf("%s: %d stops, at most %d are allowed", heading, stops, limits.most)
		}
	}
}

// splitStop returns the functions that a stop names, without their types, and the files.
func splitStop(line string) (functions, files []string) {
	for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
		if name := span[1]; strings.HasSuffix(name, ".go") {
			files = append(files, name)
		} else {
			functions = append(functions, name[strings.LastIndex(name, ".")+1:])
		}
	}
	return functions, files
}

// functionsByFile returns the functions and methods of the product by "file name".
func functionsByFile(t *testing.T) map[string]*ast.FuncDecl {
	t.Helper()
	out := map[string]*ast.FuncDecl{}
	for _, f := range productFiles(t) {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				out[f.path+" "+fn.Name.Name] = fn
			}
		}
	}
	return out
}
