package cli

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

func machinePushCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "push --file FILE…", Short: "Store the machines that files describe, all or none", Args: cobra.ArbitraryArgs,
		Long: `Store the machines of YAML or JSON files with one machine per document. This does the
same as "ingot apply --file FILE", but does not change an existing machine.

With --replace, the file overwrites existing machines: a field that the file leaves out
or has empty is removed, and changes by other means are overwritten. A stored secret is
kept if the file has hasPassword, hasUserData or hasVendorData in its place. The output
of "ingot machine get NAME --output yaml" has these fields, so that it can be edited and
pushed back. A file with a version is refused if the machine has changed since. The
field netboot is ignored: a push opens no netboot window. While a machine has an open
run, its MACs, addresses and disks cannot be changed, but the settings of its BMC can.

Example of a machine; separate several machines by "---":

  name: node-1
  image: debian-12
  interfaces:
    - mac: "02:00:00:00:00:01"
      address: 10.0.0.11/24
      gateway: 10.0.0.1
  diskSelector: {minSize: 400GB, maxSize: 1TB}
  bmc: {driver: ipmi, host: 10.0.9.11, user: admin, password: secret}`,
		Example: "  ingot machine push --file hardware.yaml\n" +
			"  ingot machine push --file hardware.yaml --replace   # overwrites existing machines",
	}
	a := &application{}
	replace := a.addFileFlag(cmd).Bool("replace", false, "overwrite existing machines")
	return o.NewCommand(cmd, func(c *Call) error {
		if a.create = !*replace; *replace {
			a.replace = []string{inventory.KindMachine, inventory.KindTemplate}
		}
		return a.run(c)
	})
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
