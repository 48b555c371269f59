package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/machinefile"
	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

func machineCmd(o *options) *cobra.Command {
	c := group("machine", "Machines: what there is, and what happens to it", "  ingot machine list\n  ingot machine provision node-1 --image debian-12 --wait",
		machinePushCmd(o), machineAddCmd(o), machineListCmd(o), machineGetCmd(o), machineDeleteCmd(o), machineSeenCmd(o), machineAcceptCmd(o),
		machineDisksCmd(o), machinePowerCmd(o), machineBootDeviceCmd(o), machineProvisionCmd(o), machineReprovisionCmd(o), machineDecommissionCmd(o), machineReleaseCmd(o),
		machineInspectCmd(o))
	c.Aliases = []string{"hardware"}
	return c
}

// machineNames completes the first argument.
func (o *options) machineNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.names(cmd, "machines")
}

func (o *options) templateNames(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return o.names(cmd, "templates")
}

func (o *options) imageNames(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return o.names(cmd, "images")
}

// names asks the server for the names of things.
func (o *options) names(cmd *cobra.Command, things string) ([]string, cobra.ShellCompDirective) {
	c, err := o.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	a, err := ask[list[struct {
		Name string `json:"name"`
	}]](cmd.Context(), c, "GET", path(things), nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, i := range a.v.Items {
		out = append(out, i.Name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeFlag completes a flag's value; the flag exists.
func completeFlag(c *cobra.Command, flag string, f cobra.CompletionFunc) {
	cobra.CheckErr(c.RegisterFlagCompletionFunc(flag, f))
}

// wire returns m as JSON with its secrets, which JSON redacts otherwise.
func wire(m inventory.Machine) (json.RawMessage, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	doc := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	reveal := func(in map[string]json.RawMessage, field string, s inventory.Secret) error {
		if s.IsZero() {
			return nil
		}
		v, err := json.Marshal(s.Reveal())
		in[field] = v
		return err
	}
	if err := errors.Join(reveal(doc, "userData", m.UserData), reveal(doc, "vendorData", m.VendorData)); err != nil {
		return nil, err
	}
	if m.BMC != nil && !m.BMC.Password.IsZero() {
		bmc := map[string]json.RawMessage{}
		if err := json.Unmarshal(doc["bmc"], &bmc); err != nil {
			return nil, err
		}
		if err := reveal(bmc, "password", m.BMC.Password); err != nil {
			return nil, err
		}
		if doc["bmc"], err = json.Marshal(bmc); err != nil {
			return nil, err
		}
	}
	return json.Marshal(doc)
}

type pushBody struct {
	Machines []json.RawMessage `json:"machines"`
	Replace  bool              `json:"replace,omitempty"`
}

// push stores machines, and says what the server warns of.
func (o *options) push(cmd *cobra.Command, ms []inventory.Machine, replace bool) (answer[pushed], error) {
	var none answer[pushed]
	body := pushBody{Replace: replace}
	for _, m := range ms {
		b, err := wire(m)
		if err != nil {
			return none, err
		}
		body.Machines = append(body.Machines, b)
	}
	c, err := o.client()
	if err != nil {
		return none, err
	}
	a, err := ask[pushed](cmd.Context(), c, "POST", path("machines"), body)
	for _, w := range a.v.Warnings {
		say(cmd, "warn: %s", inert(w))
	}
	return a, err
}

// pushed is the answer to a push.
type pushed struct {
	list[api.MachineView]
	Warnings []string `json:"warnings"`
}

// nameIsTaken tells whether the server refused a push only because a machine of
// that name is stored already.
func nameIsTaken(err error) bool {
	var e *apiError
	return errors.Is(err, inventory.ErrConflict) && errors.As(err, &e) && len(e.Problems) == 0
}

func machinePushCmd(o *options) *cobra.Command {
	var file string
	var replace bool
	c := &cobra.Command{
		Use: "push --file FILE", Short: "Store the machines of a file, all or none", Args: cobra.NoArgs,
		Long: `Store the machines of a YAML or JSON file ("-" is standard input) with one
machine per document. Everything that is wrong is told at once, with file and
line, and then nothing is stored.

A secret stays as it is stored where the file has hasPassword (hasUserData,
hasVendorData) in its place, as "ingot machine get NAME --output yaml" writes it:
what that prints can be edited and pushed back. Netboot is no part of a file:
pushing one arms nothing. MACs, addresses and disks of a machine with an open
run change only after the run; access to its BMC can be corrected meanwhile.

A machine is written so, with "---" between two:

  name: node-1
  image: debian-12
  interfaces:
    - mac: "02:00:00:00:00:01"
      address: 10.0.0.11
      netmask: 255.255.255.0
      gateway: 10.0.0.1
  bmc: {driver: ipmi, host: 10.0.9.11, user: admin, password: secret}

Documents of Tinkerbell and CSV files of EKS Anywhere cannot be read by this
version.`,
		Example: "  ingot machine push --file hardware.yaml\n  ingot machine push --file hardware.yaml --replace   # changes machines that exist",
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, b, err := readInput(cmd, file)
			if err != nil {
				return err
			}
			if err := machinefile.Foreign(name, b); err != nil {
				return err
			}
			docs, err := strictyaml.Documents(name, b)
			if err != nil {
				return err
			}
			ms, notes, err := machinefile.Read(name, docs)
			for _, n := range notes {
				say(cmd, "note: %s", inert(n))
			}
			if err != nil {
				return err
			}
			a, err := o.push(cmd, ms, replace)
			if err != nil {
				err = locate(err, docs, ms)
				if nameIsTaken(err) && !replace {
					err = advice{err, "ingot machine push --replace --file " + file + "   # changes those that exist"}
				}
				return err
			}
			return show(cmd, o, a, func(w io.Writer, l pushed) error {
				for _, m := range l.Items {
					fmt.Fprintf(w, "machine %s stored\n", m.Name)
				}
				return nil
			})
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "YAML or JSON file of machines, - for standard input")
	c.Flags().BoolVar(&replace, "replace", false, "change machines that exist")
	cobra.CheckErr(c.MarkFlagRequired("file"))
	return c
}

// readInput reads a file, or standard input for "-".
func readInput(cmd *cobra.Command, file string) (name string, b []byte, err error) {
	if file == "-" {
		b, err = io.ReadAll(cmd.InOrStdin())
		return "stdin", b, err
	}
	b, err = os.ReadFile(file)
	if err != nil {
		return file, nil, usage("%v", err)
	}
	return file, b, nil
}

var ofMachine = regexp.MustCompile(`^machine "([^"]+)": `)

// locate adds file and line to what the server found wrong with machines of a
// file.
func locate(err error, docs []strictyaml.Document, ms []inventory.Machine) error {
	var e *apiError
	if !errors.As(err, &e) {
		return err
	}
	for n, p := range e.Problems {
		name, _, _ := strings.Cut(p.Field, ": ")
		if m := ofMachine.FindStringSubmatch(p.What); m != nil {
			name = m[1]
		}
		i := slices.IndexFunc(ms, func(m inventory.Machine) bool { return m.Name == name })
		if i < 0 && len(ms) == 1 {
			i = 0
		}
		if i < 0 {
			continue
		}
		p.Field = strings.TrimPrefix(p.Field, name+": ")
		e.Problems[n] = docs[i].Locate(inventory.Problems{p})[0]
	}
	return err
}

// machineFlags are the flags of "machine add".
type machineFlags struct {
	mac, address, netmask, gateway, hostname string
	nameservers                              []string
	uefi                                     bool
	disk, diskSerial                         string
	bmc, passwordFile, cipher                string
	insecureTLS                              bool
	fingerprint                              string
	template, image                          string
	labels                                   map[string]string
	sshKeys                                  []string
	userDataFile                             string
}

func machineAddCmd(o *options) *cobra.Command {
	var f machineFlags
	c := &cobra.Command{
		Use: "add NAME --mac MAC", Short: "Add a machine", Args: cobra.ExactArgs(1),
		Long: `Add a machine with one network interface. Machines with several, and many at
once, come from a file: ingot machine push.

The BMC's password is read from --bmc-password-file or INGOT_BMC_PASSWORD, or
asked for: an argument would be seen by everybody on this host.`,
		Example: `  ingot machine add node-1 --mac 02:00:00:00:00:01 --address 10.0.0.11/24 --gateway 10.0.0.1 \
    --nameserver 10.0.0.1 --image debian-12 --ssh-key ~/.ssh/id_ed25519.pub \
    --bmc ipmi://admin@10.0.1.11 --bmc-password-file node-1.password
  ingot machine add node-2 --mac 02:00:00:00:00:02 --address 10.0.0.12/24 --uefi   # power by hand`,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.machine(cmd, args[0])
			if err != nil {
				return err
			}
			a, err := o.push(cmd, []inventory.Machine{m}, false)
			if err != nil {
				var e *apiError
				if errors.As(err, &e) {
					for i := range e.Problems {
						e.Problems[i].Field = flagOf(e.Problems[i].Field)
					}
				}
				if nameIsTaken(err) {
					err = advice{err, "ingot machine get " + m.Name}
				}
				return err
			}
			return show(cmd, o, a, func(w io.Writer, _ pushed) error {
				next := "ingot machine provision " + m.Name
				if m.Image == "" {
					next += " --image IMAGE"
				}
				fmt.Fprintf(w, "machine %s stored\nnext: %s --wait\n", m.Name, next)
				return nil
			})
		},
	}
	x := c.Flags()
	x.StringVar(&f.mac, "mac", "", "MAC address of the interface that boots from the network")
	x.StringVar(&f.address, "address", "", "IPv4 address that it gets, with or without prefix length")
	x.StringVar(&f.netmask, "netmask", "", "netmask, unless --address has a prefix length")
	x.StringVar(&f.gateway, "gateway", "", "default gateway")
	x.StringVar(&f.hostname, "hostname", "", "host name (default: NAME)")
	x.StringArrayVar(&f.nameservers, "nameserver", nil, "name server; repeatable")
	x.BoolVar(&f.uefi, "uefi", false, "boots by UEFI")
	x.StringVar(&f.disk, "disk", "", "path by which templates name its disk, such as /dev/sda")
	x.StringVar(&f.diskSerial, "disk-serial", "", "serial number of the disk to write")
	x.StringVar(&f.bmc, "bmc", "", "ipmi://user@host[:port], amt://user@host[:port] (Intel AMT), exec:NAME[@host] (power command of the server's configuration), wol or manual (default)")
	x.StringVar(&f.passwordFile, "bmc-password-file", "", "file with the BMC's password, - for standard input")
	x.StringVar(&f.cipher, "cipher", "", "IPMI cipher suite (default 17)")
	x.BoolVar(&f.insecureTLS, "bmc-insecure-tls", false, "do not verify the certificate of an AMT at port 16993; better: --bmc-fingerprint")
	x.StringVar(&f.fingerprint, "bmc-fingerprint", "", "sha256:… of the TLS key of an AMT")
	x.StringVar(&f.template, "template", "", "template of its provisioning (default: image)")
	x.StringVar(&f.image, "image", "", "image of its provisioning")
	x.StringToStringVar(&f.labels, "label", nil, "label key=value; repeatable")
	x.StringArrayVar(&f.sshKeys, "ssh-key", nil, "public SSH key, or a file of them; repeatable")
	x.StringVar(&f.userDataFile, "user-data-file", "", "file with user data (a secret), - for standard input")
	cobra.CheckErr(c.MarkFlagRequired("mac"))
	completeFlag(c, "template", o.templateNames)
	completeFlag(c, "image", o.imageNames)
	return c
}

// machine makes the machine that the flags describe, or tells all that is
// wrong with them.
func (f machineFlags) machine(cmd *cobra.Command, name string) (inventory.Machine, error) {
	var ps inventory.Problems
	addr := func(flag, v string) (a netip.Addr) {
		if v == "" {
			return a
		}
		a, err := netip.ParseAddr(v)
		if err != nil {
			ps.Add(flag, "write it as 10.0.0.11", "%q is no IP address", v)
		}
		return a
	}
	i := inventory.Interface{MAC: f.mac, Netmask: f.netmask, Gateway: addr("--gateway", f.gateway), Hostname: f.hostname, UEFI: f.uefi}
	if i.Hostname == "" {
		i.Hostname = name
	}
	if p, err := netip.ParsePrefix(f.address); err == nil && p.Addr().Is4() {
		i.Address = p.Addr()
		if f.netmask != "" {
			ps.Add("--netmask", "leave it out", "--address has a prefix length already")
		}
		mask := uint32(0xffffffff) << (32 - p.Bits())
		i.Netmask = netip.AddrFrom4([4]byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}).String()
	} else {
		i.Address = addr("--address", f.address)
	}
	for _, n := range f.nameservers {
		i.Nameservers = append(i.Nameservers, addr("--nameserver", n))
	}
	m := inventory.Machine{Name: name, Labels: f.labels, Interfaces: []inventory.Interface{i}, Template: f.template, Image: f.image}
	if f.disk != "" {
		m.Disks = []inventory.DeclaredDisk{{Device: f.disk}}
	}
	if f.diskSerial != "" {
		m.DiskSelector = &inventory.DiskSelector{Serial: f.diskSerial}
	}
	for _, k := range f.sshKeys {
		m.SSHKeys = append(m.SSHKeys, sshKeys(&ps, k)...)
	}
	if f.userDataFile != "" {
		_, b, err := readInput(cmd, f.userDataFile)
		if err != nil {
			ps.Add("--user-data-file", "", "%v", err)
		}
		m.UserData = inventory.NewSecret(string(b))
	}
	m.BMC = f.bmcOf(&ps)
	for _, p := range inventory.Validate(inventory.Canonical(m)) {
		p.Field = flagOf(p.Field)
		// A flag that could not be read is zero now: one word about it is enough.
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
		if m.BMC.Password, err = bmcPassword(cmd, f.passwordFile, m.BMC); err != nil {
			return m, err
		}
		ps = append(ps, inventory.Validate(m)...)
	}
	return inventory.Canonical(m), ps.Err()
}

// flagOf names the flag that sets a field.
func flagOf(field string) string {
	for prefix, flag := range map[string]string{
		"interfaces[0].": "--", "diskSelector.serial": "--disk-serial", "disks[0].device": "--disk", "labels": "--label", "sshKeys": "--ssh-key",
		"template": "--template", "image": "--image", "bmc": "--bmc", "name": "NAME",
	} {
		if rest, ok := strings.CutPrefix(field, prefix); ok {
			if flag == "--" {
				name, _, _ := strings.Cut(rest, "[")
				if name == "nameservers" {
					name = "nameserver" // the flag is given once for each
				}
				return flag + name
			}
			return flag
		}
	}
	return field
}

// sshKeys reads a key, or the keys of a file.
func sshKeys(ps *inventory.Problems, v string) []string {
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

func (f machineFlags) bmcOf(ps *inventory.Problems) *inventory.BMC {
	if f.bmc == "" || f.bmc == inventory.DriverManual || f.bmc == inventory.DriverWOL {
		if f.passwordFile != "" || f.cipher != "" || f.insecureTLS || f.fingerprint != "" {
			ps.Add("--bmc", "give ipmi://user@host or amt://user@host", "a machine with manual power has no BMC to set up")
		}
		if f.bmc == inventory.DriverWOL {
			return &inventory.BMC{Driver: f.bmc}
		}
		return nil
	}
	if name, ok := strings.CutPrefix(f.bmc, inventory.DriverExec+":"); ok {
		name, host, _ := strings.Cut(name, "@")
		if strings.Contains(name, ":") { // not repeated: it may be a password
			ps.Add("--bmc", "write exec:NAME or exec:NAME@host", "there is more than a name")
			return nil
		}
		return &inventory.BMC{Driver: inventory.DriverExec, Command: name, Host: host, CipherSuite: f.cipher, InsecureTLS: f.insecureTLS, Fingerprint: f.fingerprint}
	}
	u, err := url.Parse(f.bmc)
	if err != nil || u.Hostname() == "" {
		// The text is not repeated: it may hold a password.
		ps.Add("--bmc", "write ipmi://user@host[:port], amt://user@host[:port], exec:NAME[@host], wol or manual", "this is no address of a BMC")
		return nil
	}
	b := &inventory.BMC{Driver: u.Scheme, Host: u.Hostname(), CipherSuite: f.cipher, InsecureTLS: f.insecureTLS, Fingerprint: f.fingerprint}
	if u.User != nil {
		b.User = u.User.Username()
		if _, ok := u.User.Password(); ok {
			ps.Add("--bmc", "use --bmc-password-file or INGOT_BMC_PASSWORD, and change the password: this host's users may have seen it", "holds a password")
		}
	}
	if u.Port() != "" {
		if b.Port, err = strconv.Atoi(u.Port()); err != nil {
			ps.Add("--bmc", "", "%q is no port", u.Port())
		}
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		ps.Add("--bmc", "write ipmi://user@host[:port]", "there is more after the host")
	}
	return b
}

func bmcPassword(cmd *cobra.Command, file string, b *inventory.BMC) (inventory.Secret, error) {
	if file != "" {
		_, text, err := readInput(cmd, file)
		return inventory.NewSecret(string(bytes.TrimRight(text, "\r\n"))), err
	}
	if v, ok := os.LookupEnv("INGOT_BMC_PASSWORD"); ok {
		return inventory.NewSecret(v), nil
	}
	if b.Driver == inventory.DriverExec { // its command may need none
		return inventory.Secret{}, nil
	}
	s, err := promptSecret(cmd, fmt.Sprintf("Password of %s at %s: ", b.User, b.Host))
	if errors.Is(err, inventory.ErrInvalid) {
		return s, usage("the BMC's password is missing: give --bmc-password-file or INGOT_BMC_PASSWORD")
	}
	return s, err
}

func machineListCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List machines", Args: cobra.NoArgs, Aliases: []string{"ls"},
		Example: "  ingot machine list\n  ingot machine list --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "GET", path("machines"), nil, func(w io.Writer, l list[api.MachineView]) error {
				if len(l.Items) == 0 {
					say(cmd, "no machines; add one: ingot machine add --help")
					return nil
				}
				t := newTable(w, "NAME", "MAC", "ADDRESS", "POWER BY", "TEMPLATE", "IMAGE", "INSTALLED", "NETBOOT", "LAST RUN", "SEEN")
				for _, m := range l.Items {
					i, _ := m.Machine.Netboot()
					address := ""
					if i.Address.IsValid() {
						address = i.Address.String()
					}
					t.row(m.Name, i.MAC, address, powerBy(m.BMC), m.Template, m.Image, installedWord(m.Installed), netbootWord(m.Netboot), lastWord(m), ago(m.LastSeen))
				}
				return t.flush()
			})
		},
	}
}

