package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/doctor"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// initFlags are the flags of "init".
type initFlags struct {
	interfaces []string
	relayOnly  bool
	relays     []string
	address    string // address of this host, for relayOnly
	ownAddress bool   // address was detected, because the flag was not given
	yes        bool
}

func initCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "init", Short: "Set up this host as a server: configuration, keys, admin token", Args: cobra.NoArgs,
		Long: `Set up this host as a server: list its interfaces, look for other DHCP servers on the
chosen interfaces, and write a commented configuration, the keys of the stored secrets
and the admin token. Existing keys and tokens are kept. If a configuration exists, init
shows what it would change and asks for confirmation.

If no interface is chosen, DHCP stays off; the API, the web page and workflows work.

With --relay-only, the server answers machines only through DHCP relays. The host needs
no interface on the machines' network, and the server opens no raw socket and sends no
broadcast. Because other programs may run on such a host, the configuration then
requires a certificate from clients of Temporal (temporal.mutual_tls).`,
		Example: `  ingot init
  ingot init --interface eth1
  ingot init --relay-only --relay 10.0.20.1 --address 192.168.1.10
  ingot init --yes       # asks nothing, DHCP stays off`,
	}

	var f initFlags
	x := cmd.Flags()
	x.BoolVar(&f.relayOnly, "relay-only", false, "answer machines only through DHCP relays")
	x.StringArrayVar(&f.relays, "relay", nil,
		"with --relay-only: address of a relay on the machines' network, or a prefix of such addresses; repeatable")
	x.StringVar(&f.address, "address", "",
		"with --relay-only: IPv4 address at which relays and machines reach this host (default: the host's only address)")
	x.StringArrayVar(&f.interfaces, "interface", nil, "network interface on which the server answers machines; repeatable")
	x.BoolVarP(&f.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.MarkFlagsMutuallyExclusive("interface", "relay-only")
	cli.CompleteFlag(cmd, "interface", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return interfaceNames(), cli.NoFiles
	})

	return o.NewCommand(cmd, func(c *cli.Call) error {
		if err := f.checkRelays(); err != nil {
			return err
		}

		exists, err := initConfig(c, f)
		if err != nil {
			return err
		}

		cfg, err := config.Load(c.ConfigFile, true)
		if err != nil {
			return err
		}
		if err := initKeys(c, cfg); err != nil {
			return err
		}

		printNextSteps(c, cfg, exists)
		return nil
	})
}

// checkRelays validates the flags of a server that answers only relays. Without --address, it sets f.address to this
// host's address.
func (f *initFlags) checkRelays() error {
	if !f.relayOnly {
		if len(f.relays) > 0 || f.address != "" {
			return cli.UsageError("--relay and --address work only with --relay-only")
		}
		return nil
	}

	var ps inventory.Problems
	if len(f.relays) == 0 {
		ps.Add("--relay", "give the relay's address on the machines' network, for example --relay 10.0.20.1",
			"no relay is given, so no machine could be answered")
	}

	for _, r := range f.relays {
		if _, err := config.Prefix(r); err != nil {
			ps.Add("--relay", "write an address or a prefix", "invalid address %q", r)
		}
	}
	if f.address == "" {
		own := ownAddresses()
		if len(own) != 1 {
			remedy := "give one of this host's IPv4 addresses; found: " + cmp.Or(strings.Join(own, ", "), "none")
			ps.Add("--address", remedy, "this host does not have exactly one IPv4 address")
			return ps.Err()
		}
		f.address, f.ownAddress = own[0], true
	}
	if a, err := netip.ParseAddr(f.address); err != nil || !a.Is4() {
		ps.Add("--address", "write this host's IPv4 address", "invalid IPv4 address %q", f.address)
	}

	return ps.Err()
}

// ownAddresses returns the IPv4 addresses of this host, except link-local addresses.
func ownAddresses() (out []string) {
	for _, a := range hostnet.Addresses() {
		if a.Is4() && !a.IsLinkLocalUnicast() {
			out = append(out, a.String())
		}
	}
	return out
}

// agree reports whether the configuration n already has the values of the flags.
func (f initFlags) agree(n config.Netboot) bool {
	switch {
	case f.relayOnly:
		return n.RelayOnly && slices.Equal(n.Relays, f.relays) && (f.ownAddress || n.Address == f.address)
	case len(f.interfaces) > 0:
		return slices.Equal(n.Interfaces, f.interfaces)
	}
	return true
}

