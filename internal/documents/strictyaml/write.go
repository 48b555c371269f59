package strictyaml

import (
	"bytes"
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/text/human"
)

// FromJSON converts JSON to YAML and keeps the order of the keys. Characters that a terminal
// could interpret are escaped.
func FromJSON(raw json.RawMessage) ([]byte, error) {
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(human.Escape(string(raw))), &n); err != nil {
		return nil, err
	}

	setBlockStyle(&n)

	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&n); err != nil {
		return nil, err
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}

	return []byte(human.Escape(b.String())), nil // YAML treats marks that reorder text as printable
}

// setBlockStyle removes JSON's braces and quotes where YAML needs none.
func setBlockStyle(n *yaml.Node) {
	n.Style = 0
	if strings.ContainsFunc(n.Value, func(r rune) bool { return human.Dangerous(r) && r != '\n' }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		setBlockStyle(c)
	}
}
