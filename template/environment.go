package template

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// checkEnvironments checks the actions without a machine. It checks only values that src, the unrendered template, contains literally. It
// returns the notes of noteFetch, noteMirrors and noteUnread.
func (l *linter) checkEnvironments(src string, trees []*parse.Tree) (notes inventory.Problems) {
	docs, err := strictyaml.Documents(l.check.out.file, []byte(src))
	if err != nil || len(docs) != 1 { // src is not YAML: it has expressions without quotes, or lines that are expressions
		docs, err = strictyaml.Documents(l.check.out.file, []byte(withoutExpressions(src)))
	}
	if err != nil || len(docs) != 1 {
		return inventory.Problems{{
			File: l.check.out.file, What: "the actions could not be checked without a machine: the template is YAML only after it is rendered",
			Remedy: "ingot template render FILE --machine NAME",
		}}
	}

	if !hasConditions(trees) {
		l.check.findDisk()
	}
	for i, t := range l.check.doc.Tasks {
		for j, s := range t.Actions {
			native, ok := s.native()
			at := place{docs[0], fmt.Sprintf("tasks[%d]", i), fmt.Sprintf("tasks[%d].actions[%d]", i, j), hasConditions(trees)}
			if !ok { // a container, or the image depends on data
				l.checkContainerShells(at, s)
				notes = append(notes, l.noteForeign(at.step+".image", s.Image)...)
				continue
			}
			env := environmentOf(t, s)
			l.checkVariables(at, native, env)
			l.checkLiteralDevice(at, native, env)
			l.checkHandlerShells(at, s)
			notes = append(notes, l.noteFetch(at, native, env)...)
			notes = append(notes, l.noteMirrors(at.step, s)...)
			notes = append(notes, l.noteUnread(at.step+".environment", native, s.Environment)...)
		}
	}
	return notes
}

var expression = regexp.MustCompile(`(?s)\{\{.*?\}\}`)

// withoutExpressions returns src in a form that can be parsed as YAML: a fixed text replaces each expression. A line that consists only of
// expressions, such as a condition, becomes empty, and all lines keep their numbers.
func withoutExpressions(src string) string {
	text := expression.ReplaceAllStringFunc(src, func(x string) string {
		return "\x00" + strings.Repeat("\n", strings.Count(x, "\n"))
	})
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.Trim(line, "\x00 \t\r") == "" {
			lines[i] = ""
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), "\x00", "DATA-OF-THE-MACHINE")
}

// checkVariables checks those variables of an action whose values do not depend on data.
func (l *linter) checkVariables(at place, native string, env environment) {
	if digest := action.Describe(native).Digest; digest != "" { // for its own images, the server sets the digest later
		env = environment{maps.Clone(env.values), maps.Clone(env.from)}
		env.setDefault(digest, strings.Repeat("0", 64), "")
	}

	if native == action.CExec && env.values[action.InterpreterVariable] != "" &&
		!at.isLiteral(action.CommandVariable, env.values[action.CommandVariable]) {
		l.check.add(at.step+".environment."+action.CommandVariable, `put the data into another variable, and write "$NAME" here`,
			"a shell would run the template's data as commands")
	}

	for _, v := range action.Describe(native).Variables {
		value, set := env.values[v.Name]
		if set && !at.isLiteral(v.Name, value) || !set && at.conditions {
			continue
		}
		if err := v.Check(env.values); err != nil {
			l.check.add(at.step+".environment."+v.Name, "see "+actionsPage, "%v", err)
		}
	}
}

// noteUnread returns a note for each variable in env that the native action does not read.
func (l *linter) noteUnread(path, native string, env map[string]string) (notes inventory.Problems) {
	var known []string
	for _, v := range action.Describe(native).Variables {
		known = append(known, v.Name)
	}

	for _, name := range slices.Sorted(maps.Keys(env)) {
		if slices.Contains(known, name) || strings.Contains(env[action.FilesVariable], name) {
			continue
		}
		note := inventory.Problem{
			File: l.check.out.file, Line: l.check.out.line(path + "." + name), Field: path + "." + name,
			What: native + " does not read this variable",
		}
		if near := strictyaml.Nearest(name, known); near != "" {
			note.Remedy = fmt.Sprintf("did you mean %q?", near)
		}
		notes = append(notes, note)
	}
	return notes
}

// noteMirrors returns a note for each image for which the agent runs its built-in action only because the image's registry counts as a
// mirror of the action's registry.
func (l *linter) noteMirrors(path string, s step) (notes inventory.Problems) {
	images := map[string]string{"image": s.Image}
	if outer := l.wrapped[path]; outer != "" {
		images = map[string]string{"image": outer, "environment." + action.InnerImageVariable: s.Image}
	}
	for key, words := range s.handlers() {
		if len(words) > 0 {
			images[key] = words[0]
		}
	}
	for _, key := range slices.Sorted(maps.Keys(images)) {
		host := action.Mirror(images[key])
		if host == "" || l.check.open(images[key]) {
			continue
		}
		native, _ := action.Native(images[key])
		notes = append(notes, inventory.Problem{
			File:  l.check.out.file,
			Line:  l.check.out.line(path + "." + key),
			Field: path + "." + key,
			What: fmt.Sprintf(
				"%s is treated as a mirror of the publisher's registry: the agent runs its built-in %s, and fetches nothing from there",
				host,
				native,
			),
		})
	}
	return notes
}

// hasConditions reports whether a template contains if, with or range. trees are its parse trees.
func hasConditions(trees []*parse.Tree) (found bool) {
	for _, t := range trees {
		walkNodes(t.Root, func(n parse.Node) { found = found || branchOf(n) != nil })
	}
	return found
}
