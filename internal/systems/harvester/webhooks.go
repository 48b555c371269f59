package harvester

import (
	"bytes"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Events that the installer reports to webhooks.
var events = []string{"STARTED", "SUCCEEDED", "FAILED"}

// AddWebhooks adds a webhook for each event of the installer to install.webhooks and returns the changed configuration. Each webhook sends
// a POST to the URL that consists of prefix and the event. The rest of the configuration is neither changed nor checked, and keeps its
// comments.
func (Document) AddWebhooks(contents []byte, prefix string) ([]byte, error) {
	out, err := addWebhooks(contents, prefix)
	if err != nil {
		return nil, fmt.Errorf("adding webhooks to the Harvester document: %w", err)
	}
	return out, nil
}

func addWebhooks(contents []byte, prefix string) ([]byte, error) {
	var doc yaml.Node
	if strictyaml.DecodeNode(yaml.NewDecoder(bytes.NewReader(contents)), &doc) != nil || len(doc.Content) == 0 {
		return nil, inventory.Problems{{What: "is not YAML"}}
	}
	root := doc.Content[0]
	install := entry(root, "install", yaml.MappingNode)
	if install == nil {
		return nil, inventory.Problems{{Field: "install", What: "is not a mapping", Line: root.Line}}
	}
	list := entry(install, "webhooks", yaml.SequenceNode)
	if list == nil {
		return nil, inventory.Problems{{Field: "install.webhooks", What: "is not a list", Line: install.Line}}
	}

	for _, event := range events {
		list.Content = append(list.Content, &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
			scalar("event"), scalar(event),
			scalar("method"), scalar("POST"),
			scalar("url"),
			{Kind: yaml.ScalarNode, Value: prefix + event, Style: yaml.DoubleQuotedStyle},
		}})
	}
	list.Style &^= yaml.FlowStyle

	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	err := errors.Join(enc.Encode(&doc), enc.Close())
	return out.Bytes(), err
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

// entry returns the value of a key in the mapping m. If the key is missing, entry adds it with an empty value of the given kind. It returns
// nil if m is not a mapping, or if the value is of another kind.
func entry(m *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	if m.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value != key {
			continue
		}
		v := m.Content[i+1]
		if v.Kind == yaml.ScalarNode && v.ShortTag() == "!!null" {
			*v = yaml.Node{Kind: kind}
		}
		if v.Kind != kind {
			return nil
		}
		return v
	}

	v := &yaml.Node{Kind: kind}
	m.Content = append(m.Content, scalar(key), v)
	return v
}
