package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/template"
)

// A namedSchema is the JSON Schema of a kind of file.
type namedSchema struct {
	Name   string `json:"name"`
	Reads  string `json:"reads"` // the command that reads such files
	schema func() strictyaml.Schema
}

func fileSchemas() []namedSchema {
	return []namedSchema{
		{"catalog", "ingot serve (images.catalog)", catalog.Schema},
		{"config", "ingot serve", config.Schema},
		{"lab", "ingot genesis start", genesis.Schema},
		{"machine", "ingot machine push", machinefile.Schema},
		{"template", "ingot template create", template.Schema},
	}
}

func schemaCommand(o *Options) *cobra.Command {
	var names []string
	for _, s := range fileSchemas() {
		names = append(names, s.Name)
	}

	return o.NewCommand(&cobra.Command{
		Use: "schema [NAME]", Short: "Print the JSON Schema of a kind of file, for editors", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: firstArg(cobra.FixedCompletions(names, NoFiles)),
		Long: `Print the JSON Schema of a kind of file: ` + strings.Join(names, ", ") + `. Without NAME, list the kinds.
An editor with the YAML language server completes and checks a file whose first line
names the schema:

  # yaml-language-server: $schema=ingot-machine.json

This needs no server.`,
		Example: "  ingot schema machine > ingot-machine.json\n  ingot schema",
	}, func(c *Call) error {
		if len(c.Args) == 0 {
			return showSchemas(c)
		}

		for _, s := range fileSchemas() {
			if s.Name != c.Args[0] {
				continue
			}
			raw, err := json.MarshalIndent(s.schema(), "", "  ")
			if err != nil {
				return err
			}
			return c.print(c.OutOrStdout(), raw, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, string(raw))
				return err
			})
		}
		return human.Advise(UsageError("invalid schema %q; must be one of %s", c.Args[0], strings.Join(names, ", ")), "ingot schema")
	})
}

func showSchemas(c *Call) error {
	all := fileSchemas()
	return ShowValue(c, all, func(w io.Writer) error {
		return PrintTable(w, []string{"NAME", "FILES OF"}, all, func(s namedSchema) []any { return []any{s.Name, s.Reads} })
	})
}
