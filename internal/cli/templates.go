package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

func templateCommand(o *Options) *cobra.Command {
	return addHabits(Group("template", "Templates: the actions of an installation",
		"  ingot template lint my-template.yaml\n  ingot template create --file my-template.yaml\n"+
			"  ingot template render my-template --machine node-1",
		templateCreateCommand(o), templateListCommand(o), templateGetCommand(o), templateEditCommand(o), templateDeleteCommand(o),
		templateLintCommand(o), templateRenderCommand(o)), templateHabits())
}

func templateCreateCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create --file FILE…", Short: "Create a template, or store a new version", Args: cobra.ArbitraryArgs,
		Long: `Store a template in Tinkerbell's format 0.1. If there is any problem, nothing is stored,
and all problems are reported at once, with file and line. Open runs keep the plan that
was made from the old version. This does the same as "ingot apply --file FILE", but
overwrites a template that was changed by other means.`,
		Example: "  ingot template create --file my-template.yaml",
	}
	a := &application{templates: true, replace: []string{inventory.KindTemplate}}
	a.addFileFlag(cmd).StringVar(&a.templateName, "name", "", "name of the template (default: the name in the file)")
	return o.NewCommand(cmd, a.run)
}

func templateListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[inventory.Template]{
		cmd:   &cobra.Command{Short: "List templates", Example: "  ingot template list"},
		route: client.Path("templates"), sort: "name", empty: "no templates",
		head: []string{"NAME", "FROM", "UPDATED"},
		row: func(t inventory.Template) []any {
			from := "a file"
			if t.Builtin {
				from = "the program"
			}
			return []any{t.Name, from, human.Time(t.Updated)}
		},
	})
}

func templateGetCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "get NAME", Aliases: []string{"show", "describe"}, Short: "Print a template as it was stored",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.templates()),
		Example: "  ingot template get image > my-template.yaml",
	}, func(c *Call) error {
		return getAndShow(c, client.Path("templates", c.Args[0]), text(func(t inventory.Template) string {
			return strings.TrimRight(t.Source, "\n")
		}))
	})
}

func templateEditCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "edit NAME", Short: "Change a template in an editor", Args: cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(o.templates()),
		Long: `Open a template in $VISUAL, $EDITOR or vi, and store what you change. Errors are shown
as comments, and the editor opens again. Open runs keep the plan that was made from the
old version. If another client has changed the template while the editor was open,
nothing is stored, and your text is kept in a file.`,
		Example: "  ingot template edit my-template",
	}, func(c *Call) error {
		a, err := get[inventory.Template](c, client.Path("templates", c.Args[0]))
		if err != nil {
			return err
		}
		before := a.Value
		if before.Builtin {
			return human.Advise(UsageError("template %q comes with the program and cannot be changed", before.Name),
				"ingot template get "+before.Name+" > my-template.yaml")
		}
		return c.openEditor(document{what: "template " + before.Name, text: before.Source, store: func(source string) error {
			if _, err := template.Parse("", []byte(source)); err != nil {
				return err
			}
			in := map[string]any{"name": before.Name, "source": source, "updated": before.Updated}
			return postAndShow(c, client.Path("templates"), in, text(func(t inventory.Template) string {
				return fmt.Sprintf("template %s stored\nnext: ingot template render %s --machine NAME", t.Name, t.Name)
			}))
		}})
	})
}

func templateDeleteCommand(o *Options) *cobra.Command {
	return deleteCommand(o, &cobra.Command{
		Use: "delete NAME", Short: "Delete a template", ValidArgsFunction: firstArg(o.templates()),
		Example: "  ingot template delete my-template --yes",
	}, func(c *Call) (deletion, error) {
		route := client.Path("templates", c.Args[0])
		_, err := get[inventory.Template](c, route)
		lost := "; machines that name it cannot be provisioned until they name another template"
		return deletion{what: "template " + c.Args[0], lost: lost, route: route}, err
	})
}