func powerBy(b *inventory.BMC) string {
	switch {
	case b.Wakes():
		return "wol, hand"
	case b.Manual():
		return "hand"
	}
	return b.Driver
}

// netbootWord says whether netboot is open, and until when.
func netbootWord(n inventory.Netboot) string {
	switch {
	case n.AllowPXE:
		until := n.Until.Local()
		form := "15:04:05"
		if time.Until(until) > 12*time.Hour {
			form = "2006-01-02 15:04:05"
		}
		return "open until " + until.Format(form)
	case n.AllowWorkflow:
		return "closed (run goes on)"
	}
	return "closed"
}

// installedWord says what is on a machine's disk, as far as Ingot has written it.
func installedWord(i *inventory.Installed) string {
	if i == nil {
		return ""
	}
	what := firstWord(i.Image, i.Template, "by run "+i.Run)
	if i.System() {
		return what
	}
	if i.Type == inventory.TypeDecommission {
		what = "wiped"
	}
	return what + " (" + i.State + ")"
}

// lastWord is what became of a machine last.
func lastWord(m api.MachineView) string {
	if m.Standing != nil && (m.Workflow == nil || inventory.Final(m.Workflow.State)) {
		return m.Standing.State
	}
	return runWord(m.Workflow)
}

func runWord(w *inventory.Workflow) string {
	if w == nil {
		return ""
	}
	if inventory.Final(w.State) {
		return w.State
	}
	return w.State + " " + w.Phase
}

func machineGetCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a machine", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Example: "  ingot machine get node-1\n  ingot machine get node-1 --output yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAndShow(cmd, o, "GET", path("machines", args[0]), nil, printMachine)
		},
	}
}

// powerText says what switches a machine.
func powerText(b *inventory.BMC) string {
	switch {
	case b.Wakes():
		text := "on by wake-on-LAN, off by hand"
		for _, x := range []string{b.MAC, b.Host} {
			if x != "" {
				text += "  " + x
			}
		}
		return text
	case b.Manual():
		return "by hand"
	case b.Driver == inventory.DriverExec:
		text := "command " + b.Command
		if b.Host != "" {
			text += " at " + b.Host
		}
		return text
	}
	text := fmt.Sprintf("%s://%s@%s", b.Driver, b.User, b.Host)
	if b.Port != 0 {
		text += fmt.Sprintf(":%d", b.Port)
	}
	if b.Fingerprint != "" {
		text += "  key " + b.Fingerprint
	}
	if !b.HasPassword {
		text += "  no password is stored"
	}
	return text
}

func printMachine(w io.Writer, m api.MachineView) error {
	t := newTable(w)
	t.field("name", m.Name)
	if len(m.Labels) > 0 {
		var ls []string
		for _, k := range slices.Sorted(maps.Keys(m.Labels)) {
			ls = append(ls, k+"="+m.Labels[k])
		}
		t.field("labels", strings.Join(ls, ", "))
	}
	for _, i := range m.Interfaces {
		text := i.MAC
		add := func(what, v string) {
			if v != "" {
				text += "  " + what + v
			}
		}
		if i.Address.IsValid() {
			add("", i.Address.String())
		}
		add("netmask ", i.Netmask)
		if i.Gateway.IsValid() {
			add("gateway ", i.Gateway.String())
		}
		for _, n := range i.Nameservers {
			add("name server ", n.String())
		}
		add("host name ", i.Hostname)
		add("", i.Arch)
		if i.UEFI {
			add("", "UEFI")
		}
		if i.DisableNetboot {
			add("", "never boots")
		}
		t.field("interface", text)
	}
	for _, d := range m.Disks {
		t.field("disk", d.Device)
	}
	if m.DiskSelector != nil {
		t.field("disk selector", selectorText(*m.DiskSelector))
	}
	for _, id := range m.ProtectedDisks {
		t.field("protected disk", selectorText(inventory.DiskSelector{Serial: id.Serial, WWN: id.WWN}))
	}
	t.field("standing", standingText(m.Standing))
	t.field("power", powerText(m.BMC))
	t.field("template", m.Template)
	t.field("image", m.Image)
	if m.HasUserData {
		t.field("user data", "stored")
	}
	if m.HasVendorData {
		t.field("vendor data", "stored")
	}
	if n := len(m.SSHKeys); n > 0 {
		t.field("SSH keys", n)
	}
	if m.Installed != nil {
		t.field("installed", fmt.Sprintf("%s  by run %s, %s", installedWord(m.Installed), m.Installed.Run, ago(m.Installed.At)))
	}
	netboot := netbootWord(m.Netboot)
	if m.Netboot.Run != "" {
		netboot += "  held by " + m.Netboot.Run
	}
	t.field("netboot", netboot)
	for _, k := range slices.Sorted(maps.Keys(m.Notes)) {
		t.field("note", k+": "+m.Notes[k])
	}
	t.field("seen", ago(m.LastSeen))
	if m.Workflow != nil {
		t.field("last run", fmt.Sprintf("%s  %s  %s", m.Workflow.Run, runWord(m.Workflow), m.Workflow.Message))
		t.field("next", m.Workflow.Next)
	}
	return t.flush()
}

