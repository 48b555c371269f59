package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func machinePushCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "push --file FILE", Short: "Store the machines of a file, all or none", Args: cobra.NoArgs,
		Long: `Store the machines of a YAML or JSON file ("-" is standard input) with one machine
per document. All problems are reported at once, with file and line, and then nothing
is stored.

With --replace, an existing machine becomes what the file says: a field that is left
out or empty is removed. A stored secret is kept if the file has hasPassword,
hasUserData or hasVendorData in its place. "ingot machine get NAME --output yaml"
writes them so: its output can be edited and pushed back. The field netboot is not
read: a push arms no machine. While a machine has an open run, its MACs, addresses and
disks cannot be changed, but the access to its BMC can be corrected.

This is a machine; write "---" between two machines:

  name: node-1
  image: debian-12
  interfaces:
    - mac: "02:00:00:00:00:01"
      address: 10.0.0.11/24
      gateway: 10.0.0.1
  diskSelector: {minSize: 400GB, maxSize: 1TB}
  bmc: {driver: ipmi, host: 10.0.9.11, user: admin, password: secret}

A document of Tinkerbell or EKS Anywhere is imported; see "ingot import --help".`,
		Example: "  ingot machine push --file hardware.yaml\n" +
			"  ingot machine push --file hardware.yaml --replace   # changes machines that exist",
	}

	file := fileFlag(cmd, "YAML or JSON file of machines, - for standard input")
	replace := cmd.Flags().Bool("replace", false, "change machines that exist")
	requireFlags(cmd, "file")

	return o.NewCommand(cmd, func(c *Call) error {
		name, b, err := readInput(c.Command, *file)
		if err != nil {
			return err
		}
		if other, err := applyOther(c, importfile.File{Name: name, Content: b}, &application{create: !*replace, force: *replace}); other {
			return err
		}

		docs, err := strictyaml.Documents(name, b)
		if err != nil {
			return err
		}

		ms, notes, err := machinefile.Read(name, docs)
		for _, n := range notes {
			c.Note("note: %s", Inert(n))
		}
		if err != nil {
			return err
		}

		a, err := pushMachines(c, ms, pushOptions{replace: *replace})
		printWarnings(c, a.Value.Warnings)
		if err != nil {
			err = locateProblems(err, len(ms), func(n int) string { return ms[n].Name },
				func(n int, p inventory.Problem) inventory.Problem { return docs[n].Locate(inventory.Problems{p})[0] })
			if nameIsTaken(err) && !*replace {
				err = human.Advise(err, "ingot machine push --replace --file "+*file+"   # changes existing machines")
			}
			return err
		}
		return show(c, a, func(w io.Writer, p pushed) error {
			for _, m := range p.Items {
				fmt.Fprintf(w, "machine %s stored\n", m.Name)
			}
			return nil
		})
	})
}

// pushed is the answer of POST /v1/machines.
type pushed struct {
	client.List[apitypes.MachineView]
	Warnings []string `json:"warnings"`
}

type pushOptions struct {
	replace bool // change machines that exist already; if false, such machines are a conflict
	dryRun  bool // the server checks the machines and stores nothing
}

// pushMachines stores all machines in ms or, if it fails, none of them.
func pushMachines(c *Call, ms []inventory.Machine, o pushOptions) (client.Answer[pushed], error) {
	body := struct {
		Machines []json.RawMessage `json:"machines"`
		Replace  bool              `json:"replace,omitempty"`
		DryRun   bool              `json:"dryRun,omitempty"`
	}{Replace: o.replace, DryRun: o.dryRun}
	for _, m := range ms {
		b, err := marshalWithSecrets(m)
		if err != nil {
			return client.Answer[pushed]{}, err
		}
		body.Machines = append(body.Machines, b)
	}

	return post[pushed](c, client.Path("machines"), body)
}

func printWarnings(c *Call, warnings []string) {
	for _, w := range warnings {
		c.Note("warn: %s", Inert(w))
	}
}

// marshalWithSecrets returns m as JSON with its secrets, which json.Marshal would redact.
func marshalWithSecrets(m inventory.Machine) (json.RawMessage, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	doc := map[string]any{}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}

	for _, f := range m.SecretFields() {
		into, name := doc, f.Name
		if part, rest, ok := strings.Cut(f.Name, "."); ok {
			into, name = doc[part].(map[string]any), rest
		}
		if !f.Value.IsZero() {
			into[name] = action.EncodeBytes(f.Value.Reveal())
		}
	}
	return json.Marshal(doc)
}

// nameIsTaken reports whether err means that the server refused a push only because a stored machine has the same name.
func nameIsTaken(err error) bool {
	var e *client.Error
	return errors.Is(err, inventory.ErrConflict) && errors.As(err, &e) && len(e.Problems) == 0
}

var machineInProblem = regexp.MustCompile(`^machine "([^"]+)": `)

// locateProblems adds the place in a file to those problems in err that concern one of n machines.
// name(i) returns the name of machine i. locate(i, p) returns p, a problem of machine i, with its place.
func locateProblems(err error, n int, name func(n int) string,
	locate func(n int, p inventory.Problem) inventory.Problem,
) error {
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}

	for at, p := range e.Problems {
		of, _, _ := strings.Cut(p.Field, ": ")
		if m := machineInProblem.FindStringSubmatch(p.What); m != nil {
			of = m[1]
		}
		for i := range n {
			if name(i) == of || n == 1 {
				p.Field = strings.TrimPrefix(p.Field, of+": ")
				e.Problems[at] = locate(i, p)
			}
		}
	}

	return err
}
