package template

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Limits of rendering a template. Together, they limit the time that it takes: a step checks the deadline, and no step can take long,
// because all values are small.
const (
	maxSource = 256 << 10 // bytes of a template
	maxOutput = 256 << 10 // bytes of a rendered document
	maxSteps  = 100_000   // passes of loops, pieces of text, and calls of functions
	maxCalls  = 1_000     // calls of named templates, because nested calls fill the stack
	maxWeight = 512 << 10 // bytes and elements of one value, added up
	maxLength = 4_096     // elements in one list or map, because the time of some functions grows with the square of the length
	maxNested = 64        // how deep lists and maps may be nested
	maxArgs   = 1_000     // arguments of one call
)

// errLimit means that rendering a template has exceeded a limit of time or size.
var errLimit = errors.New("limit of templates")

type limitError string

func (e limitError) Error() string        { return string(e) }
func (e limitError) Is(target error) bool { return target == errLimit }

const errLarge = limitError("makes a value that is too large")

// limitProblems are problems that say that a limit was exceeded: errors.Is with errLimit is true for them.
type limitProblems struct{ inventory.Problems }

func (p limitProblems) Is(target error) bool { return target == errLimit }
func (p limitProblems) Unwrap() error        { return p.Problems }

// guard counts and limits the work of one rendering. Each rendering needs its own guard.
type guard struct {
	ctx    context.Context
	steps  int
	calls  int
	line   int // line of the source that is being rendered now
	marks  []mark
	out    strings.Builder
	outRow int // lines written so far
	err    error
}

// mark says where lines of the output come from: line out of the output comes from line src of the source, the next line from the next line
// of the source, and so on until the next mark.
type mark struct{ out, src int }

func newGuard(ctx context.Context) *guard { return &guard{ctx: ctx} }

// stop makes the rendering end and returns the reason. It stores the first reason in g.err: the error that text/template returns contains
// more text, which the author of the template would not understand.
func (g *guard) stop(format string, args ...any) error {
	if g.err == nil {
		g.err = limitError(fmt.Sprintf(format, args...))
	}
	return g.err
}

func (g *guard) step() error {
	g.steps++
	switch {
	case g.err != nil:
		return g.err
	case g.steps > maxSteps:
		return g.stop("takes more than %d steps to render", maxSteps)
	case g.ctx.Err() != nil:
		return g.stop("takes too long to render")
	}
	return nil
}

// Write adds p to the rendered document. It implements io.Writer.
func (g *guard) Write(p []byte) (int, error) {
	if g.out.Len()+len(p) > maxOutput {
		return 0, g.stop("renders to more than %d KiB", maxOutput>>10)
	}
	g.outRow += strings.Count(string(p), "\n")
	return g.out.Write(p)
}

// Names of the functions whose calls instrument inserts into a template.
const (
	hookAt   = "ingotAt"   // called, with the line in the source, before each piece of text and each expression
	hookCall = "ingotCall" // called at the start of each named template
)

func (g *guard) hooks() template.FuncMap {
	return template.FuncMap{
		hookAt: func(line int) (string, error) {
			g.line = line
			g.marks = append(g.marks, mark{g.outRow + 1, line})
			return "", g.step()
		},
		hookCall: func() (string, error) {
			if g.calls++; g.calls > maxCalls {
				return "", g.stop("calls named templates more than %d times", maxCalls)
			}
			return "", g.step()
		},
	}
}

// prepare parses src. The functions that src can call are limited by g.
func prepare(file, src string, g *guard) (*template.Template, error) {
	if err := checkSource(file, src); err != nil {
		return nil, err
	}
	t, err := template.New("").Option("missingkey=error").Funcs(functions(g)).Funcs(g.hooks()).Parse(src)
	if err != nil {
		return nil, inventory.Problems{templateProblem(file, err)}
	}
	return t, nil
}

// treesOf returns the parse trees of t and of the named templates that t defines, sorted by name.
func treesOf(t *template.Template) (trees []*parse.Tree) {
	for _, named := range t.Templates() {
		if named.Tree != nil && named.Root != nil {
			trees = append(trees, named.Tree)
		}
	}

	slices.SortFunc(trees, func(a, b *parse.Tree) int { return strings.Compare(a.Name, b.Name) })
	return trees
}

// execute renders src with data. An error is an inventory.Problems. If a limit was exceeded, errors.Is with errLimit is true for it.
func execute(ctx context.Context, file, src string, data map[string]any) (output, error) {
	g := newGuard(ctx)
	t, err := prepare(file, src, g)
	if err != nil {
		return output{}, err
	}

	for _, tree := range treesOf(t) {
		instrument(tree, newLines(src))
	}

	if err := t.Execute(g, data); err != nil {
		if g.err != nil {
			return output{}, limitProblems{inventory.Problems{{
				File: file, Line: g.line, What: g.err.Error(),
				Remedy: "make the template simpler",
			}}}
		}

		p := templateProblem(file, err)
		if g.line > 0 {
			p.Line = g.line
		}
		if p.Remedy == "" && strings.Contains(p.What, "map has no entry for key") {
			p.Remedy = missing(p.What, data)
		}
		return output{}, inventory.Problems{p}
	}

	return output{file: file, text: g.out.String(), marks: g.marks}, nil
}

