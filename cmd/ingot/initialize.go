package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/inventory"
)

func initCmd(o *options) *cobra.Command {
	var chosen []string
	var yes bool
	var relay relayOnly
	c := &cobra.Command{
		Use: "init", Short: "Set up this host as a server: configuration, keys, admin token", Args: cobra.NoArgs,
		Long: `Set up this host as a server: list its interfaces, look for other DHCP servers
on those that are chosen, and write a commented configuration, the keys of the
stored secrets and the admin token. Nothing that exists is overwritten.

Without an interface DHCP stays off; the API, the page and workflows work.

With --relay-only machines are answered through DHCP relays alone, from a host
that has no interface on their network: no raw socket, no broadcast. Other
programs run on such a host, so Temporal asks for a certificate there
(temporal.mutual_tls).`,
		Example: "  ingot init\n  ingot init --interface eth1\n  ingot init --relay-only --relay 10.0.20.1 --address 192.168.1.10\n  ingot init --yes       # asks nothing, DHCP stays off",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.initialize(cmd, chosen, relay, yes)
		},
	}
	c.Flags().BoolVar(&relay.on, "relay-only", false, "answer machines through DHCP relays alone")
	c.Flags().StringArrayVar(&relay.relays, "relay", nil, "with --relay-only: a relay's address on the machines' network, or a prefix; repeatable")
	c.Flags().StringVar(&relay.address, "address", "", "with --relay-only: this host as relays and machines reach it; default: its only IPv4 address")
	c.Flags().StringArrayVar(&chosen, "interface", nil, "interface on which machines are answered; repeatable")
	c.MarkFlagsMutuallyExclusive("interface", "relay-only")
	yesFlag(c, &yes)
	completeFlag(c, "interface", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, i := range answerable() {
			names = append(names, i.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	return c
}

// relayOnly is what a server that answers relays alone is told.
type relayOnly struct {
	on      bool
	relays  []string
	address string
}

// lines checks r and returns what belongs below netboot.
func (r relayOnly) lines() ([]string, error) {
	if !r.on {
		if len(r.relays) > 0 || r.address != "" {
			return nil, usage("--relay and --address belong to --relay-only")
		}
		return nil, nil
	}
	var ps inventory.Problems
	if len(r.relays) == 0 {
		ps.Add("--relay", "the relay's address on the machines' network: --relay 10.0.20.1", "no relay is named, so that nobody could be answered")
	}
	for _, x := range r.relays {
		if _, err := config.Prefix(x); err != nil {
			ps.Add("--relay", "write an address or a prefix", "%q is neither", x)
		}
	}
	if r.address == "" {
		var all []string
		for _, i := range hostnet.Interfaces() {
			for _, a := range i.Addresses {
				if p, err := netip.ParsePrefix(a); err == nil && !p.Addr().IsLinkLocalUnicast() {
					all = append(all, p.Addr().String())
				}
			}
		}
		if len(all) != 1 {
			ps.Add("--address", "one of this host's addresses: "+orText(strings.Join(all, ", "), "it has none"), "relays and machines reach this server at one address")
			return nil, ps.Err()
		}
		r.address = all[0]
	}
	if a, err := netip.ParseAddr(r.address); err != nil || !a.Is4() {
		ps.Add("--address", "write this host's IPv4 address", "%q is none", r.address)
	}
	return []string{"relay_only: true", "address: " + r.address, "relays: [" + strings.Join(r.relays, ", ") + "]"}, ps.Err()
}

// answerable returns those on which machines could be answered: members of
// bridges and bonds have no packets of their own.
func answerable() []hostnet.Interface {
	return slices.DeleteFunc(hostnet.Interfaces(), func(i hostnet.Interface) bool { return hostnet.Controller(i.Name) != "" })
}

// holds tells whether a configuration has what init was asked to write already.
func holds(n config.Netboot, chosen []string, relay relayOnly) bool {
	if !relay.on {
		return slices.Equal(n.Interfaces, chosen)
	}
	return n.RelayOnly && slices.Equal(n.Relays, relay.relays) && (relay.address == "" || n.Address == relay.address)
}

func (o *options) initialize(cmd *cobra.Command, chosen []string, relay relayOnly, yes bool) error {
	relayed, err := relay.lines()
	if err != nil {
		return err
	}
	_, err = os.Stat(o.config)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var before config.Config
	if exists {
		if before, err = config.Load(o.config, true); err != nil {
			return err
		}
	}
	if exists && (len(chosen) > 0 || relay.on) && !holds(before.Netboot, chosen, relay) {
		what := fmt.Sprintf("\"interfaces: [%s]\"", strings.Join(chosen, ", "))
		if relay.on {
			what = "\"" + strings.Join(relayed, "\", \"") + "\""
		}
		return advice{
			fmt.Errorf("%s exists and is not overwritten: %w", o.config, inventory.ErrConflict),
			fmt.Sprintf("write below netboot: in it %s, then start ingot serve again", what),
		}
	}
	if !exists {
		if relay.on {
			chosen = nil
		} else if chosen, err = o.chooseInterfaces(cmd, chosen, yes); err != nil {
			return err
		}
		for _, name := range chosen {
			lookForDHCP(cmd, name)
		}
		var loaders, agentOS string
		if len(chosen) > 0 || relay.on {
			loaders, agentOS = findBootFiles(cmd)
		}
		text := exampleConfig(chosen, loaders, agentOS, relayed...)
		if relay.on {
			// Such a host does other things as well: its loopback is not this server's alone.
			text = strings.Replace(text, "\n#temporal:\n", "\ntemporal:\n  mutual_tls: true               # ingot temporal env prints what the temporal command needs\n", 1)
		}
		if err := writeConfig(o.config, text); err != nil {
			return err
		}
		cmd.Printf("wrote %s\n", o.config)
	} else {
		cmd.Printf("kept  %s\n", o.config)
	}
	cfg, err := config.Load(o.config, true)
	if err != nil {
		return err
	}
	had := map[string]bool{}
	for _, f := range []string{cfg.KeyFile, cfg.TokenFile} {
		_, err := os.Stat(f)
		had[f] = err == nil
	}
	// The keys of a site that lives are never made again: its secrets would be
	// lost without a word.
	if _, err := os.Stat(filepath.Join(cfg.DataDir, "ingot.db")); err == nil && !had[cfg.KeyFile] {
		return advice{
			fmt.Errorf("the key file %s is missing, and %s holds data whose secrets need it: %w", cfg.KeyFile, cfg.DataDir, inventory.ErrConflict),
			"put the key file back; if it is lost: ingot secret reset",
		}
	}
	if err := server.MakeKeys(cfg); err != nil {
		return err
	}
	for _, f := range []struct{ file, what string }{{cfg.KeyFile, "the keys of stored secrets: back this file up, apart from " + cfg.DataDir}, {cfg.TokenFile, "the admin token"}} {
		word := "wrote"
		if had[f.file] {
			word = "kept "
		}
		cmd.Printf("%s %s  (%s)\n", word, f.file, f.what)
	}
	if !cfg.Netboot.On() {
		cmd.Printf("DHCP stays off: netboot.interfaces in %s names no interface\n", o.config)
		if exists {
			var names []string
			for _, i := range answerable() {
				names = append(names, i.Name)
			}
			cmd.Printf("to switch it on: write below netboot: in it \"interfaces: [NAME]\", NAME one of %s; then start ingot serve again\n", strings.Join(names, ", "))
		}
	}
	flag := ""
	if o.config != config.DefaultFile() {
		flag = " --config " + o.config
	}
	cmd.Printf("next: ingot doctor%s && ingot serve%s\n", flag, flag)
	return nil
}

// chooseInterfaces checks those that were named, or asks.
func (o *options) chooseInterfaces(cmd *cobra.Command, chosen []string, yes bool) ([]string, error) {
	all := answerable()
	t := newTable(cmd.OutOrStdout(), "INTERFACE", "STATE", "MAC", "IPV4")
	for _, i := range all {
		t.row(i.Name, i.State(), i.MAC, strings.Join(i.Addresses, ", "))
	}
	if err := t.flush(); err != nil {
		return nil, err
	}
	if len(chosen) == 0 && !yes {
		if !interactive(cmd) {
			return nil, usage("which interface are the machines on? give --interface, or --yes to leave DHCP off")
		}
		line, err := prompt(cmd, "Which interfaces are the machines on? (names, or empty to leave DHCP off) ")
		if err != nil {
			return nil, err
		}
		chosen = strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == ',' })
	}
	var ps inventory.Problems
	for n, name := range chosen {
		i := slices.IndexFunc(all, func(x hostnet.Interface) bool { return x.Name == name })
		switch {
		case i < 0 && hostnet.Controller(name) != "":
			ps.Add("--interface", "--interface "+hostnet.Controller(name), "%q is a member of %s, which has its packets", name, hostnet.Controller(name))
		case i < 0:
			ps.Add("--interface", "one of those listed above", "there is no interface %q", name)
		case len(all[i].Addresses) == 0 && n == 0:
			ps.Add("--interface", "ip address add ADDRESS/BITS dev "+name, "%q has no IPv4 address, at which machines would reach this server", name)
		}
	}
	return chosen, ps.Err()
}

