package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// OtherDHCPAddress is the address of the server that StartDHCP starts, in the namespace Client.
const OtherDHCPAddress = "10.10.20.3"

// DHCPProgram is a DHCP server of Debian.
type DHCPProgram string

// The DHCP servers that StartDHCP can start.
const (
	ISC     DHCPProgram = "isc"
	Kea     DHCPProgram = "kea"
	Dnsmasq DHCPProgram = "dnsmasq"
)

// StartDHCP starts a DHCP server in VLAN 20. It leases 10.10.20.150 to .199, and the same in VLAN 30
// to the relay, to any client. extra is added to its configuration: lines, or with Kea the members of
// "Dhcp4". The server ends with the lab.
func (l *Lab) StartDHCP(ctx context.Context, program DHCPProgram, extra string) error {
	if err := l.ipBatch(ctx, Client, "addr add "+OtherDHCPAddress+"/24 dev eth0", "route add default via "+DirectGateway); err != nil {
		return err
	}
	dir := filepath.Join(l.dir, "dhcp")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	pkg := PackageDir("dhcp")
	file, leases := filepath.Join(dir, "server.conf"), filepath.Join(dir, "leases")
	var config, started string
	var args []string
	switch program {
	case ISC:
		config = "authoritative;\ndefault-lease-time 600;\n" + extra
		for _, n := range otherDHCPNetworks {
			config += fmt.Sprintf("subnet %s.0 netmask 255.255.255.0 { range %[1]s.150 %[1]s.199; option routers %[1]s.1; }\n", n)
		}
		args, started = []string{
			"sbin/dhcpd",
			"-4",
			"-f",
			"-d",
			"--no-pid",
			"-user",
			"root",
			"-group",
			"root",
			"-cf",
			file,
			"-lf",
			leases,
			"eth0",
		},
			`Server starting service`
	case Dnsmasq:
		config = "port=0\ninterface=eth0\nbind-interfaces\nuser=root\ndhcp-authoritative\ndhcp-leasefile=" + leases + "\n" + extra
		for _, n := range otherDHCPNetworks {
			config += fmt.Sprintf("dhcp-range=set:%[1]s,%[1]s.150,%[1]s.199,255.255.255.0,600\ndhcp-option=tag:%[1]s,option:router,%[1]s.1\n", n)
		}
		args, started = []string{
			"sbin/dnsmasq",
			"--keep-in-foreground",
			"--log-facility=-",
			"--log-dhcp",
			"--conf-file=" + file,
		}, `dnsmasq-dhcp.*IP range`
	case Kea:
		var err error
		if config, err = keaConfig(extra); err != nil {
			return err
		}
		args, started = []string{"sbin/kea-dhcp4", "-c", file}, `DHCP4_STARTED`
	}
	for name, content := range map[string]string{file: config, leases: ""} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	args[0] = filepath.Join(pkg, "usr", args[0])
	return l.runDHCP(ctx, dir, started, append([]string{
		"LD_LIBRARY_PATH=" + filepath.Join(pkg, "usr/lib/x86_64-linux-gnu"), "KEA_PIDFILE_DIR=" + dir, "KEA_LOCKFILE_DIR=" + dir,
	}, args...))
}

// otherDHCPNetworks are the networks of StartDHCP, without the last number.
var otherDHCPNetworks = []string{"10.10.20", "10.10.30"}

// keaConfig returns a configuration of Kea with the members of extra.
func keaConfig(extra string) (string, error) {
	members := map[string]any{}
	if extra != "" {
		if err := json.Unmarshal([]byte("{"+extra+"}"), &members); err != nil {
			return "", fmt.Errorf("reading what is added to Kea's configuration: %w", err)
		}
	}
	var subnets []any
	for _, n := range otherDHCPNetworks {
		subnets = append(subnets, map[string]any{
			"subnet": n + ".0/24", "pools": []any{map[string]any{"pool": n + ".150 - " + n + ".199"}},
			"option-data": []any{map[string]any{"name": "routers", "data": n + ".1"}},
		})
	}
	members["interfaces-config"] = map[string]any{"interfaces": []string{"eth0"}}
	members["lease-database"] = map[string]any{"type": "memfile", "persist": false}
	members["valid-lifetime"], members["subnet4"] = 600, subnets
	b, err := json.Marshal(map[string]any{"Dhcp4": members})
	return string(b), err
}

// runDHCP starts a server and waits until its log has started. The server has a process namespace whose first process is a shell:
// dnsmasq changes its credentials, and the kernel then forgets that the process is to die with its parent.
func (l *Lab) runDHCP(ctx context.Context, dir, started string, args []string) error {
	name := filepath.Join(dir, "log")
	log, err := os.Create(name)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own descriptor
	inNamespace := []string{"--pid", "--fork", "--kill-child", "sh", "-c", `"$@"; exit $?`, "sh", "env"}
	c := l.Command(l.ctx, Client, "unshare", append(inNamespace, args...)...)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var text []byte
	err = poll(ctx, func() (bool, error) {
		select {
		case <-c.Done():
			return false, fmt.Errorf("the DHCP server has ended: %w", c.Wait())
		default:
		}
		text, err = os.ReadFile(name)
		return regexp.MustCompile(started).Match(text), err
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w\n%s", args[3], err, strings.TrimSpace(string(text)))
	}
	return nil
}
