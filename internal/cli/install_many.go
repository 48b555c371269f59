package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// manyFlags are the flags of "machine provision" that are for several machines only.
var manyFlags = []string{"name", "concurrency", "canary", "abort-after"}

// manyMachines holds the flags with which "machine provision" installs several machines.
type manyMachines struct {
	in       contract.RecoverInput
	selector *selector.Selector
}

func addManyFlags(o *Options, cmd *cobra.Command) *manyMachines {
	m := &manyMachines{selector: addSelectorFlag(cmd, "install all machines with these labels")}
	CompleteFlag(cmd, selectorName, o.labels())
	x := cmd.Flags()
	x.StringVar(&m.in.Name, "name", "", "name of the operation (default: provision-TIME)")
	x.IntVar(&m.in.Concurrency, "concurrency", 0, "number of machines to install at the same time (default 2)")
	x.IntVar(&m.in.Canary, "canary", 0, "install this many machines first; start the others only when all of these are installed")
	x.IntVar(&m.in.AbortAfter, "abort-after", 0,
		"start no more machines when this many have failed or wait for an operator (default: no limit)")
	return m
}

// start shows the machines and starts the operation that installs them.
func (m *manyMachines) start(c *Call, one *apitypes.Installation, yes, wait bool) error {
	if err := c.refuseFlags("works only with one machine", "retries", "from", "policy", "hardware-map"); err != nil {
		return err
	}
	in := m.in
	in.Machines, in.Selector, in.Template, in.Image, in.First = c.Args, *m.selector, one.Template, one.Image, true
	if in.Name == "" {
		in.Name = "provision-" + time.Now().Format("20060102-150405")
	}
	names, err := findRecoveredMachines(c, in)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("installs %s: %s; the content of the disks is lost", human.Count(len(names), "machine"), strings.Join(names, ", "))
	if err := c.Confirm(yes, what, "yes"); err != nil {
		return err
	}
	in.Machines, in.Selector = names, nil // those that were confirmed
	text := fmt.Sprintf(", with %s\nnext: ingot recover status %s --wait", human.Count(len(names), "machine"), in.Name)
	return startOperation(c, client.Path("provision"), in, wait, text)
}

// refuseFlags returns an error with this reason if one of the flags is given.
func (c *Call) refuseFlags(why string, flags ...string) error {
	for _, name := range flags {
		if c.Flags().Changed(name) {
			return UsageError("--%s %s", name, why)
		}
	}
	return nil
}
