package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/template"
)

// renderRequest is the body of a request to render a template.
type renderRequest struct {
	Machine     string            `json:"machine"`
	Image       string            `json:"image,omitempty"`
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	Source      string            `json:"source,omitempty"`
	Explain     bool              `json:"explain,omitempty"`
}

func templateRenderCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "render NAME|FILE --machine M", Short: "Show what a template would do to a machine; nothing is changed",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.templates()),
		Long: `Show the actions that a template produces for a machine. Nothing is stored or changed.
The argument is a file if it contains a slash, ends in .yaml or .yml, or is "-"
(standard input); otherwise it is the name of a template on the server.

--explain shows for each action which of the agent's built-in actions runs, and where
each value comes from: the template, the machine, a default or Ingot. Secrets are shown
as references.`,
		Example: "  ingot template render image --machine node-1 --image debian-12\n" +
			"  ingot template render my-template.yaml --machine node-1 --explain",
	}

	var in renderRequest
	machine := cmd.Flags().String("machine", "", "machine, by name or MAC")
	cmd.Flags().StringVar(&in.Image, "image", "", "image (default: the machine's image)")
	cmd.Flags().StringToStringVar(&in.HardwareMap, "hardware-map", nil,
		"additional value for the template, key=value; repeatable")
	cmd.Flags().BoolVar(&in.Explain, "explain", false, "show which built-in action runs and where each value comes from")
	requireFlags(cmd, "machine")
	CompleteFlag(cmd, "machine", o.machines())
	CompleteFlag(cmd, "image", o.images())

	return o.NewCommand(cmd, func(c *Call) error {
		a, err := renderTemplate(c, *machine, in)
		if err != nil {
			return err
		}
		return show(c, a, func(w io.Writer, r template.Rendering) error {
			for _, warning := range r.Warnings {
				c.Note("warning: %s", Inert(warning))
			}
			return printRendered(w, r)
		})
	})
}

// renderTemplate renders a template for a machine. The argument names the file of the template, or a stored template.
func renderTemplate(c *Call, machine string, in renderRequest) (a client.Answer[template.Rendering], err error) {
	name, file := c.Args[0], ""
	if isTemplateFile(name) {
		from, ts, err := readTemplates(c, name)
		if err != nil {
			return a, err
		}
		if len(ts) > 1 {
			return a, UsageError("%s holds %d templates; import the file, then render one template by its name", name, len(ts))
		}
		file, in.Source = from, ts[0].Source
		name = cmp.Or(ts[0].Name, "template")
		if c.Systems != nil { // find problems that do not depend on the machine without the server
			if _, err := template.Parse(from, []byte(in.Source)); err != nil {
				return a, err
			}
		}
	}
	if in.Machine, err = findMachine(c, machine); err != nil {
		return a, err
	}

	a, err = post[template.Rendering](c, client.Path("templates", name, "render"), in)
	var e *client.Error
	if !errors.As(err, &e) || len(e.Problems) == 0 {
		return a, err
	}
	switch {
	case file != "":
		for i := range e.Problems {
			e.Problems[i].File = file
		}
	case e.Next == "":
		e.Next = "ingot template get " + name // this command shows the lines that the problems name
	}
	return a, err
}

// isTemplateFile reports whether arg names a file. Otherwise it is the name of a stored template.
func isTemplateFile(arg string) bool {
	return arg == "-" || strings.ContainsRune(arg, '/') || slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(arg))
}

func printRendered(w io.Writer, r template.Rendering) error {
	why := template.Explanation{Actions: make([]template.ActionExplanation, len(r.Actions))}
	if r.Explanation != nil && len(r.Explanation.Actions) == len(r.Actions) {
		why = *r.Explanation
	}

	fmt.Fprintf(w, "global timeout: %s%s\n", cmp.Or(secondsText(int64(r.GlobalTimeout)), "none"), originText(why.GlobalTimeout))
	if r.DiskAlias != "" {
		fmt.Fprintf(w, "disk:           the chosen disk, in place of %s%s\n", Inert(r.DiskAlias), originText(why.DiskAlias))
	}
	if why.Installer != "" {
		fmt.Fprintf(w, "installer:      %s\n", Inert(why.Installer))
	}

	for i, a := range r.Actions {
		fmt.Fprintf(w, "\n%d  %s  %s  (timeout %s%s)\n", i, Inert(a.Name), Inert(a.Image), secondsText(int64(a.Timeout)),
			originText(why.Actions[i].Timeout))
		if err := printAction(w, a, why.Actions[i]); err != nil {
			return err
		}
	}

	return nil
}

// printAction prints the details of an action. why explains the action; it is the zero value without --explain.
func printAction(w io.Writer, a action.Action, why template.ActionExplanation) error {
	t := NewTable(w)
	if why.Native != "" {
		t.Row("   action", why.Native+originText(why.Rule))
	}
	second := ""
	if d := a.Second; d != nil {
		second = fmt.Sprintf("the one with serial %q, wwn %q, in place of %s", d.Serial, d.WWN, Inert(d.Device))
	}
	for _, f := range [][2]string{
		{"disk", second}, {"appended", why.Appended}, {"added later", why.Adds}, {"writes", yesText(why.Writes)}, {"leaves", yesText(why.Leaves)},
	} {
		if f[1] != "" {
			t.Row("   "+f[0], f[1])
		}
	}

	names := slices.Collect(maps.Keys(a.Environment))
	names = append(names, slices.Collect(maps.Keys(why.Environment))...)
	slices.Sort(names)
	for _, k := range slices.Compact(names) {
		t.Row("   "+k, shorten(a.Environment[k], 120)+originText(why.Environment[k]))
	}

	for _, list := range []struct {
		key   string
		words []string
	}{{"command", a.Command}, {"on-timeout", a.OnTimeout}, {"on-failure", a.OnFailure}} {
		if len(list.words) > 0 {
			b, err := json.Marshal(list.words)
			if err != nil {
				return err
			}
			t.Row("   "+list.key, shorten(string(b), 120))
		}
	}
	if len(a.Volumes) > 0 {
		t.Row("   volumes", strings.Join(a.Volumes, ", "))
	}
	return t.Flush()
}

// originText returns a text to append to a value: where the value comes from. It returns "" if that is not known.
func originText(from string) string {
	if from == "" {
		return ""
	}
	return "  ← " + Inert(from)
}

func yesText(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func secondsText(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d s", n)
}
