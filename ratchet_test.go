package ingot

import (
	"fmt"
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"testing"
)

// The limits of this file hold for all of the product; only small packages may have a reason.

const (
	maxMethods      = 30  // of a type
	maxInterface    = 8   // methods of an interface
	maxBackPercent  = 20  // of the references in a package
	minPackageLines = 150 // of code, in a package that is not in smallPackages
)

// smallPackages are the packages with fewer lines, and why each is one.
var smallPackages = map[string]string{
	".":                              "the module's documentation",
	"cmd/ingot":                      "a main package is wiring",
	"cmd/ingot-client":               "a main package is wiring",
	"internal/images/catalog":        "the list of images",
	"internal/host/durablefile":      "every file of a secret is read and replaced here",
	"internal/netserve/guard":        "panics of one request end no server",
	"internal/text/human":            "sizes and durations as text, for packages that share nothing else",
	"internal/httpclient":            "one client without proxy and redirects, for the agent too",
	"internal/secrets/identity":      "the server's key and certificate",
	"internal/secrets/keypin":        "one check of a pinned key, for the agent too",
	"internal/netserve/listener":     "TLS and limits of a listener",
	"internal/documents/machinefile": "the document of a machine",
	"internal/documents/mergepatch":  "RFC 7396 in both directions, for the server and its client",
	"internal/host/memlimit":         "sets the garbage collector of both processes",
	"internal/temporal/payloadcodec": "what the histories hold is sealed here",
	"internal/problem":               "what is wrong with an input, for readers of files and for the domain",
	"internal/text/plaintext":        "a leaf that the agent imports, too",
	"internal/netserve/quietlog":     "bounds the lines of a log",
	"web":                            "embeds the page",
}

// TestMethodsPerType counts the methods of each type of the product.
func TestMethodsPerType(t *testing.T) {
	count := map[string]int{}
	for _, f := range productFiles(t) {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				count[filepath.Dir(f.path)+"."+receiverOf(fn)]++
			}
		}
	}
	requireAtMost(t, maxMethods, "methods", count)
}

// TestMethodsPerInterface counts the methods that each interface of the product lists.
func TestMethodsPerInterface(t *testing.T) {
	count := map[string]int{}
	for _, f := range productFiles(t) {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if i, ok := spec.Type.(*ast.InterfaceType); ok {
					count[filepath.Dir(f.path)+"."+spec.Name.Name] = i.Methods.NumFields()
				}
			}
			return true
		})
	}
	requireAtMost(t, maxInterface, "methods", count)
}

// TestReferencesBack counts, for each package, the pairs of files in which one refers to a name that the other declares, and
// how many of these point back in the order that has few of them. Where there are none, the files can be read from top to
// bottom. A method counts as referred to if no other file of the package has a method of its name.
func TestReferencesBack(t *testing.T) {
	packages := map[string][]goFile{}
	for _, f := range productFiles(t) {
		packages[filepath.Dir(f.path)] = append(packages[filepath.Dir(f.path)], f)
	}
	percent := map[string]int{}
	for name, files := range packages {
		all, back := countReferences(files)
		if all > 0 {
			percent[name] = (100*back + all - 1) / all
		}
	}
	requireAtMost(t, maxBackPercent, "% of references back", percent)
}

// TestSmallPackages finds packages that are hardly one.
func TestSmallPackages(t *testing.T) {
	lines := map[string]int{}
	for _, f := range productFiles(t) {
		lines[filepath.Dir(f.path)] += f.countLines().code
	}
	for name, n := range lines {
		if why, listed := smallPackages[name]; n < minPackageLines && why == "" {
			t.Errorf("package %s has %d lines of code: make it part of another, or say in smallPackages why it is one", name, n)
		} else if listed && n >= minPackageLines {
			t.Errorf("package %s has %d lines of code: take it off smallPackages", name, n)
		}
	}
}

// requireAtMost fails for each name that was counted more often than allowed.
func requireAtMost(t *testing.T, most int, what string, count map[string]int) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if n := count[name]; n > most {
			t.Errorf("%s: %d %s, at most %d are allowed", name, n, what, most)
		}
	}
}

// receiverOf returns the name of a method's type.
func receiverOf(fn *ast.FuncDecl) string {
	x := fn.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.Ident:
			return y.Name
		default:
			return fmt.Sprintf("%T", x)
		}
	}
}

// countReferences returns the pairs of files of a package that refer to one another, and those that point back.
func countReferences(files []goFile) (all, back int) {
	home, methods := map[string]int{}, map[string]int{} // name → file; -1 = several
	declare := func(names map[string]int, name string, file int) {
		if other, ok := names[name]; ok && other != file {
			file = -1
		}
		names[name] = file
	}
	for i, f := range files {
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					declare(methods, d.Name.Name, i)
				} else {
					declare(home, d.Name.Name, i)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						declare(home, s.Name.Name, i)
					case *ast.ValueSpec:
						for _, n := range s.Names {
							declare(home, n.Name, i)
						}
					}
				}
			}
		}
	}
	refs := make([]map[int]int, len(files)) // from file → to file → references
	for i, f := range files {
		refs[i] = map[int]int{}
		refer := func(names map[string]int, name string) {
			if to, ok := names[name]; ok && to >= 0 && to != i {
				refs[i][to]++
			}
		}
		var visit func(n ast.Node) bool
		visit = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				refer(methods, n.Sel.Name)
				ast.Inspect(n.X, visit)
				return false
			case *ast.Ident:
				refer(home, n.Name)
			}
			return true
		}
		for _, d := range f.syntax.Decls {
			ast.Inspect(d, visit)
		}
	}
	order := topDown(refs)
	for i := range files {
		for to := range refs[i] {
			all++
			if order[to] < order[i] {
				back++
			}
		}
	}
	return all, back
}

// topDown returns a place for each file, so that few of the files refer to one with a smaller place: the greedy order of
// Eades, Lin and Smyth (1993).
func topDown(refs []map[int]int) []int {
	into := make([]map[int]int, len(refs))
	left := map[int]bool{}
	for i := range refs {
		into[i], left[i] = map[int]int{}, true
	}
	for i := range refs {
		for to := range refs[i] {
			into[to][i]++
		}
	}
	degree := func(edges map[int]int) (n int) {
		for x := range edges {
			if left[x] {
				n++
			}
		}
		return n
	}
	place := make([]int, len(refs))
	for first, last := 0, len(refs)-1; len(left) > 0; {
		best, most := -1, 0
		for i := range refs {
			if !left[i] {
				continue
			}
			out, in := degree(refs[i]), degree(into[i])
			if out == 0 { // it depends on nothing that is left
				best = i
				break
			}
			if best < 0 || out-in > most {
				best, most = i, out-in
			}
		}
		if degree(refs[best]) == 0 {
			place[best], last = last, last-1
		} else {
			place[best], first = first, first+1
		}
		delete(left, best)
	}
	return place
}
