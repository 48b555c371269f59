package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// machineFlags are the flags of "machine add". "machine accept" has only the flags of
// addInterfaceFlags.
type machineFlags struct {
	mac, address, netmask, gateway, hostname string
	nameservers                              []string
	uefi, onLink                             bool

	disk, diskSerial string
	bmc              bmcFlags
	template, image  string
	labels           map[string]string
	sshKeys          []string
	userDataFile     string
}

// bmcFlags are the flags that describe a machine's BMC.
type bmcFlags struct {
	url, passwordFile, cipher, fingerprint string
	insecureTLS                            bool
}

func (f *machineFlags) addInterfaceFlags(cmd *cobra.Command) {
	x := cmd.Flags()
	x.StringVar(&f.address, "address", "", "the interface's IPv4 address, with or without prefix length")
	x.StringVar(&f.netmask, "netmask", "", "netmask, unless --address has a prefix length")
	x.StringVar(&f.gateway, "gateway", "", "default gateway")
	x.BoolVar(&f.onLink, "on-link", false, "the gateway is on the link although it is outside the subnet; implied by the prefix length /32")
	x.StringVar(&f.hostname, "hostname", "", "host name (default: NAME)")
	x.StringArrayVar(&f.nameservers, "nameserver", nil, "name server; repeatable")
	x.BoolVar(&f.uefi, "uefi", false, "the machine boots in UEFI mode")
}

func (f *machineFlags) addFlags(cmd *cobra.Command) {
	x := cmd.Flags()
	x.StringVar(&f.mac, "mac", "", "MAC address of the interface that boots from the network")
	f.addInterfaceFlags(cmd)
	x.StringVar(&f.disk, "disk", "", "device path that templates use for the machine's disk, such as /dev/sda")
	x.StringVar(&f.diskSerial, "disk-serial", "", "serial number of the disk to install on")
	x.StringVar(&f.bmc.url, "bmc", "", "power control: "+
		"ipmi://user@host[:port], redfish://user@host[:port], amt://user@host[:port] (Intel AMT), "+
		"exec:NAME[@host] (power command in the server's configuration), wol (Wake-on-LAN) or manual (default)")
	x.StringVar(&f.bmc.passwordFile, "bmc-password-file", "", "file with the BMC's password, - for standard input")
	x.StringVar(&f.bmc.cipher, "cipher", "", "IPMI cipher suite (default 17)")
	x.BoolVar(&f.bmc.insecureTLS, "bmc-insecure-tls", false,
		"do not verify the BMC's TLS certificate (Redfish, AMT); --bmc-fingerprint is safer")
	x.StringVar(&f.bmc.fingerprint, "bmc-fingerprint", "", "fingerprint of the BMC's TLS key (Redfish, AMT), sha256:…")
	x.StringVar(&f.template, "template", "", `template that installs the machine (default: the built-in template "image")`)
	x.StringVar(&f.image, "image", "", "image to write to the machine's disk")
	x.StringToStringVar(&f.labels, "label", nil, "label key=value; repeatable")
	x.StringArrayVar(&f.sshKeys, "ssh-key", nil, "SSH public key, or a file of SSH public keys; repeatable")
	x.StringVar(&f.userDataFile, "user-data-file", "", "file with the user data, - for standard input; stored as a secret")
}

func machineAddCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "add NAME --mac MAC", Short: "Add a machine", Args: cobra.ExactArgs(1),
		Long: `Add a machine with one network interface. To add a machine with several interfaces, or
many machines at once, use a file: "ingot machine push".

The BMC's password is read from --bmc-password-file or INGOT_BMC_PASSWORD, or asked for.
It cannot be given as an argument, because every user of this host could see it there. A
password file is refused if its group or other users can access it.`,
		Example: `  ingot machine add node-1 --mac 02:00:00:00:00:01 --address 10.0.0.11/24 --gateway 10.0.0.1 \
    --nameserver 10.0.0.1 --image debian-12 --ssh-key ~/.ssh/id_ed25519.pub \
    --bmc ipmi://admin@10.0.1.11 --bmc-password-file node-1.password
  ingot machine add node-2 --mac 02:00:00:00:00:02 --address 10.0.0.12/24 --uefi   # power by hand`,
	}

	var f machineFlags
	f.addFlags(cmd)
	requireFlags(cmd, "mac")
	CompleteFlag(cmd, "template", o.templates())
	CompleteFlag(cmd, "image", o.images())

	return o.NewCommand(cmd, func(c *Call) error {
		m, err := f.machine(c, c.Args[0])
		if err != nil {
			return err
		}

		doc, err := marshalWithSecrets(m)
		if err != nil {
			return err
		}
		a, err := post[pushed](c, client.Path("machines"), map[string]any{"machines": []json.RawMessage{doc}})
		printWarnings(c, a.Value.Warnings)
		var e *client.Error
		if errors.As(err, &e) {
			for i := range e.Problems {
				e.Problems[i].Field = flagOf(e.Problems[i].Field)
			}
			if errors.Is(err, inventory.ErrConflict) && len(e.Problems) == 0 { // only the name is taken
				err = human.Advise(err, "ingot machine get "+m.Name)
			}
		}
		if err != nil {
			return err
		}

		return show(c, a, text(func(pushed) string { return machineStored(m) }))
	})
}

