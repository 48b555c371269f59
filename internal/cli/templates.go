package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/machinefile"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

func templateCommand(o *options) *cobra.Command {
	return group("template", "Templates: the actions of an installation",
		"  ingot template create --file my-template.yaml\n  ingot template render my-template --machine node-1",
		templateCreateCommand(o), templateListCommand(o), templateGetCommand(o), templateDeleteCommand(o),
		templateRenderCommand(o))
}

func templateCreateCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create --file FILE", Short: "Store a template, or a new version of it", Args: cobra.NoArgs,
		Long: `Store a template of Tinkerbell's format 0.1. Everything that is wrong is reported
at once, with file and line, and then nothing is stored. Open runs keep the plan
that they have.`,
		Example: "  ingot template create --file my-template.yaml",
	}

	file := fileFlag(cmd, "YAML file, - for standard input")
	name := cmd.Flags().String("name", "", "name (default: the one in the file)")
	requireFlags(cmd, "file")

	return o.command(cmd, func(c *call) error {
		from, b, err := readInput(c.Command, *file)
		if err != nil {
			return err
		}
		if err := machinefile.Foreign(from, b); err != nil {
			return err
		}

		// The server also parses it, but does not know the file's name.
		if _, err := template.Parse(from, b); err != nil {
			return err
		}

		in := map[string]string{"name": *name, "source": string(b)}
		return postAndShow(c, client.Path("templates"), in, text(func(t inventory.Template) string {
			return fmt.Sprintf("template %s stored\nnext: ingot template render %s --machine NAME", t.Name, t.Name)
		}))
	})
}

func templateListCommand(o *options) *cobra.Command {
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

func templateGetCommand(o *options) *cobra.Command {
	return o.command(&cobra.Command{
		Use: "get NAME", Short: "Print a template as it was entered",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.templates()),
		Example: "  ingot template get image > my-template.yaml",
	}, func(c *call) error {
		return getAndShow(c, client.Path("templates", c.args[0]), text(func(t inventory.Template) string {
			return strings.TrimRight(t.Source, "\n")
		}))
	})
}

func templateDeleteCommand(o *options) *cobra.Command {
	return deleteCommand(o, &cobra.Command{
		Use: "delete NAME", Short: "Delete a template", ValidArgsFunction: firstArg(o.templates()),
		Example: "  ingot template delete my-template --yes",
	}, func(c *call) (deletion, error) {
		route := client.Path("templates", c.args[0])
		_, err := get[inventory.Template](c, route)
		lost := "; machines that name it cannot be provisioned until they name another"
		return deletion{what: "template " + c.args[0], lost: lost, route: route}, err
	})
}

func templateRenderCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "render NAME --machine M", Short: "Show what a template would do to a machine; nothing is changed",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.templates()),
		Example: "  ingot template render image --machine node-1 --image debian-12",
	}

	var in struct {
		Machine     string            `json:"machine"`
		Image       string            `json:"image,omitempty"`
		HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	}

	machine := cmd.Flags().String("machine", "", "machine, by name or MAC")
	cmd.Flags().StringVar(&in.Image, "image", "", "image (default: the machine's)")
	cmd.Flags().StringToStringVar(&in.HardwareMap, "hardware-map", nil,
		"further data for the template, key=value; repeatable")
	requireFlags(cmd, "machine")
	completeFlag(cmd, "machine", o.machines())
	completeFlag(cmd, "image", o.images())

	return o.command(cmd, func(c *call) error {
		var err error
		if in.Machine, err = findMachine(c, *machine); err != nil {
			return err
		}

		a, err := post[api.Rendered](c, client.Path("templates", c.args[0], "render"), in)
		var e *client.Error
		if errors.As(err, &e) && len(e.Problems) > 0 && e.Next == "" {
			e.Next = "ingot template get " + c.args[0] // the problems name lines of its output
		}
		if err != nil {
			return err
		}

		return show(c, a, printRendered)
	})
}

func printRendered(w io.Writer, r api.Rendered) error {
	fmt.Fprintf(w, "global timeout: %s\n", cmp.Or(secondsText(int64(r.GlobalTimeout)), "none"))
	if r.DiskAlias != "" {
		fmt.Fprintf(w, "disk:           the chosen one, for %s\n", inert(r.DiskAlias))
	}

	for i, a := range r.Actions {
		fmt.Fprintf(w, "\n%d  %s  %s  (timeout %s)\n", i, inert(a.Name), inert(a.Image), secondsText(int64(a.Timeout)))
		t := newTable(w)
		for _, k := range slices.Sorted(maps.Keys(a.Environment)) {
			t.row("   "+k, shorten(a.Environment[k], 120))
		}
		if len(a.Command) > 0 {
			b, err := json.Marshal(a.Command)
			if err != nil {
				return err
			}
			t.row("   command", string(b))
		}
		if len(a.Volumes) > 0 {
			t.row("   volumes", strings.Join(a.Volumes, ", "))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}

	return nil
}

func secondsText(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d s", n)
}
