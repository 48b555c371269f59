package strictyaml

import (
	"bytes"
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/text/human"
)

// FromJSON converts JSON to YAML with the keys in the same order. It escapes characters that a terminal
// could interpret.
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

	return []byte(human.Escape(b.String())), nil // the encoder does not escape the Unicode marks that reorder text
}

// setBlockStyle sets YAML's block style for n and all nodes below, so that braces and unnecessary quotes disappear.
func setBlockStyle(n *yaml.Node) {
	n.Style = 0
	if strings.ContainsFunc(n.Value, func(r rune) bool { return human.Dangerous(r) && r != '\n' }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		setBlockStyle(c)
	}
}