// pushed is the answer of POST /v1/machines.
type pushed struct {
	client.List[apitypes.MachineView]
	Warnings []string `json:"warnings"`
}

// machine returns the machine that the flags describe. The error for invalid flags is an inventory.Problems with all problems.
func (f machineFlags) machine(c *Call, name string) (inventory.Machine, error) {
	var ps inventory.Problems
	m := inventory.Machine{Name: name, Labels: f.labels, Template: f.template, Image: f.image}
	m.Interfaces = []inventory.Interface{f.parseInterface(&ps, name)}
	if f.disk != "" {
		m.Disks = []inventory.DeclaredDisk{{Device: f.disk}}
	}
	if f.diskSerial != "" {
		m.DiskSelector = &inventory.DiskSelector{Serial: f.diskSerial}
	}

	for _, k := range f.sshKeys {
		m.SSHKeys = append(m.SSHKeys, readSSHKeys(&ps, k)...)
	}
	if f.userDataFile != "" {
		_, b, err := readInput(c.Command, f.userDataFile)
		if err != nil {
			ps.Add("--user-data-file", "", "%v", err)
		}
		m.UserData = inventory.NewSecret(string(b))
	}

	m.BMC = f.bmc.parse(&ps)

	for _, p := range inventory.Validate(inventory.Canonical(m)) {
		p.Field = flagOf(p.Field)
		// A flag that could not be parsed is reported already, and its field in m is zero: drop the problem of the
		// zero value.
		if !slices.ContainsFunc(ps, func(q inventory.Problem) bool {
			return q.Field == p.Field || q.Field == "--address" && p.Field == "--netmask"
		}) {
			ps = append(ps, p)
		}
	}
	if err := ps.Err(); err != nil {
		return m, err
	}

	if !m.BMC.Manual() {
		var err error
		if m.BMC.Password, err = f.bmc.readPassword(c, m.BMC); err != nil {
			return m, err
		}
		ps = append(ps, inventory.Validate(m)...)
	}

	return inventory.Canonical(m), ps.Err()
}

// parseInterface returns the network interface that the flags describe, and adds the problems of these flags to ps.
func (f machineFlags) parseInterface(ps *inventory.Problems, machine string) inventory.Interface {
	parse := func(flag, v string) (a netip.Addr) {
		if v == "" {
			return a
		}
		a, err := netip.ParseAddr(v)
		if err != nil {
			ps.Add(flag, "write it as 10.0.0.11", "invalid IP address %q", v)
		}
		return a
	}

	i := inventory.Interface{
		MAC: f.mac, Netmask: f.netmask, Gateway: parse("--gateway", f.gateway), OnLink: f.onLink, UEFI: f.uefi,
		Hostname: cmp.Or(f.hostname, machine),
	}
	if p, err := netip.ParsePrefix(f.address); err == nil && p.Addr().Is4() {
		i.Address = p.Addr()
		i.Netmask = net.IP(net.CIDRMask(p.Bits(), 32)).String()
		if f.netmask != "" {
			ps.Add("--netmask", "leave it out", "--address has a prefix length already")
		}
	} else {
		i.Address = parse("--address", f.address)
	}

	for _, n := range f.nameservers {
		i.Nameservers = append(i.Nameservers, parse("--nameserver", n))
	}

	return i
}