func selectorText(s inventory.DiskSelector) string {
	var out []string
	for _, f := range []struct{ name, v string }{{"serial", s.Serial}, {"wwn", s.WWN}, {"by-id", s.ByID}, {"model", s.Model}} {
		if f.v != "" {
			out = append(out, f.name+" "+f.v)
		}
	}
	if s.MinSize > 0 {
		out = append(out, "at least "+size(s.MinSize))
	}
	if s.MaxSize > 0 {
		out = append(out, "at most "+size(s.MaxSize))
	}
	return strings.Join(out, ", ")
}

func machineDeleteCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Delete a machine with its secrets", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long:    "Delete a machine, its reservation, its BMC password and its user data. Records\nof its runs stay. What runs on the machine itself is not touched.",
		Example: "  ingot machine delete node-1\n  ingot machine delete node-1 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if _, err := ask[api.MachineView](cmd.Context(), c, "GET", path("machines", args[0]), nil); err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf("deletes machine %s with its reservation, its BMC password and its user data", args[0]), args[0]); err != nil {
				return err
			}
			if _, err := ask[struct{}](cmd.Context(), c, "DELETE", path("machines", args[0]), nil); err != nil {
				return err
			}
			say(cmd, "machine %s deleted", args[0])
			return nil
		},
	}
	yesFlag(c, &yes)
	return c
}