var (
	templateError = regexp.MustCompile(`(?s)^template: [^:]*:(\d+)(?::\d+)?: (.*)$`)
	executing     = regexp.MustCompile(`(?s)^executing "[^"]*" at (<.*?>): (.*)$`)
	noEntry       = regexp.MustCompile(`map has no entry for key "([^"]*)"`)
	notDefined    = regexp.MustCompile(`function "([^"]*)" not defined`)
)

// templateProblem converts an error of the package text/template to a Problem.
func templateProblem(file string, err error) inventory.Problem {
	p := inventory.Problem{File: file, What: err.Error()}
	m := templateError.FindStringSubmatch(err.Error())
	if m == nil {
		return p
	}
	if n, convErr := strconv.Atoi(m[1]); convErr == nil {
		p.Line = n
	}

	p.What = m[2]
	if x := executing.FindStringSubmatch(p.What); x != nil {
		p.Field, p.What = "{{"+strings.Trim(x[1], "<>")+"}}", x[2]
	}
	if m := notDefined.FindStringSubmatch(p.What); m != nil {
		p.Remedy = "docs/templates.md lists the functions of templates"
		if near := strictyaml.Nearest(m[1], functionNames()); near != "" {
			p.Remedy = fmt.Sprintf("did you mean %q? ", near) + p.Remedy
		}
	}
	return p
}

// missing gets the text of an error of text/template. If the error is about a key that is missing in data, missing returns the remedy, and
// otherwise "".
func missing(what string, data map[string]any) string {
	m := noEntry.FindStringSubmatch(what)
	if m == nil {
		return ""
	}

	switch key := m[1]; {
	case key == "image":
		return "the machine has no image: set its image, or name an image when provisioning"
	case key == "references":
		return "references are not supported: give the value in the hardware map"
	case strings.HasPrefix(key, "device_"):
		return "the machine has fewer netboot interfaces, and the hardware map names no other machine: " + workerRemedy
	}

	keys := make([]string, 0, len(data))
	for k := range data {
		keys = append(keys, "."+k)
	}
	slices.Sort(keys)
	return "known: " + strings.Join(keys, " ") + "; the hardware map can add more"
}

// lines has the position in the source at which each line starts.
type lines []int

func newLines(src string) lines {
	l := lines{0}
	for i := range len(src) {
		if src[i] == '\n' {
			l = append(l, i+1)
		}
	}
	return l
}

// of returns the number of the line in which n starts. The first line is 1.
func (l lines) of(n parse.Node) int {
	i, found := slices.BinarySearch(l, int(n.Position()))
	if found {
		return i + 1
	}
	return i
}

// instrument inserts calls of the hooks into a template: at its beginning, at the beginning of each branch and of each pass of a loop, and
// before each node.
func instrument(t *parse.Tree, at lines) {
	marked := func(n parse.Node) parse.Node {
		return hook(hookAt, &parse.NumberNode{NodeType: parse.NodeNumber, IsInt: true, Int64: int64(at.of(n))})
	}

	var list func(*parse.ListNode)
	list = func(l *parse.ListNode) {
		if l == nil {
			return
		}

		nodes := []parse.Node{marked(l)}
		for _, n := range l.Nodes {
			if b := branchOf(n); b != nil {
				list(b.List)
				list(b.ElseList)
			}
			nodes = append(nodes, marked(n), n)
		}

		l.Nodes = nodes
	}

	list(t.Root)
	t.Root.Nodes = slices.Insert(t.Root.Nodes, 0, hook(hookCall))
}

// hook returns a node that calls the function called name, one of the hooks.
func hook(name string, args ...parse.Node) parse.Node {
	call := &parse.CommandNode{NodeType: parse.NodeCommand, Args: append([]parse.Node{parse.NewIdentifier(name)}, args...)}
	return &parse.ActionNode{
		NodeType: parse.NodeAction,
		Pipe:     &parse.PipeNode{NodeType: parse.NodePipe, Cmds: []*parse.CommandNode{call}},
	}
}

// branchOf returns n as a branch if n is an if, range or with. For other nodes, it returns nil.
func branchOf(n parse.Node) *parse.BranchNode {
	switch n := n.(type) {
	case *parse.IfNode:
		return &n.BranchNode
	case *parse.RangeNode:
		return &n.BranchNode
	case *parse.WithNode:
		return &n.BranchNode
	}
	return nil
}

