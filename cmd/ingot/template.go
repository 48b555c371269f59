package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/machinefile"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

func templateCmd(o *options) *cobra.Command {
	return group("template", "Templates: what is done to a machine", "  ingot template create --file my-template.yaml\n  ingot template render my-template --machine node-1",
		templateCreateCmd(o), templateListCmd(o), templateGetCmd(o), templateDeleteCmd(o), templateRenderCmd(o))
}

func templateCreateCmd(o *options) *cobra.Command {
	var file, name string
	c := &cobra.Command{
		Use: "create --file FILE", Short: "Store a template, or a new version of it", Args: cobra.NoArgs,
		Long:    "Store a template of Tinkerbell's format 0.1. Everything that is wrong is told at\nonce, with file and line, and then nothing is stored. Runs that go on keep the\nplan that they have.",
		Example: "  ingot template create --file my-template.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, b, err := readInput(cmd, file)
			if err != nil {
				return err
			}
			if err := machinefile.Foreign(from, b); err != nil {
				return err
			}
			// The server reads it, too, but does not know the file's name.
			if _, err := template.Parse(from, b); err != nil {
				return err
			}
			return askAndShow(cmd, o, "POST", path("templates"), map[string]string{"name": name, "source": string(b)}, func(w io.Writer, t inventory.Template) error {
				_, err := fmt.Fprintf(w, "template %s stored\nnext: ingot template render %s --machine NAME\n", t.Name, t.Name)
				return err
			})
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "YAML file, - for standard input")
	c.Flags().StringVar(&name, "name", "", "name (default: the one in the file)")
	cobra.CheckErr(c.MarkFlagRequired("file"))
	return c
}

func templateListCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List templates", Args: cobra.NoArgs, Aliases: []string{"ls"}, Example: "  ingot template list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "GET", path("templates"), nil, func(w io.Writer, l list[inventory.Template]) error {
				t := newTable(w, "NAME", "FROM", "UPDATED")
				for _, x := range l.Items {
					from := "a file"
					if x.Builtin {
						from = "the program"
					}
					t.row(x.Name, from, when(x.Updated))
				}
				return t.flush()
			})
		},
	}
}

func templateGetCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Print a template as it was entered", Args: cobra.ExactArgs(1), ValidArgsFunction: o.templateNames,
		Example: "  ingot template get image > my-template.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAndShow(cmd, o, "GET", path("templates", args[0]), nil, func(w io.Writer, t inventory.Template) error {
				_, err := fmt.Fprintln(w, strings.TrimRight(t.Source, "\n"))
				return err
			})
		},
	}
}

func templateDeleteCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Delete a template", Args: cobra.ExactArgs(1), ValidArgsFunction: o.templateNames,
		Example: "  ingot template delete my-template --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if _, err := ask[inventory.Template](cmd.Context(), c, "GET", path("templates", args[0]), nil); err != nil {
				return err
			}
			if err := confirm(cmd, yes, "deletes template "+args[0]+"; machines that name it cannot be provisioned until they name another", args[0]); err != nil {
				return err
			}
			if _, err := ask[struct{}](cmd.Context(), c, "DELETE", path("templates", args[0]), nil); err != nil {
				return err
			}
			say(cmd, "template %s deleted", args[0])
			return nil
		},
	}
	yesFlag(c, &yes)
	return c
}

func templateRenderCmd(o *options) *cobra.Command {
	var machine, image string
	var data map[string]string
	c := &cobra.Command{
		Use: "render NAME --machine M", Short: "Show what a template would do to a machine; nothing happens", Args: cobra.ExactArgs(1), ValidArgsFunction: o.templateNames,
		Example: "  ingot template render image --machine node-1 --image debian-12",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			in := struct {
				Machine     string            `json:"machine"`
				Image       string            `json:"image,omitempty"`
				HardwareMap map[string]string `json:"hardwareMap,omitempty"`
			}{Image: image, HardwareMap: data}
			if in.Machine, err = o.machineOf(cmd, c, machine); err != nil {
				return err
			}
			a, err := ask[api.Rendered](cmd.Context(), c, "POST", path("templates", args[0], "render"), in)
			if err != nil {
				return templateTrouble(args[0], err)
			}
			return show(cmd, o, a, printRendered)
		},
	}
	c.Flags().StringVar(&machine, "machine", "", "machine, by name or MAC")
	c.Flags().StringVar(&image, "image", "", "image (default: the machine's)")
	c.Flags().StringToStringVar(&data, "hardware-map", nil, "further data for the template, key=value; repeatable")
	cobra.CheckErr(c.MarkFlagRequired("machine"))
	completeFlag(c, "machine", o.machineNames)
	completeFlag(c, "image", o.imageNames)
	return c
}

// templateTrouble says that the lines of the problems are of the template.
func templateTrouble(name string, err error) error {
	var e *apiError
	if errors.As(err, &e) && len(e.Problems) > 0 && e.Next == "" {
		e.Next = "ingot template get " + name
	}
	return err
}

func printRendered(w io.Writer, r api.Rendered) error {
	fmt.Fprintf(w, "global timeout: %s\n", orText(secondsText(int64(r.GlobalTimeout)), "none"))
	if r.DiskAlias != "" {
		fmt.Fprintf(w, "disk:           the one that is chosen, for %s\n", inert(r.DiskAlias))
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
