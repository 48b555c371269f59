package docs_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

const (
	descriptionsFile = "../internal/documents/strictyaml/descriptions.json"
	modulePath       = "github.com/ingotmetal/ingot/"
)

// rootTypes are the types of the files that JSON Schemas exist for.
var rootTypes = []string{
	"genesis.Lab", "internal/images/catalog.Catalog", "internal/config.Config", "internal/documents/machinefile.document", "template.document",
}

// TestSchemasAreDescribed holds the descriptions in JSON Schemas against the comments of the structs that read the files.
func TestSchemasAreDescribed(t *testing.T) {
	c := commentReader{t: t, packages: map[string]map[string]structType{}, out: map[string]map[string]string{}}
	for _, name := range rootTypes {
		c.describe(name)
	}

	want := new(bytes.Buffer)
	to := json.NewEncoder(want)
	to.SetEscapeHTML(false)
	to.SetIndent("", "  ")
	if err := to.Encode(c.out); err != nil {
		t.Fatal(err)
	}
	switch {
	case t.Failed() || read(t, descriptionsFile) == want.String():
	case *writeDocs:
		if err := os.WriteFile(descriptionsFile, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the comments: run make docs", descriptionsFile)
	}
}

// commentReader describes struct types by their comments, without compiling them.
type commentReader struct {
	t        *testing.T
	packages map[string]map[string]structType // by folder and name
	out      map[string]map[string]string     // by type and key
}

type structType struct {
	file    *ast.File
	fields  *ast.FieldList
	comment string
}

// describe adds the type called folder.Name, and all structs that its fields lead to, to the descriptions.
func (c commentReader) describe(name string) {
	s, ok := c.find(name)
	if _, seen := c.out[name]; !ok || seen {
		return
	}
	c.out[name] = map[string]string{} // also: it is being described

	folder := name[:strings.LastIndexByte(name, '.')]
	names := jsonNames(s.fields)
	for n, f := range s.fields.List {
		embedded := len(f.Names) == 0 // its fields are described where they stand
		if !embedded && names[f.Names[0].Name] == "" {
			continue
		}
		for _, other := range typesIn(f.Type, s.file, folder) {
			c.describe(other)
		}
		if embedded {
			continue
		}

		field := f.Names[0].Name
		key := names[field]
		text := c.comment(s, n, folder)
		if text == "" {
			c.t.Errorf("%s.%s has no comment, which JSON Schemas show as its description", name, field)
		}
		c.out[name][key] = inFile(text, field, names)
	}
	if len(c.out[name]) == 0 {
		delete(c.out, name)
	}
}

// comment returns what describes field n of s: its own comment, its type's, or the one of the line above, if that one
// names the field.
func (c commentReader) comment(s structType, n int, folder string) string {
	f := s.fields.List[n]
	var parts []string
	for _, group := range []*ast.CommentGroup{f.Doc, f.Comment} {
		if text := firstParagraph(group); text != "" {
			parts = append(parts, strings.TrimSuffix(text, "."))
		}
	}
	if len(parts) > 0 {
		return strings.Join(parts, ". ")
	}

	if n > 0 {
		if above := s.fields.List[n-1]; above.Doc != nil && hasWord(above.Doc.Text(), f.Names[0].Name) {
			return strings.TrimSuffix(firstParagraph(above.Doc), ".")
		}
	}
	for _, name := range typesIn(f.Type, s.file, folder) {
		if x, ok := c.find(name); ok && x.comment != "" {
			return ofType(x.comment, name[strings.LastIndexByte(name, '.')+1:])
		}
	}
	return ""
}

// keys lists the keys of the struct called name that hold no further keys, by their paths, in the order of the source.
func (c commentReader) keys(name, prefix string) (paths []string) {
	s, _ := c.find(name)
	names := jsonNames(s.fields)
	for _, f := range s.fields.List {
		path := prefix + names[f.Names[0].Name]
		below := []string{path}
		for _, other := range typesIn(f.Type, s.file, name[:strings.LastIndexByte(name, '.')]) {
			if _, ok := c.find(other); ok {
				below = c.keys(other, path+".")
			}
		}
		paths = append(paths, below...)
	}
	return paths
}

// find returns the struct called folder.Name.
func (c commentReader) find(name string) (structType, bool) {
	dot := strings.LastIndexByte(name, '.')
	folder := name[:dot]
	if c.packages[folder] == nil {
		c.packages[folder] = readStructs(c.t, folder)
	}
	s, ok := c.packages[folder][name[dot+1:]]
	return s, ok
}

// readStructs returns the struct types of the package in a folder of the repository.
func readStructs(t *testing.T, folder string) map[string]structType {
	t.Helper()
	out := map[string]structType{}
	files, err := filepath.Glob("../" + folder + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, x := range g.Specs {
				if spec, ok := x.(*ast.TypeSpec); ok {
					if s, ok := spec.Type.(*ast.StructType); ok {
						out[spec.Name.Name] = structType{file, s.Fields, firstParagraph(g.Doc)}
					}
				}
			}
		}
	}
	return out
}