// lookForDHCP tells of other DHCP servers where machines are to be answered.
func lookForDHCP(cmd *cobra.Command, name string) {
	found, err := bootsvc.ProbeDHCP(cmd.Context(), name)
	if err != nil && len(found) == 0 {
		say(cmd, "warn: other DHCP servers could not be looked for: %v", err)
		return
	}
	for _, f := range found {
		say(cmd, "warn: %s", foreignText(name, f))
	}
	if len(found) == 0 {
		cmd.Printf("no other DHCP server answers on %s\n", name)
	}
}

func foreignText(name string, f bootsvc.ForeignServer) string {
	if f.Proxy {
		return fmt.Sprintf("%s answers PXE on %s with boot file %q: machines may follow it instead of Ingot", f.Server, name, f.BootFile)
	}
	text := fmt.Sprintf("%s answers DHCP on %s and offered %s", f.Server, name, f.Offered)
	if f.BootFile != "" {
		text += fmt.Sprintf(" with boot file %q", f.BootFile)
	}
	return text + ": exclude Ingot's machines there, or two servers answer them"
}

// findBootFiles looks where packages and a build put boot files, and says what
// it does not find.
func findBootFiles(cmd *cobra.Command) (loaders, agentOS string) {
	beside := filepath.Dir(program())
	first := func(key, remedy string, files []string, dirs ...string) string {
		for _, dir := range dirs {
			if !slices.ContainsFunc(files, func(f string) bool { _, err := os.Stat(filepath.Join(dir, f)); return err != nil }) {
				return dir
			}
		}
		say(cmd, "warn: there is no directory with %s: set netboot.%s when you have them (%s)", strings.Join(files, " and "), key, remedy)
		return ""
	}
	return first("loaders", "apt install ipxe", []string{"undionly.kpxe", "snponly.efi"}, filepath.Join(beside, "ipxe"), "/usr/lib/ipxe"),
		first("agent_os", "make build", []string{"vmlinuz", "initramfs"}, filepath.Join(beside, "agentos"), "/usr/share/ingot")
}

// writeConfig writes a new file; it never overwrites.
func writeConfig(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
