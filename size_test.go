package ingot

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

const (
	maxFileLines     = 500
	maxFunctionLines = 80
)

var printSize = flag.Bool("size", false, `print the lines of each package ("make size")`)

// TestPrintSize is "make size".
func TestPrintSize(t *testing.T) {
	if !*printSize {
		t.Skip("only with -args -size")
	}
	files := productFiles(t)
	packages, all := map[string]*lineCount{}, lineCount{}
	for _, f := range files {
		count, name := f.countLines(), filepath.Dir(f.path)
		if packages[name] == nil {
			packages[name] = &lineCount{}
		}
		packages[name].add(count)
		all.add(count)
	}

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, c lineCount) {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%.1f %%\t  %s\n", c.code, c.comment, c.blank, c.total(),
			100*float64(c.blank)/float64(c.total()), name)
	}
	fmt.Fprintln(w, "code\tcomment\tblank\ttotal\tblank\t  package")
	for _, name := range slices.SortedFunc(maps.Keys(packages), func(a, b string) int {
		return cmp.Or(packages[b].code-packages[a].code, strings.Compare(a, b))
	}) {
		row(name, *packages[name])
	}
	row("all", all)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, text := range oversizeFiles(files) {
		fmt.Println(text)
	}
}

// oversizeFiles lists the files and the functions that are too long.
func oversizeFiles(files []goFile) (found []string) {
	for _, f := range files {
		if n := len(f.lines()); n > maxFileLines {
			found = append(found, fmt.Sprintf("%s has %d lines; at most %d: split it by subject", f.path, n, maxFileLines))
		}
		for _, d := range f.syntax.Decls {
			function, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			first, last := f.set.Position(function.Pos()).Line, f.set.Position(function.End()).Line
			if n := last - first + 1; n > maxFunctionLines {
				found = append(found, fmt.Sprintf("%s:%d: function %s has %d lines; at most %d: name its steps as functions",
					f.path, first, function.Name.Name, n, maxFunctionLines))
			}
		}
	}
	return found
}