func yesFlag(c *cobra.Command, yes *bool) {
	c.Flags().BoolVarP(yes, "yes", "y", false, "do not ask")
}

// seenList is the answer to machine seen.
type seenList struct {
	list[inventory.Seen]
	Dropped int64 `json:"dropped"`
}

func machineSeenCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "seen", Short: "List unknown machines that asked for an address", Args: cobra.NoArgs, Example: "  ingot machine seen",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "GET", path("seen"), nil, func(w io.Writer, l seenList) error {
				if l.Dropped > 0 {
					say(cmd, "note: the newest are listed; since the server started, %s of others came that are not", count(int(l.Dropped), "packet"))
				}
				if len(l.Items) == 0 {
					say(cmd, "no unknown machine has asked for an address; is DHCP on? ingot status")
					return nil
				}
				t := newTable(w, "MAC", "FIRST", "LAST", "COUNT", "RELAY", "CLASS")
				for _, s := range l.Items {
					t.row(s.MAC, when(s.First), ago(s.Last), s.Count, s.Giaddr, s.Class)
				}
				if err := t.flush(); err != nil {
					return err
				}
				say(cmd, "next: ingot machine accept %s --name NAME --address ADDRESS/BITS", l.Items[0].MAC)
				return nil
			})
		},
	}
}