// A lintedTemplate is the result of "template lint" for a template without problems.
type lintedTemplate struct {
	File string `json:"file"`
	template.Linted
}

func templateLintCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "lint FILE…", Short: "Report all problems in templates", Args: cobra.MinimumNArgs(1),
		Long: `Report all problems in templates that can be found without a machine: syntax, unknown
keys and functions, actions that do not exist, invalid environment variables and
time-outs, a wrong order of actions, and disks and partitions that an action does not
support. For problems that depend on a machine, use "ingot template render FILE
--machine M". "-" is standard input. This needs no server, except in the client-only
program, which asks the server.

An environment variable that the action does not read is reported as a note, not as a
problem.

Exit codes: 0 no problem; 2 a problem, or a file that cannot be read.`,
		Example: "  ingot template lint my-template.yaml\n  ingot template lint templates/*.yaml --output json",
	}, func(c *Call) error {
		var all inventory.Problems
		linted := []lintedTemplate{}
		for _, file := range c.Args {
			ts, err := lintTemplates(c, file)
			var ps inventory.Problems
			switch {
			case errors.As(err, &ps):
				all = append(all, ps...)
			case errors.Is(err, inventory.ErrInvalid):
				all = append(all, inventory.Problem{File: file, What: inventory.TextOf(err)})
			case err != nil:
				return err
			}
			linted = append(linted, ts...)
		}
		if err := all.Err(); err != nil {
			return err
		}

		return ShowValue(c, linted, func(w io.Writer) error {
			for _, t := range linted {
				for _, n := range t.Notes {
					c.Note("note: %s", Inert(n.String()))
				}
				fmt.Fprintf(w, "%s is valid\n", Inert(t.File))
			}
			return nil
		})
	})
}

// lintTemplates checks all templates in a file. The problems of all of them are one inventory.Problems.
func lintTemplates(c *Call, file string) (linted []lintedTemplate, err error) {
	from, sources, err := readTemplates(c, file)
	if err != nil {
		return nil, err
	}

	lint := template.Lint
	if c.Systems == nil {
		lint = c.lintOnServer
	}
	var all inventory.Problems
	for _, x := range sources {
		t, err := lint(from, []byte(x.Source))
		var ps inventory.Problems
		switch {
		case errors.As(err, &ps):
			all = append(all, ps...)
		case err != nil:
			return nil, err
		default:
			t.Name = cmp.Or(x.Name, t.Name)
			linted = append(linted, lintedTemplate{from, t})
		}
	}
	return linted, all.Err()
}

// lintOnServer does what [template.Lint] does, by the rules of the server.
func (c *Call) lintOnServer(file string, src []byte) (template.Linted, error) {
	a, err := post[template.Linted](c, client.Path("templates", "lint"), map[string]string{"source": string(src)})
	ps := a.Value.Notes
	var refused *client.Error
	if errors.As(err, &refused) && len(refused.Problems) > 0 {
		ps, err = refused.Problems, refused.Problems
	}
	for i := range ps {
		ps[i].File = file
	}
	return a.Value, err
}

// readTemplates reads the templates in a file, without checking them: one, or all of a file of another program. It also returns
// the name of the file for messages.
func readTemplates(c *Call, file string) (from string, ts []importfile.Template, err error) {
	from, b, err := readInput(c.Command, file)
	if err != nil {
		return from, nil, err
	}
	f := importfile.File{Name: from, Content: b}
	if !importfile.Known(f) {
		return from, []importfile.Template{{Template: inventory.Template{Source: string(b)}}}, nil
	}
	read, err := importfile.Read([]importfile.File{f})
	if err == nil && len(read.Templates) == 0 {
		err = inventory.Problems{{File: from, What: "holds no template", Remedy: "check it with: ingot import --offline " + from}}
	}
	return from, read.Templates, err
}