// flagOf returns the flag that sets a field of inventory.Machine, or the field itself if there is no such flag.
func flagOf(field string) string {
	if rest, ok := strings.CutPrefix(field, "interfaces[0]."); ok {
		name, _, _ := strings.Cut(rest, "[")
		return "--" + strings.NewReplacer("nameservers", "nameserver", "onLink", "on-link").Replace(name) // not named as the field
	}

	for prefix, flag := range map[string]string{
		"diskSelector.serial": "--disk-serial", "disks[0].device": "--disk", "labels": "--label", "sshKeys": "--ssh-key",
		"template": "--template", "image": "--image", "bmc": "--bmc", "name": "NAME",
	} {
		if strings.HasPrefix(field, prefix) {
			return flag
		}
	}

	return field
}

// readSSHKeys returns v if it is a public key (it contains a space), otherwise the keys in the file v.
func readSSHKeys(ps *inventory.Problems, v string) []string {
	if strings.Contains(v, " ") {
		return []string{v}
	}

	b, err := os.ReadFile(v)
	if err != nil {
		ps.Add("--ssh-key", "give a public key in quotes, or a file of them", "%v", err)
		return nil
	}

	var keys []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			keys = append(keys, line)
		}
	}

	return keys
}

// parse returns the BMC that the flags describe, without its password. It returns nil if power is switched by hand, or
// if the flags are invalid. The problems that parse adds do not quote a text that may hold a password.
func (f bmcFlags) parse(ps *inventory.Problems) *inventory.BMC {
	b := &inventory.BMC{CipherSuite: f.cipher, InsecureTLS: f.insecureTLS, Fingerprint: f.fingerprint}
	if f.url == "" || f.url == inventory.DriverManual || f.url == inventory.DriverWOL {
		if (f != bmcFlags{url: f.url}) {
			ps.Add("--bmc", "give ipmi://user@host, redfish://user@host or amt://user@host",
				"with power manual or wol, no other BMC flag is allowed")
		}
		if f.url == inventory.DriverWOL {
			return &inventory.BMC{Driver: f.url}
		}
		return nil
	}

	if name, ok := strings.CutPrefix(f.url, inventory.DriverExec+":"); ok {
		b.Driver = inventory.DriverExec
		b.Command, b.Host, _ = strings.Cut(name, "@")
		if strings.Contains(b.Command, ":") {
			ps.Add("--bmc", "write exec:NAME or exec:NAME@host", "invalid command name after exec:")
			return nil
		}
		return b
	}

	u, err := url.Parse(f.url)
	if err != nil || u.Hostname() == "" {
		ps.Add("--bmc", "write ipmi://user@host[:port], redfish://…, amt://…, exec:NAME[@host], wol or manual",
			"invalid BMC address")
		return nil
	}

	b.Driver, b.Host = u.Scheme, u.Hostname()
	if u.User != nil {
		b.User = u.User.Username()
		if _, ok := u.User.Password(); ok {
			ps.Add("--bmc", "use --bmc-password-file or INGOT_BMC_PASSWORD, and change the password: "+
				"this host's users may have seen it", "must not contain the password")
		}
	}
	if u.Port() != "" {
		if b.Port, err = strconv.Atoi(u.Port()); err != nil {
			ps.Add("--bmc", "", "invalid port %q", u.Port())
		}
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		ps.Add("--bmc", "write ipmi://user@host[:port]", "invalid text after the host")
	}

	return b
}

// readPassword reads the BMC's password from --bmc-password-file, from INGOT_BMC_PASSWORD or from
// the terminal. For the driver exec it does not ask at the terminal.
func (f bmcFlags) readPassword(c *Call, b *inventory.BMC) (inventory.Secret, error) {
	if f.passwordFile != "" {
		text, err := readSecret(c.Command, f.passwordFile)
		text = bytes.TrimRight(text, "\r\n")
		if err == nil && len(text) == 0 {
			err = UsageError("%s is empty: write the BMC's password into it", f.passwordFile)
		}
		return inventory.NewSecret(string(text)), err
	}
	if v, ok := os.LookupEnv("INGOT_BMC_PASSWORD"); ok {
		return inventory.NewSecret(v), nil
	}
	if b.Driver == inventory.DriverExec { // the power command may need no password
		return inventory.Secret{}, nil
	}

	s, err := PromptSecret(c.Command, fmt.Sprintf("Password of %s at %s: ", b.User, b.Host))
	if errors.Is(err, inventory.ErrInvalid) {
		return s, UsageError("the BMC's password is missing: give --bmc-password-file or INGOT_BMC_PASSWORD")
	}

	return s, err
}
