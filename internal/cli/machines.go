package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func machineCommand(o *Options) *cobra.Command {
	c := Group("machine", "Machines: add, change, install and wipe machines",
		"  ingot machine list\n  ingot machine provision node-1 --image debian-12 --wait",
		machinePushCommand(o), machineAddCommand(o), machineListCommand(o), machineGetCommand(o), machineSetCommand(o),
		machineLabelCommand(o), machineEditCommand(o), machineDeleteCommand(o),
		machineSeenCommand(o), machineAcceptCommand(o), machineDisksCommand(o), machinePowerCommand(o),
		machineBootDeviceCommand(o), machineProvisionCommand(o), machineReprovisionCommand(o),
		machineDecommissionCommand(o), machineReleaseCommand(o), machineInspectCommand(o),
		machineLogCommand(o), machineCaptureCommand(o))
	c.Aliases = []string{"hardware"}
	return addHabits(c, machineHabits())
}

func machineListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[apitypes.MachineView]{
		cmd: &cobra.Command{
			Short: "List machines",
			Example: "  ingot machine list --output json\n  ingot machine list -l rack=a1 --state FAILED\n" +
				"  ingot machine list --limit 50 --after node-50\n  ingot machine list --watch",
		},
		filters: []filter{
			machineFilter(o),
			stateFilter("only machines whose open run, or else whose last installation or wipe, is in this state"),
		},
		sort:  "name",
		route: client.Path("machines"),
		empty: "no machines; add one: ingot machine add --help",
		head: []string{
			"NAME", "MAC", "ADDRESS", "POWER BY", "TEMPLATE", "IMAGE", "INSTALLED", "NETBOOT", "LAST RUN", "SEEN", "LABELS",
		},
		wide: []string{"MAC", "POWER BY", "TEMPLATE", "IMAGE", "LABELS"},
		row: func(m apitypes.MachineView) []any {
			i, _ := m.Machine.Netboot()
			return []any{
				m.Name, i.MAC, addressText(i.Address), powerSource(m.BMC), m.Template, m.Image,
				installedText(m.Installed), netbootState(m.Netboot), State(machineState(m)), human.Ago(m.LastSeen), labelsText(m.Labels),
			}
		},
	})
}

func machineGetCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use:               "get NAME",
		Aliases:           []string{"show", "describe"},
		Short:             "Show a machine",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(o.machines()),
		Example:           "  ingot machine get node-1\n  ingot machine get node-1 --output yaml",
	}, func(c *Call) error { return getAndShow(c, client.Path("machines", c.Args[0]), printMachine) })
}

func printMachine(w io.Writer, m apitypes.MachineView) error {
	t := NewTable(w)
	t.Field("name", m.Name)
	t.Field("labels", labelsText(m.Labels))
	for _, i := range m.Interfaces {
		t.Field("interface", interfaceText(i))
	}

	for _, d := range m.Disks {
		t.Field("disk", d.Device)
	}
	if m.DiskSelector != nil {
		t.Field("disk selector", selectorText(*m.DiskSelector))
	}

	for _, id := range m.ProtectedDisks {
		t.Field("protected disk", selectorText(inventory.DiskSelector{Serial: id.Serial, WWN: id.WWN}))
	}

	t.Field("standing", standingText(m.Standing))
	t.Field("power", powerText(m.BMC))

	t.Field("firmware", m.Firmware)
	t.Field("template", m.Template)
	t.Field("image", m.Image)
	if m.HasUserData {
		t.Field("user data", "stored")
	}
	if m.HasVendorData {
		t.Field("vendor data", "stored")
	}

	t.Field("SSH keys", orNone(len(m.SSHKeys)))
	if i := m.Installed; i != nil {
		t.Field("installed", fmt.Sprintf("%s  by run %s, %s", installedText(i), i.Run, human.Ago(i.At)))
	}

	netboot := netbootState(m.Netboot)
	if m.Netboot.Run != "" {
		netboot += "  held by " + m.Netboot.Run
	}

	t.Field("netboot", netboot)
	for _, k := range slices.Sorted(maps.Keys(m.Notes)) {
		t.Field("note", k+": "+m.Notes[k])
	}

	t.Field("seen", human.Ago(m.LastSeen))
	if r := m.Workflow; r != nil {
		t.Field("last run", fmt.Sprintf("%s  %s  %s", r.Run, runState(r), r.Message))
		t.Field("next", r.Next)
	}

	return t.Flush()
}

func machineDeleteCommand(o *Options) *cobra.Command {
	return deleteCommand(o, &cobra.Command{
		Use: "delete NAME", Short: "Delete a machine and its secrets", ValidArgsFunction: firstArg(o.machines()),
		Long: `Delete a machine, its address reservation, its BMC password and its user data. The
records of its runs are kept. The operating system on the machine is not touched.`,
		Example: "  ingot machine delete node-1\n  ingot machine delete node-1 --yes",
	}, func(c *Call) (deletion, error) {
		route := client.Path("machines", c.Args[0])
		_, err := get[apitypes.MachineView](c, route)
		lost := " with its address reservation, its BMC password and its user data"
		return deletion{what: "machine " + c.Args[0], lost: lost, route: route}, err
	})
}

// machineStored returns a message that m was stored, with the command that installs m.
func machineStored(m inventory.Machine) string {
	next := "ingot machine provision " + m.Name
	if m.Image == "" {
		next += " --image IMAGE"
	}
	return fmt.Sprintf("machine %s stored\nnext: %s --wait", m.Name, next)
}

// findMachine returns the name of the machine that has the MAC address arg. If arg is not a MAC address, findMachine
// returns arg, and does not check that a machine of this name exists.
func findMachine(c *Call, arg string) (string, error) {
	mac, err := inventory.ParseMAC(arg)
	if err != nil {
		return arg, nil
	}

	a, err := getAll[inventory.Machine](c, client.Path("machines"))
	if err != nil {
		return "", err
	}

	for _, m := range a.Value.Items {
		if _, ok := m.InterfaceByMAC(mac); ok || m.Name == arg {
			return m.Name, nil
		}
	}

	return "", human.Advise(fmt.Errorf("machine with MAC %s: %w", mac, inventory.ErrNotFound), "ingot machine list")
}

// netbootState describes whether a machine may boot from the network now (its netboot window is open), and until when.
func netbootState(n inventory.Netboot) string {
	switch {
	case n.AllowPXE:
		until := n.Until.Local()
		form := time.TimeOnly
		if time.Until(until) > 12*time.Hour {
			form = time.DateTime
		}
		return "open until " + until.Format(form)
	case n.AllowWorkflow:
		return "closed (run goes on)"
	}

	return "closed"
}