// initConfig writes a new configuration, or changes the existing one. exists reports whether there was one.
func initConfig(c *cli.Call, f initFlags) (exists bool, err error) {
	_, err = os.Stat(c.ConfigFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, createConfig(c, f)
	case err != nil:
		return false, err
	}

	before, err := config.Load(c.ConfigFile, true)
	if err != nil {
		return true, err
	}
	asked := len(f.interfaces) > 0 && !f.agree(before.Netboot)
	prompts := !before.Netboot.On() && !f.relayOnly && !f.yes && cli.Interactive(c.Command)
	if asked || prompts {
		if f.interfaces, err = chooseInterfaces(c, f); err != nil {
			return true, err
		}
		for _, name := range f.interfaces {
			reportForeignDHCP(c, name)
		}
	}
	return true, editConfig(c, f, before)
}

// createConfig writes a new configuration.
func createConfig(c *cli.Call, f initFlags) error {
	var err error
	if !f.relayOnly {
		if f.interfaces, err = chooseInterfaces(c, f); err != nil {
			return err
		}
	}

	for _, name := range f.interfaces {
		reportForeignDHCP(c, name)
	}

	e := configExample{mutualTLS: f.relayOnly}
	if len(f.interfaces) > 0 || f.relayOnly {
		e.settings = append(f.settings(), bootFileSettings(c, config.Netboot{})...)
	}
	if err := os.MkdirAll(filepath.Dir(c.ConfigFile), 0o750); err != nil {
		return err
	}

	file, err := os.OpenFile(c.ConfigFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}

	_, err = file.WriteString(e.text())
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}

	c.Printf("wrote %s\n", c.ConfigFile)
	return nil
}