// walkNodes calls f for n, and for every node that n contains.
func walkNodes(n parse.Node, f func(parse.Node)) {
	if n == nil || reflect.ValueOf(n).IsNil() {
		return
	}

	f(n)
	if b := branchOf(n); b != nil {
		walkNodes(b.Pipe, f)
		walkNodes(b.List, f)
		walkNodes(b.ElseList, f)
		return
	}
	switch n := n.(type) {
	case *parse.ListNode:
		for _, c := range n.Nodes {
			walkNodes(c, f)
		}
	case *parse.ActionNode:
		walkNodes(n.Pipe, f)
	case *parse.TemplateNode:
		walkNodes(n.Pipe, f)
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			walkNodes(c, f)
		}
	case *parse.CommandNode:
		for _, c := range n.Args {
			walkNodes(c, f)
		}
	case *parse.ChainNode:
		walkNodes(n.Node, f)
	}
}

// weigh returns an error if v is too large, nested too deeply, or contains itself.
func weigh(v reflect.Value) error {
	if !v.IsValid() {
		return nil
	}
	left := maxWeight
	return weighPart(v, 0, &left)
}

// weighPart subtracts the weight of v and of everything in v from *left. depth is how deep v is nested. It returns an error if v exceeds a
// limit, or if *left becomes negative.
func weighPart(v reflect.Value, depth int, left *int) error {
	*left--
	if depth > maxNested {
		return limitError(fmt.Sprintf("nests lists and maps deeper than %d", maxNested))
	}

	var parts []reflect.Value
	switch v.Kind() {
	case reflect.String:
		*left -= v.Len()
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			parts = append(parts, v.Elem())
		}
	case reflect.Slice, reflect.Array, reflect.Map:
		if v.Kind() != reflect.Map && v.Type().Elem().Kind() == reflect.Uint8 {
			*left -= v.Len()
			break
		}
		if v.Len() > maxLength {
			return limitError(fmt.Sprintf("makes a list or map of more than %d elements", maxLength))
		}
		for key, x := range v.Seq2() {
			if v.Kind() == reflect.Map {
				parts = append(parts, key)
			}
			parts = append(parts, x)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			parts = append(parts, v.Field(i))
		}
	}

	if *left < 0 {
		return errLarge
	}
	for _, part := range parts {
		if err := weighPart(part, depth+1, left); err != nil {
			return err
		}
	}
	return nil
}

var errorType = reflect.TypeFor[error]()

// bounded returns f as a function for templates, with limits: each call counts as a step, the checks must accept the arguments, and the
// arguments and the result must not be too large.
func (g *guard) bounded(f any, checks []check) any {
	fn := reflect.ValueOf(f)
	t := fn.Type()
	in := make([]reflect.Type, t.NumIn())
	for i := range in {
		in[i] = t.In(i)
	}

	wrapped := reflect.FuncOf(in, []reflect.Type{t.Out(0), errorType}, t.IsVariadic())
	return reflect.MakeFunc(wrapped, func(args []reflect.Value) []reflect.Value {
		result, err := g.call(fn, args, checks)
		if limit := limitError(""); errors.As(err, &limit) {
			err = g.stop("%s", limit)
		}
		if err != nil {
			result = reflect.Zero(t.Out(0))
		}
		return []reflect.Value{result, reflect.ValueOf(&err).Elem()}
	}).Interface()
}

// call calls fn, with the limits that bounded describes.
func (g *guard) call(fn reflect.Value, args []reflect.Value, checks []check) (result reflect.Value, err error) {
	if err := g.step(); err != nil {
		return result, err
	}
	call := fn.Call
	if fn.Type().IsVariadic() {
		call = fn.CallSlice
		if args[len(args)-1].Len() > maxArgs {
			return result, limitError(fmt.Sprintf("calls a function with more than %d arguments", maxArgs))
		}
	}

	for _, a := range args {
		if err := weigh(a); err != nil {
			return result, err
		}
	}
	for _, refuse := range checks {
		if err := refuse(args); err != nil {
			return result, err
		}
	}

	out := call(args)
	if len(out) == 2 && !out[1].IsNil() {
		err, _ := out[1].Interface().(error)
		return out[0], err
	}
	return out[0], weigh(out[0])
}

func checkSource(file, src string) error {
	switch {
	case len(src) > maxSource:
		return inventory.Problems{{File: file, What: fmt.Sprintf("is larger than %d KiB", maxSource>>10)}}
	case !utf8.ValidString(src):
		return inventory.Problems{{File: file, What: "is not UTF-8 text"}}
	case strings.TrimSpace(src) == "":
		return inventory.Problems{{File: file, What: "is empty"}}
	}
	return nil
}
