package template

import (
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Schema returns the JSON Schema of a template that is not rendered yet. Texts in quotes may contain expressions of text/template.
func Schema() strictyaml.Schema {
	variables := strictyaml.Schema{}
	for _, name := range action.Natives() {
		for _, v := range action.Describe(name).Variables {
			before, _ := variables[v.Name].(strictyaml.Schema)
			text, _ := before["description"].(string)
			variables[v.Name] = strictyaml.Text(strings.TrimPrefix(text+"; "+name+": "+v.Text, "; "))
		}
	}

	environment := strictyaml.Schema{"properties": variables}
	return strictyaml.SchemaOf[document]("A template, as ingot template create reads it", strictyaml.Rules{
		"version":                       {"anyOf": []any{strictyaml.Schema{"enum": []any{version, 0.1}}, madeOfData}},
		"global_timeout":                {"minimum": 0},
		"tasks[].environment":           environment,
		"tasks[].actions[].environment": environment,
		"tasks[].actions[].timeout":     {"minimum": 0},
		"tasks[].actions[].image":       {"anyOf": []any{strictyaml.OneOf(action.Names()...), strictyaml.Schema{"pattern": "[/:@{]"}}},
		"documents[].kind":              orData(inventory.DocumentKinds()...),
		"installer.complete":            orData(inventory.Completions()...),
		"installer.timeout":             {"minimum": 0},
	})
}

// madeOfData is the rule for a text that contains an expression, so that its value depends on data.
var madeOfData = strictyaml.Schema{"pattern": `\{\{`}

// orData returns the rule for a text that must be one of these words, or contain an expression.
func orData(words ...string) strictyaml.Schema {
	return strictyaml.Schema{"anyOf": []any{strictyaml.OneOf(words...), madeOfData}}
}
