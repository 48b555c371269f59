package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// seenList is the answer of GET /v1/seen.
type seenList struct {
	client.List[inventory.Seen]
	Dropped int64 `json:"dropped"`
}

func machineSeenCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "seen [MAC]", Short: "List unknown machines that asked for an address", Args: cobra.MaximumNArgs(1),
		Long: `List the unknown machines that asked for an address. With MAC, show the hardware that
this machine has reported; machines report it only with netboot.discovery in the
server's configuration.`,
		Example: "  ingot machine seen\n  ingot machine seen --output wide\n  ingot machine seen 02:00:00:00:00:03",
	}, func(c *Call) error {
		if len(c.Args) == 1 {
			return showSeen(c)
		}
		return getAndShow(c, client.Path("seen"), func(w io.Writer, l seenList) error {
			if l.Dropped > 0 {
				c.Note("note: only the newest machines are listed; since the server started, %s came from others",
					human.Count(int(l.Dropped), "packet"))
			}
			if len(l.Items) == 0 {
				c.Note("no unknown machine has asked for an address; check that DHCP is on: ingot status")
				return nil
			}
			err := listing[inventory.Seen]{
				head: []string{"MAC", "FIRST", "LAST", "COUNT", "RELAY", "CLASS", "HARDWARE"},
				wide: []string{"FIRST", "RELAY", "CLASS"},
				row: func(s inventory.Seen) []any {
					return []any{s.MAC, human.Time(s.First), human.Ago(s.Last), s.Count, s.Giaddr, s.Class, hardwareText(s.Facts)}
				},
			}.printRows(c, w, l.Items)
			if err != nil {
				return err
			}
			c.Note("next: ingot machine accept %s --name NAME --address ADDRESS/BITS", l.Items[0].MAC)
			return nil
		})
	})
}

// showSeen prints the hardware of the unknown machine whose MAC address is the argument.
func showSeen(c *Call) error {
	mac, err := inventory.ParseMAC(c.Args[0])
	if err != nil {
		return err
	}
	l, err := get[seenList](c, client.Path("seen"))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(l.Value.Items, func(s inventory.Seen) bool { return s.MAC == mac })
	if i < 0 {
		return fmt.Errorf("MAC %s: %w: no unknown machine with this MAC has asked for an address (list: ingot machine seen)",
			mac, inventory.ErrNotFound)
	}
	s := l.Value.Items[i]
	return ShowValue(c, s, func(w io.Writer) error {
		if s.Facts == nil {
			fmt.Fprintf(w, "%s has reported no hardware\n", s.MAC)
			return nil
		}
		f := s.Facts
		fmt.Fprintf(w, "%s: %s, reported %s\n", s.MAC, Inert(hardwareText(f)), human.Ago(s.Reported))
		for _, x := range [][2]string{{"processor", f.CPU}, {"firmware", f.BIOS}} {
			if x[1] != "" {
				fmt.Fprintf(w, "  – %s %s\n", x[0], Inert(x[1]))
			}
		}
		if b := f.BMC; b != nil {
			fmt.Fprintf(w, "  – management controller %s\n", Inert(bmcText(*b)))
		}
		for _, n := range f.NICs {
			at := ""
			if x := n.Neighbour; x != nil {
				at = fmt.Sprintf(", connected to port %s of %s", x.Port, cmp.Or(x.System, x.Chassis))
			}
			fmt.Fprintf(w, "  – network card %s\n", Inert(n.Name+" "+n.MAC+firmwareText(n.Firmware)+at))
		}
		for _, d := range f.Disks {
			if d.Firmware != "" {
				fmt.Fprintf(w, "  – disk %s\n", Inert(d.Path+" "+d.Model+firmwareText(d.Firmware)))
			}
		}
		fmt.Fprintln(w)
		return printDisks(w, f.Disks)
	})
}

// firmwareText returns ", firmware VERSION", which is appended to a name. It returns "" if version is "".
func firmwareText(version string) string {
	if version == "" {
		return ""
	}
	return ", firmware " + version
}

// bmcText describes in one line the BMC that the agent found on its machine.
func bmcText(b action.InsideBMC) string {
	var parts []string
	for _, x := range [][2]string{
		{"at ", b.Address}, {"MAC ", b.MAC}, {"firmware ", b.Firmware}, {"IPMI ", b.IPMI}, {"Redfish for this machine at ", b.Redfish},
	} {
		if x[1] != "" {
			parts = append(parts, x[0]+x[1])
		}
	}
	if b.Maker > 0 {
		parts = append(parts, fmt.Sprintf("maker %d (IANA enterprise number)", b.Maker))
	}
	return strings.Join(parts, ", ")
}

// hardwareText describes a machine's hardware in one line; "" for nil.
func hardwareText(f *action.Facts) string {
	if f == nil {
		return ""
	}
	var parts []string
	for _, p := range []string{strings.TrimSpace(f.Manufacturer + " " + f.Product), f.Serial, f.Firmware} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%d CPUs", f.CPUs), human.Size(f.Memory),
		human.Count(len(f.Disks)+f.DisksOmitted, "disk")), ", ")
}

func machineAcceptCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "accept MAC --name NAME", Short: "Add an unknown machine that asked for an address", Args: cobra.ExactArgs(1),
		Example: "  ingot machine accept 02:00:00:00:00:03 --name node-3 --address 10.0.0.13/24 --gateway 10.0.0.1",
	}

	var f machineFlags
	name := cmd.Flags().String("name", "", "name of the new machine")
	f.addInterfaceFlags(cmd)
	requireFlags(cmd, "name")

	return o.NewCommand(cmd, func(c *Call) error {
		f.mac = c.Args[0]
		m, err := f.machine(c, *name)
		if err != nil {
			return err
		}

		in := struct {
			Name string `json:"name"`
			inventory.Interface
		}{m.Name, m.Interfaces[0]}
		return postAndShow(c, client.Path("seen", in.MAC, "accept"), in, text(func(client.List[apitypes.MachineView]) string {
			return machineStored(m)
		}))
	})
}
