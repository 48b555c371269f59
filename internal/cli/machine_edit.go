package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/mergepatch"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func machineSetCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set NAME KEY=VALUE…", Short: "Change fields of a machine", Args: cobra.MinimumNArgs(1),
		Long: `Change fields of a machine, all or none. KEY is the path of a field in the output of
"ingot machine get NAME --output yaml", with dots: bmc.host, interfaces[0].address.
"KEY=" removes the field. A list is written as in YAML:

  sshKeys='[ssh-ed25519 AAAA… name]'

Fields that are not named are kept, and so are secrets. A secret is read from a file,
and removed with "bmc.password=", "userData=" or "vendorData=". If the BMC's driver,
address, port or TLS settings change, the stored BMC password is deleted: give it again.`,
		Example: "  ingot machine set node-1 image=debian-12 labels.rack=a1\n" +
			"  ingot machine set node-1 bmc.host=10.0.9.12 --bmc-password-file password\n" +
			"  ingot machine set node-1 template= userData=",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return o.machines()(cmd, args, to)
			}
			return machineFields(), NoFiles | cobra.ShellCompDirectiveNoSpace
		},
	}
	password := cmd.Flags().String("bmc-password-file", "", "file with the BMC's password, - for standard input")
	userData := cmd.Flags().String("user-data-file", "", "file with the user data, - for standard input; stored as a secret")
	vendorData := cmd.Flags().String("vendor-data-file", "", "file with the vendor data, - for standard input; stored as a secret")

	return o.NewCommand(cmd, func(c *Call) error {
		secrets := map[string]string{}
		if *password != "" {
			s, err := bmcFlags{passwordFile: *password}.readPassword(c, nil)
			if err != nil {
				return err
			}
			secrets["bmc.password"] = s.Reveal()
		}
		for field, file := range map[string]string{"userData": *userData, "vendorData": *vendorData} {
			if file == "" {
				continue
			}
			_, b, err := readInput(c.Command, file)
			if err != nil {
				return err
			}
			secrets[field] = string(b)
		}
		if len(c.Args) == 1 && len(secrets) == 0 {
			return human.Advise(UsageError("there is nothing to change"), c.CommandPath()+" --help")
		}
		return setFields(c, c.Args[0], c.Args[1:], secrets)
	})
}

// setFields changes fields of a machine. Each argument is KEY=VALUE; secrets are new secrets by field.
func setFields(c *Call, name string, args []string, secrets map[string]string) error {
	view, err := get[apitypes.MachineView](c, client.Path("machines", name))
	if err != nil {
		return err
	}
	before, err := documentOf(view.Value.Machine)
	if err != nil {
		return err
	}
	doc, err := documentOf(view.Value.Machine) // a copy
	if err != nil {
		return err
	}

	var clearing []string
	for _, arg := range args {
		key, text, isPair := strings.Cut(arg, "=")
		secret := key == "bmc.password" || key == "userData" || key == "vendorData"
		switch {
		case isPair && (strings.HasSuffix(key, ".") || strings.Contains(key, "..")):
			return UsageError("invalid field %q; a name is empty", key)
		case !isPair:
			return UsageError("invalid argument %q; write KEY=VALUE, or KEY= to remove a field", arg)
		case secret && text != "":
			return UsageError("%s is a secret, which other users of this host could read in an argument: give it in a file, see --help", key)
		case secret:
			clearing = append(clearing, key)
		case key == "bmc" && text == "":
			clearing = append(clearing, "bmc.password")
		}
		if err := setField(doc, machinefile.Schema(), key, text); err != nil {
			return err
		}
	}
	for _, key := range []string{"bmc.password", "userData", "vendorData"} {
		if v, found := mergepatch.Find(doc, key); found && v != nil {
			return UsageError("%s is a secret, which other users of this host could read in an argument: give it in a file, see --help", key)
		}
	}
	for field, text := range secrets {
		into, key := doc, field
		if part, rest, nested := strings.Cut(field, "."); nested {
			inner, found := doc[part].(map[string]any)
			if !found {
				return UsageError("machine %q has no %s", name, part)
			}
			into, key = inner, rest
		}
		into[key] = action.EncodeBytes(text)
	}

	after, err := asJSON(doc)
	if err != nil {
		return err
	}
	return patchMachine(c, view.Value, mergepatch.Diff(before, after), clearing)
}

func machineLabelCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "label NAME KEY=VALUE… KEY-…", Short: "Set and remove labels of a machine", Args: cobra.MinimumNArgs(2),
		Long:              `Set labels of a machine with KEY=VALUE, and remove labels with KEY-.`,
		Example:           "  ingot machine label node-1 rack=a1 role=worker\n  ingot machine label node-1 role-",
		ValidArgsFunction: firstArg(o.machines()),
	}, func(c *Call) error {
		labels := map[string]any{}
		for _, arg := range c.Args[1:] {
			key, value, isPair := strings.Cut(arg, "=")
			var label any = value
			if !isPair {
				label = nil
				key, isPair = strings.CutSuffix(arg, "-")
			}
			if !isPair || key == "" {
				return UsageError("invalid argument %q; write KEY=VALUE, or KEY- to remove a label", arg)
			}
			if _, twice := labels[key]; twice {
				return UsageError("label %q is given twice", key)
			}
			labels[key] = label
		}
		view, err := get[apitypes.MachineView](c, client.Path("machines", c.Args[0]))
		if err != nil {
			return err
		}
		return patchMachine(c, view.Value, map[string]any{"labels": labels}, nil)
	})
}

func machineEditCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "edit NAME", Short: "Change a machine in an editor", Args: cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(o.machines()),
		Long: `Open a machine as YAML in $VISUAL, $EDITOR or vi, and store what you change. Errors are
shown as comments, and the editor opens again. Without a change, nothing is sent.

Secrets are not shown, but they are kept; a secret that you write replaces the stored
one. If another client has changed the machine while the editor was open, nothing is
stored, and your text is kept in a file.`,
		Example: "  ingot machine edit node-1\n  EDITOR=nano ingot machine edit node-1",
	}, func(c *Call) error {
		view, err := get[apitypes.MachineView](c, client.Path("machines", c.Args[0]))
		if err != nil {
			return err
		}
		before := view.Value.Machine
		base, err := documentOf(before)
		if err != nil {
			return err
		}
		raw, err := json.Marshal(inventory.DocumentOf(before))
		if err != nil {
			return err
		}
		text, err := strictyaml.FromJSON(raw)
		if err != nil {
			return err
		}

		d := document{what: "machine " + before.Name, text: string(text), store: func(text string) error {
			docs, err := strictyaml.Documents("", []byte(text))
			if err != nil {
				return err
			}
			ms, _, err := machinefile.Read("", docs)
			if err != nil {
				return err
			}
			if len(ms) != 1 {
				return inventory.Invalid("", "remove the lines ---", "the text holds %d machines", len(ms))
			}
			after, err := documentOf(ms[0])
			if err != nil {
				return err
			}
			err = patchMachine(c, view.Value, mergepatch.Diff(base, after), nil)
			var refused *client.Error
			if errors.As(err, &refused) {
				for n := range refused.Problems {
					refused.Problems[n].Field = strings.TrimPrefix(refused.Problems[n].Field, before.Name+": ")
				}
				refused.Problems = docs[0].Locate(refused.Problems)
			}
			return err
		}}
		for _, f := range before.SecretFields() {
			if *f.Stored {
				d.notes = append(d.notes, f.Name+" is stored and not shown; remove it with: ingot machine set "+before.Name+" "+f.Name+"=")
			}
		}
		return c.openEditor(d)
	})
}

// documentOf returns the fields of m that a patch may set, with the secrets that m gives, as JSON decodes them.
func documentOf(m inventory.Machine) (map[string]any, error) {
	doc, given := inventory.DocumentOf(m), m.SecretFields()
	for n, f := range doc.SecretFields() {
		*f.Value = *given[n].Value
	}
	raw, err := marshalWithSecrets(doc)
	if err != nil {
		return nil, err
	}
	return asJSON(raw)
}

// asJSON returns the JSON object of v as JSON decodes it.
func asJSON(v any) (map[string]any, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	doc, err := mergepatch.Decode(raw)
	object, _ := doc.(map[string]any)
	return object, err
}

// patchMachine sends a patch of the machine that was read as before, and shows what has changed. clearing lists the secrets that a
// null in the patch removes.
func patchMachine(c *Call, before apitypes.MachineView, patch map[string]any, clearing []string) error {
	if len(patch) == 0 {
		c.Note("machine %s not changed", before.Name)
		return nil
	}
	s, err := c.Server()
	if err != nil {
		return err
	}
	route := client.Path("machines", before.Name)
	query := url.Values{}
	if len(clearing) > 0 {
		query.Set("clear", strings.Join(clearing, ","))
	}
	a, err := client.Patch[apitypes.MachineView](c.Context(), s, client.WithQuery(route, query), before.ETag(), patch)
	if err != nil {
		return explainStale(c, before, err)
	}

	printWarnings(c, a.Value.Warnings)
	if a.Value.Version == before.Version {
		c.Note("machine %s not changed", before.Name)
		return nil
	}
	return show(c, a, func(w io.Writer, m apitypes.MachineView) error {
		fmt.Fprintf(w, "machine %s changed\n", m.Name)
		return nil
	})
}

// explainStale adds to err which fields another client has changed since before was read, if this is why the server has refused a
// patch.
func explainStale(c *Call, before apitypes.MachineView, err error) error {
	var answered *client.Error
	if !errors.As(err, &answered) || answered.Status != http.StatusPreconditionFailed {
		return err
	}
	what := ""
	if now, err := get[apitypes.MachineView](c, client.Path("machines", before.Name)); err == nil {
		changes, err := inventory.Differences(before.Machine, now.Value.Machine)
		if err != nil {
			return err
		}
		var fields []string
		for _, x := range changes {
			fields = append(fields, x.Field)
		}
		what = ": " + cmp.Or(strings.Join(fields, ", "), "a secret")
	}
	answered.Text = fmt.Sprintf("machine %s was changed by another client since it was read%s; nothing was stored", before.Name, what)
	return human.Advise(err, "ingot machine get "+before.Name)
}