func machineAcceptCmd(o *options) *cobra.Command {
	var f machineFlags
	var name string
	c := &cobra.Command{
		Use: "accept MAC --name NAME", Short: "Make a machine of an unknown MAC that asked for an address", Args: cobra.ExactArgs(1),
		Example: "  ingot machine accept 02:00:00:00:00:03 --name node-3 --address 10.0.0.13/24 --gateway 10.0.0.1",
		RunE: func(cmd *cobra.Command, args []string) error {
			f.mac = args[0]
			m, err := f.machine(cmd, name)
			if err != nil {
				return err
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			in := struct {
				Name string `json:"name"`
				inventory.Interface
			}{m.Name, m.Interfaces[0]}
			a, err := ask[list[api.MachineView]](cmd.Context(), c, "POST", path("seen", in.MAC, "accept"), in)
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, _ list[api.MachineView]) error {
				fmt.Fprintf(w, "machine %s stored\nnext: ingot machine provision %s --image IMAGE --wait\n", m.Name, m.Name)
				return nil
			})
		},
	}
	x := c.Flags()
	x.StringVar(&name, "name", "", "the machine's name")
	x.StringVar(&f.address, "address", "", "IPv4 address that it gets, with or without prefix length")
	x.StringVar(&f.netmask, "netmask", "", "netmask, unless --address has a prefix length")
	x.StringVar(&f.gateway, "gateway", "", "default gateway")
	x.StringVar(&f.hostname, "hostname", "", "host name (default: NAME)")
	x.StringArrayVar(&f.nameservers, "nameserver", nil, "name server; repeatable")
	x.BoolVar(&f.uefi, "uefi", false, "boots by UEFI")
	cobra.CheckErr(c.MarkFlagRequired("name"))
	return c
}

func machineDisksCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "disks NAME", Short: "List the disks that an agent found", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Example: "  ingot machine inspect node-1 --wait && ingot machine disks node-1",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := ask[struct {
				Items []action.Disk `json:"items"`
				At    time.Time     `json:"at"`
			}](cmd.Context(), c, "GET", path("machines", args[0], "disks"), nil)
			if err != nil {
				return err
			}
			return showDisks(cmd, o, a.raw, a.v.Items, a.v.At)
		},
	}
}

func showDisks(cmd *cobra.Command, o *options, raw json.RawMessage, disks []action.Disk, at time.Time) error {
	return show(cmd, o, answer[[]action.Disk]{disks, raw}, func(w io.Writer, disks []action.Disk) error {
		if len(disks) == 0 {
			say(cmd, "the agent found no disk")
			return nil
		}
		say(cmd, "as found %s", ago(at))
		return printDisks(w, disks)
	})
}

// printDisks lists disks with what selects each.
func printDisks(w io.Writer, disks []action.Disk) error {
	t := newTable(w, "PATH", "SIZE", "MODEL", "BY", "HOLDS", "SELECT WITH")
	for _, d := range disks {
		holds := strings.Join(d.Signatures, ", ")
		if d.Blank {
			holds = "nothing"
		}
		if d.Written != "" {
			holds = strings.TrimPrefix(holds+", ", ", ") + "written by run " + d.Written
		}
		transport := d.Transport
		if d.Removable {
			transport += " removable"
		}
		t.row(d.Path, size(d.Size), d.Model, transport, holds, diskFlag(d))
	}
	return t.flush()
}

// diskFlag is the selector of a disk to paste.
func diskFlag(d action.Disk) string {
	switch {
	case d.Serial != "":
		return "--disk-serial " + shellWord(d.Serial)
	case d.WWN != "":
		return "--disk-wwn " + shellWord(d.WWN)
	case len(d.ByID) > 0:
		return "--disk-by-id " + shellWord(d.ByID[0])
	}
	return ""
}

var harmlessWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// shellWord quotes what a machine said, so that pasting it runs nothing.
func shellWord(s string) string {
	s = inert(s)
	if harmlessWord.MatchString(s) && !strings.HasPrefix(s, "-") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
