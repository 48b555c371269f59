// Package documents reads what installers and installed systems are configured
// with: VyOS' config.boot, Talos' machine configuration, Harvester's
// installation configuration. It checks them as strictly as their own programs
// would, and earlier: before any power is touched.
//
// All of them hold secrets. No message of this package repeats a value of a
// field that could be one.
package documents

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/documents/talos"
	"github.com/ingotmetal/ingot/inventory"
)

// Kinds of document.
const (
	KindVyOS      = inventory.DocumentVyOS      // config.boot of VyOS 1.3 and later
	KindTalos     = inventory.DocumentTalos     // machine configuration of Talos Linux, one or more YAML documents
	KindHarvester = inventory.DocumentHarvester // installation configuration of Harvester, scheme version 1
	KindText      = inventory.DocumentText      // anything that is text; only its size and encoding are checked
)

// Kinds lists the kinds of document that Check knows.
func Kinds() []string { return []string{KindHarvester, KindTalos, KindText, KindVyOS} }

// maxDocument bounds a document, in bytes: it is what the inventory takes as
// user data.
const maxDocument = 1 << 20

// maxProblems bounds what is reported of one document.
const maxProblems = 50

// Check reads a document of the given kind and returns as inventory.Problems
// everything that would keep it from being installed with, each with the file
// as it was given, line, field and remedy; nil when there is nothing.
func Check(kind, file string, contents []byte) error {
	problems, _ := Review(kind, file, contents)
	return problems.Err()
}

// Review is Check that also returns warnings: what would better be otherwise. They
// mean something only where there are no problems.
func Review(kind, file string, contents []byte) (problems, warnings inventory.Problems) {
	switch {
	case len(contents) > maxDocument:
		problems.Add("", "let it fetch what is big", "%d bytes are more than %d", len(contents), maxDocument)
	case !utf8.Valid(contents) || bytes.ContainsRune(contents, 0):
		problems.Add("", "save it as UTF-8", "is not text")
	case len(bytes.TrimSpace(contents)) == 0:
		problems.Add("", "", "is empty")
	case kind == KindVyOS:
		problems, warnings = checkVyOS(contents)
	case kind == KindHarvester:
		problems, warnings = checkHarvester(file, contents)
	case kind == KindTalos:
		problems, warnings = talos.Check(file, contents)
	case kind == KindText:
	default:
		problems.Add("kind", "use one of: "+strings.Join(Kinds(), ", "), "there is no kind of document %q", kind)
	}
	if len(problems) > maxProblems {
		problems = problems[:maxProblems]
	}
	secret := secrets(kind, contents)
	return finish(file, secret, problems), finish(file, secret, warnings)
}

// finish names the file in each problem, puts them in the order of the
// document, and takes out what is secret: a message of a library may repeat
// what it could not read.
func finish(file string, secret []string, problems inventory.Problems) inventory.Problems {
	for i := range problems {
		p := &problems[i]
		p.File = file
		for _, s := range secret {
			p.What = strings.ReplaceAll(p.What, s, "…")
			p.Remedy = strings.ReplaceAll(p.Remedy, s, "…")
		}
	}
	slices.SortStableFunc(problems, func(a, b inventory.Problem) int { return a.Line - b.Line })
	return problems
}

var secretKey = regexp.MustCompile(`(?i)(token|secret|password|passphrase|key|crt|cert|ca|auth|psk|content|contents|payload|headers)$`)

// shortest is the length from which on a value is taken for a secret: fewer
// characters would be found in ordinary words.
const shortest = 5

// secrets returns the values of all fields whose names sound secret, the
// longest first.
func secrets(kind string, contents []byte) []string {
	var out []string
	add := func(s string) {
		if len(s) >= shortest {
			out = append(out, s)
		}
	}
	if kind == KindVyOS {
		tree, _ := parseVyOS(contents)
		tree.walk(func(path []string, n *VyOSNode) {
			if secretKey.MatchString(n.Name) {
				for _, v := range n.Values {
					add(v)
				}
			}
		})
	} else {
		for dec := yaml.NewDecoder(bytes.NewReader(contents)); ; {
			var n yaml.Node
			if decode(dec, &n) != nil {
				break
			}
			secretScalars(&n, false, 0, add)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(out)
}

func secretScalars(n *yaml.Node, secret bool, depth int, add func(string)) {
	switch {
	case depth > 100:
	case n.Kind == yaml.ScalarNode && secret:
		add(n.Value)
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			secretScalars(n.Content[i+1], secret || secretKey.MatchString(n.Content[i].Value), depth+1, add)
		}
	default:
		for _, c := range n.Content {
			secretScalars(c, secret, depth+1, add)
		}
	}
}

// decode reads one document; a panic of the parser is the end, too.
func decode(dec *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errPanic
		}
	}()
	return dec.Decode(n)
}