// initKeys creates missing keys and a missing admin token.
func initKeys(c *cli.Call, cfg config.Config) error {
	// If there is a database but no key file, do not create new keys: the secrets in the database can be read only
	// with the original keys.
	hadKeys, hadToken := fileExists(cfg.KeyFile), fileExists(cfg.TokenFile)
	if fileExists(server.InventoryFile(cfg)) && !hadKeys {
		return human.Advise(
			fmt.Errorf("the key file %s is missing, but the secrets in %s need it: %w",
				cfg.KeyFile, cfg.DataDir, inventory.ErrConflict),
			"put the key file back; if it is lost: ingot secret reset")
	}
	if err := server.MakeKeys(cfg); err != nil {
		return err
	}

	report := func(had bool, file, what string) {
		verb := "wrote"
		if had {
			verb = "kept "
		}
		c.Printf("%s %s  (%s)\n", verb, file, what)
	}

	report(hadKeys, cfg.KeyFile, "the keys of stored secrets: back this file up, apart from "+cfg.DataDir)
	report(hadToken, cfg.TokenFile, "the admin token")
	return nil
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// The service of the Debian package, and the configuration that it reads.
const (
	serviceUnit   = "/usr/lib/systemd/system/ingot.service"
	serviceConfig = "/etc/ingot/ingot.yaml"
)

// printNextSteps prints how to enable DHCP, if it is off, and which commands to run next.
func printNextSteps(c *cli.Call, cfg config.Config, configExisted bool) {
	if !cfg.Netboot.On() {
		c.Printf("DHCP stays off: netboot.interfaces in %s names no interface\n", c.ConfigFile)
		if configExisted {
			c.Printf("to switch DHCP on: ingot init --interface NAME (one of %s), then restart ingot serve\n",
				strings.Join(interfaceNames(), ", "))
		}
	}

	flag, serve := "", "ingot serve"
	switch {
	case c.ConfigFile != config.DefaultFile():
		flag = " --config " + c.ConfigFile
	case c.ConfigFile == serviceConfig && fileExists(serviceUnit):
		serve = "systemctl start ingot"
	}

	c.Printf("next: ingot doctor%s && %s%s\n", flag, serve, flag)
}

// bootInterfaces returns the interfaces on which machines can be answered: all except members of
// bridges and bonds, which receive no packets of their own.
func bootInterfaces() []hostnet.Interface {
	return slices.DeleteFunc(hostnet.Interfaces(), func(i hostnet.Interface) bool {
		return hostnet.Controller(i.Name) != ""
	})
}

func interfaceNames() (names []string) {
	for _, i := range bootInterfaces() {
		names = append(names, i.Name)
	}
	return names
}

// chooseInterfaces returns the interfaces that the flags name, or those that the operator enters at a prompt. Invalid interfaces
// are an error.
func chooseInterfaces(c *cli.Call, f initFlags) ([]string, error) {
	all, chosen := bootInterfaces(), f.interfaces
	head := []string{"INTERFACE", "STATE", "MAC", "IPV4"}
	err := cli.PrintTable(c.OutOrStdout(), head, all, func(i hostnet.Interface) []any {
		return []any{i.Name, i.State(), i.MAC, strings.Join(i.Addresses, ", ")}
	})
	if err != nil {
		return nil, err
	}

	if len(chosen) == 0 && !f.yes {
		if !cli.Interactive(c.Command) {
			return nil, cli.UsageError("which interface are the machines on? give --interface, or --yes to leave DHCP off")
		}
		if chosen, err = askForInterfaces(c, usable(all)); err != nil {
			return nil, err
		}
	}

	var ps inventory.Problems
	for n, name := range chosen {
		i := slices.IndexFunc(all, func(x hostnet.Interface) bool { return x.Name == name })
		controller := hostnet.Controller(name)
		switch {
		case i < 0 && controller != "":
			ps.Add("--interface", "give --interface "+controller, "%q is a member of %s, which receives its packets", name, controller)
		case i < 0:
			ps.Add("--interface", "choose one of the interfaces listed above", "there is no interface %q", name)
		case len(all[i].Addresses) == 0 && n == 0:
			ps.Add("--interface", "ip address add ADDRESS/BITS dev "+name,
				"%q has no IPv4 address at which machines could reach this server", name)
		}
	}

	return chosen, ps.Err()
}

// usable returns the names of the interfaces on which machines can be answered now: up, with an IPv4 address, not loopback.
func usable(all []hostnet.Interface) (names []string) {
	for _, i := range all {
		if i.Up && i.MAC != "" && len(i.Addresses) > 0 {
			names = append(names, i.Name)
		}
	}
	return names
}

// askForInterfaces prompts for interfaces until the operator enters names or "none". If only one interface is usable, Enter
// selects it.
func askForInterfaces(c *cli.Call, usable []string) ([]string, error) {
	question := "Which interfaces are the machines on? (names, or none to leave DHCP off) "
	if len(usable) == 1 {
		question = fmt.Sprintf("Which interfaces are the machines on? (Enter for %s, or none to leave DHCP off) ", usable[0])
	}
	for {
		line, err := cli.Prompt(c.Command, question)
		switch {
		case err != nil:
			return nil, err
		case line == "none":
			return nil, nil
		case line != "":
			return strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == ',' }), nil
		case len(usable) == 1:
			return usable, nil
		}
	}
}

// reportForeignDHCP looks for other DHCP servers on an interface, and prints a warning for each.
func reportForeignDHCP(c *cli.Call, name string) {
	found, err := neighbours.ProbeDHCP(c.Context(), name)
	switch {
	case err != nil && len(found) == 0:
		c.Note("warn: looking for other DHCP servers: %v", err)
	case len(found) == 0:
		c.Printf("no other DHCP server answers on %s\n", name)
	}

	for _, f := range found {
		c.Note("warn: %s", doctor.ForeignDHCPText(name, f))
	}
}

// findBootFiles returns the directories of the boot loaders and of the agent OS. It looks where packages and the build
// put them. A directory that is not found is "".
func findBootFiles(c *cli.Call) (loaders, agentOS string) {
	program, _ := os.Executable() // on an error, use the current directory
	programDir := filepath.Dir(program)
	find := func(key, remedy string, files []string, dirs ...string) string {
		for _, dir := range dirs {
			if !slices.ContainsFunc(files, func(f string) bool { return !fileExists(filepath.Join(dir, f)) }) {
				return dir
			}
		}
		c.Note("warn: found no directory with %s: set netboot.%s when you have these files (%s)",
			strings.Join(files, " and "), key, remedy)
		return ""
	}

	loaders = find("loaders", "apt install ipxe", []string{"undionly.kpxe", "snponly.efi"},
		filepath.Join(programDir, "ipxe"), "/usr/share/ingot/ipxe", "/usr/lib/ipxe")
	agentOS = find("agent_os", "make build", []string{"vmlinuz", "initramfs"},
		filepath.Join(programDir, "agentos"), "/usr/share/ingot")
	return loaders, agentOS
}
