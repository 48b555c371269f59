package systems

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	// maxDocument limits the size of a document in bytes; user data in the inventory has the same limit.
	maxDocument = 1 << 20
	// maxProblems limits the number of problems that are reported for one document.
	maxProblems = 50
)

// CheckDocument checks a document of the given kind and returns every reason for which the system would refuse the document, as
// inventory.Problems. Each problem has file, line, field and remedy. Documents hold secrets: values of fields that may be secret are
// removed from the texts.
func CheckDocument(kind, file string, contents []byte) error {
	problems, _ := Review(kind, file, contents)
	return problems.Err()
}

// Review does what CheckDocument does, and also returns warnings. Use the warnings only if there are no problems.
func Review(kind, file string, contents []byte) (problems, warnings inventory.Problems) {
	document, kinds := Of(kind), inventory.DocumentKinds()
	switch {
	case len(contents) > maxDocument:
		problems.Add("", "let the document fetch its large parts", "has %d bytes; must have at most %d", len(contents), maxDocument)
	case !utf8.Valid(contents) || bytes.ContainsRune(contents, 0):
		problems.Add("", "save it as UTF-8", "is not text")
	case len(bytes.TrimSpace(contents)) == 0:
		problems.Add("", "", "is empty")
	case !slices.Contains(kinds, kind):
		problems.Add("kind", "use one of: "+strings.Join(kinds, ", "), "unknown kind of document %q", kind)
	case document != nil:
		problems, warnings = document.Check(file, contents)
	}
	if len(problems) > maxProblems {
		problems = problems[:maxProblems]
	}

	secret := secretsOf(document, contents)
	return finish(file, secret, problems), finish(file, secret, warnings)
}

// finish sets the file of each problem and sorts the problems by line. It removes secret values from the texts, because the error of a
// library may quote a value that it could not read.
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

var secretName = regexp.MustCompile(`(?i)(token|secret|password|passphrase|key|crt|cert|ca|auth|psk|` +
	`content|contents|payload|headers)$`)

// minSecret is the minimum length of a value that is treated as a secret, in bytes. Shorter values occur in
// ordinary words.
const minSecret = 5

// secretsOf returns the values of all fields whose names mark them as secret, the longest value first.
func secretsOf(d Document, contents []byte) []string {
	var secrets []string
	if lister, ok := d.(SecretLister); ok {
		secrets = lister.Secrets(contents, secretName.MatchString)
	} else {
		for dec := yaml.NewDecoder(bytes.NewReader(contents)); ; {
			var n yaml.Node
			if strictyaml.DecodeNode(dec, &n) != nil {
				break
			}
			secrets = append(secrets, secretScalars(&n, false, 0)...)
		}
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < minSecret })
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(secrets)
}

// maxDepth limits how deep a document is searched for secrets.
const maxDepth = 100

func secretScalars(n *yaml.Node, secret bool, depth int) (values []string) {
	if depth > maxDepth {
		return nil
	}
	if n.Kind == yaml.ScalarNode && secret {
		return []string{n.Value}
	}
	for i, c := range n.Content {
		below := secret
		if n.Kind == yaml.MappingNode {
			if i%2 == 0 {
				continue // a key
			}
			below = secret || secretName.MatchString(n.Content[i-1].Value)
		}
		values = append(values, secretScalars(c, below, depth+1)...)
	}
	return values
}
