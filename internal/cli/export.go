package cli

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func exportCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "export [NAME…]", Short: "Write machines and templates as YAML that ingot apply reads",
		ValidArgsFunction: o.machines(),
		Long: `Write machines and templates as YAML, from which "ingot apply" can restore them in an
empty inventory. Without NAME and --selector, all machines and all templates except the
built-in ones are written; otherwise, the selected machines and the templates that they
use.

Passwords, user data and vendor data are never written. The YAML has the fields
hasPassword, hasUserData and hasVendorData instead: if it is applied to the same
inventory, the stored secrets are kept. For another inventory, add the secrets to the
YAML.

An existing file is not overwritten without --force.`,
		Example: "  ingot export > site.yaml\n  ingot export --selector rack=a1 --file rack-a1.yaml",
	}

	wanted := addSelectorFlag(cmd, "only machines with these labels")
	file := fileFlag(cmd, "file to write (default: standard output)")
	force := cmd.Flags().Bool("force", false, "overwrite the file")
	CompleteFlag(cmd, selectorName, o.labels())

	return o.NewCommand(cmd, func(c *Call) error {
		if err := checkTarget(*file, *force); err != nil {
			return err
		}
		ms, err := machinesToExport(c, *wanted)
		if err != nil {
			return err
		}
		ts, err := templatesToExport(c, ms, len(c.Args)+len(*wanted) > 0)
		if err != nil {
			return err
		}

		b, err := importfile.Export(ms, ts)
		if err != nil {
			return err
		}
		if *file == "" {
			_, err = c.OutOrStdout().Write(b)
			return err
		}
		if err := writeExport(*file, b, *force); err != nil {
			return err
		}
		c.Note("%s written: machines %d, templates %d", *file, len(ms), len(ts))
		return nil
	})
}

// checkTarget returns an error if file exists and force is false. It runs before the first request to the server.
func checkTarget(file string, force bool) error {
	if file == "" || force {
		return nil
	}
	if _, err := os.Lstat(file); err == nil {
		return human.Advise(fmt.Errorf("%s exists, and is overwritten only with --force: %w", file, inventory.ErrConflict),
			"ingot export --force --file "+file)
	}
	return nil
}

// machinesToExport returns the machines that the arguments and the selector select, sorted by name.
func machinesToExport(c *Call, wanted selector.Selector) ([]inventory.Machine, error) {
	route := client.Path("machines")
	if len(wanted) > 0 {
		route = client.WithQuery(route, url.Values{selectorName: {wanted.String()}})
	}
	a, err := getAll[inventory.Machine](c, route)
	if err != nil || len(c.Args) == 0 {
		return a.Value.Items, err
	}

	var out []inventory.Machine
	var missing []error
	for _, arg := range c.Args {
		mac, _ := inventory.ParseMAC(arg) // "" if arg is not a MAC; "" matches no machine
		n := slices.IndexFunc(a.Value.Items, func(m inventory.Machine) bool {
			_, has := m.InterfaceByMAC(mac)
			return m.Name == arg || has
		})
		if n < 0 {
			missing = append(missing, fmt.Errorf("machine %q: %w", arg, inventory.ErrNotFound))
			continue
		}
		out = append(out, a.Value.Items[n])
	}
	if len(missing) > 0 {
		return nil, human.Advise(errors.Join(missing...), "ingot machine list")
	}

	slices.SortFunc(out, func(a, b inventory.Machine) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(out, func(a, b inventory.Machine) bool { return a.Name == b.Name }), nil
}

// templatesToExport returns the stored templates that are not built in. If named is true, it returns only
// the templates that a machine of ms uses.
func templatesToExport(c *Call, ms []inventory.Machine, named bool) ([]inventory.Template, error) {
	a, err := getAll[inventory.Template](c, client.Path("templates"))
	if err != nil {
		return nil, err
	}

	var out []inventory.Template
	for _, t := range a.Value.Items {
		wanted := !named || slices.ContainsFunc(ms, func(m inventory.Machine) bool { return m.Template == t.Name })
		if wanted && !t.Builtin {
			out = append(out, t)
		}
	}
	return out, nil
}

// writeExport writes b to a file that only its owner may read. It replaces an existing file only if force is true.
func writeExport(file string, b []byte, force bool) error {
	if force {
		return durablefile.Replace(file, b)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
