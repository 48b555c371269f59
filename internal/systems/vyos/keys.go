package vyos

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

//go:embed keys.txt
var keysText string

// A keyTable lists the keys of each node that keys.txt describes, by the path of the node. If the list is ["*"], the keys are names that
// the user chooses, such as names of interfaces.
type keyTable map[string][]string

// knownKeys has the nodes for which keys.txt lists all keys. incompleteKeys has the nodes for which it lists only some of the keys.
var knownKeys, incompleteKeys = parseKeys(keysText)

// parseKeys reads text in the format that keys.txt describes.
func parseKeys(text string) (known, incomplete keyTable) {
	known, incomplete = keyTable{}, keyTable{}
	var paths []string
	indented := false
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" || line[0] == '#' {
			continue
		}
		if line[0] != '\t' {
			if indented {
				paths = nil
			}
			paths = append(paths, strings.TrimSpace(line))
		}
		indented = line[0] == '\t'

		for _, path := range paths {
			table := known
			if short, ok := strings.CutSuffix(path, " (incomplete)"); ok {
				path, table = short, incomplete
			}
			if path == "(root)" {
				path = ""
			}
			if above, ok := strings.CutSuffix(path, " *"); ok {
				known[above] = []string{"*"}
			}
			if indented {
				table[path] = append(table[path], strings.Fields(line)...)
			}
		}
	}
	return known, incomplete
}

// checkKeys returns a problem for each key in n, or below n, that VyOS does not have. If not all keys of a node are known, it
// returns a warning for each unknown key that is similar to a known one. at is the path of n in the file. listed is the path of n in the
// key table, with * for names.
func checkKeys(n *Node, at, listed string) (problems, warnings inventory.Problems) {
	known, incomplete := knownKeys[listed], incompleteKeys[listed]
	if known == nil && incomplete == nil {
		return nil, nil
	}
	for _, c := range n.Children {
		p := inventory.Problem{Line: c.Line, Field: strings.TrimSpace(at + " " + c.Name)}
		below := strings.TrimSpace(listed + " " + c.Name)
		switch {
		case len(known) == 1 && known[0] == "*":
			below = listed + " *"
		case known != nil && !slices.Contains(known, c.Name):
			p.What, p.Remedy = "unknown key", strictyaml.Suggest(c.Name, known)
			problems = append(problems, p)
			continue
		case known == nil && !slices.Contains(incomplete, c.Name):
			if strictyaml.Nearest(c.Name, incomplete) != "" {
				p.What, p.Remedy = "unknown key, similar to a known key", strictyaml.Suggest(c.Name, incomplete)
				warnings = append(warnings, p)
			}
			continue
		}
		ps, ws := checkKeys(c, p.Field, below)
		problems, warnings = append(problems, ps...), append(warnings, ws...)
	}
	return problems, warnings
}