// typesIn returns the names, folder.Name, of the types of this module that a type contains.
func typesIn(x ast.Expr, file *ast.File, folder string) (names []string) {
	ast.Inspect(x, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			for _, i := range file.Imports {
				path, _ := strconv.Unquote(i.Path.Value)
				if local, ours := strings.CutPrefix(path, modulePath); ours && filepath.Base(local) == n.X.(*ast.Ident).Name {
					names = append(names, local+"."+n.Sel.Name)
				}
			}
			return false
		case *ast.Ident:
			names = append(names, folder+"."+n.Name)
		}
		return true
	})
	return names
}

// jsonNames maps the fields of a struct to their keys in a file.
func jsonNames(fields *ast.FieldList) map[string]string {
	out := map[string]string{}
	for _, f := range fields.List {
		if f.Tag == nil || len(f.Names) == 0 {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		key, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if key != "-" {
			out[f.Names[0].Name] = key
		}
	}
	return out
}

// firstParagraph returns the first paragraph of a comment as one line: the rest is for programmers.
func firstParagraph(g *ast.CommentGroup) string {
	text, _, _ := strings.Cut(g.Text(), "\n\n")
	return strings.Join(strings.Fields(text), " ")
}

// ofType turns the comment of a type, "A Network is the network …" or "Site says how …", into one of a field.
func ofType(text, name string) string {
	for _, article := range []string{"A ", "An ", ""} {
		for _, verb := range []string{" is ", " are ", " "} {
			if rest, ok := strings.CutPrefix(text, article+name+verb); ok {
				return upper(strings.TrimSuffix(rest, "."))
			}
		}
	}
	return strings.TrimSuffix(text, ".")
}

// inFile turns the comment of a field into text for people who write the key: the subject is dropped, other fields are named
// by their keys.
func inFile(text, field string, names map[string]string) string {
	for _, verb := range []string{" is ", " are ", ": ", " "} {
		rest, ok := strings.CutPrefix(text, field+verb)
		if ok && !strings.HasPrefix(rest, "and ") {
			text = upper(rest)
			break
		}
	}
	for name, key := range names {
		if name == strings.ToUpper(name) {
			continue // URL, MAC: words of their own
		}
		// At the beginning of a sentence most names are words, too.
		word := regexp.MustCompile(`([a-z,(] ?|^)\b` + name + `\b`)
		if strings.ContainsFunc(name[1:], unicode.IsUpper) {
			word = regexp.MustCompile(`()\b` + name + `\b`)
		}
		text = word.ReplaceAllString(text, "${1}"+key)
	}
	return text
}

func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

func hasWord(text, word string) bool { return regexp.MustCompile(`\b` + word + `\b`).MatchString(text) }
