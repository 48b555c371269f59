package lab

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"
)

// productOf returns the product of a kernel, according to its command line: talos, harvester or "".
func productOf(cmdline string) string {
	switch {
	case strings.Contains(cmdline, "talos.platform="):
		return "talos"
	case strings.Contains(cmdline, "harvester.install."):
		return "harvester"
	}
	return ""
}

// productOn returns the product that is installed on a disk, and the kernel command line in its
// boot loader.
func productOn(path string) (product, cmdline string) {
	f, err := os.Open(path)
	if err != nil {
		return "", ""
	}
	defer f.Close() // opened only for reading
	parts, err := partitions(f)
	if err != nil {
		return "", ""
	}
	has := map[string]bool{}
	for _, p := range parts {
		has[p.name] = true
	}
	switch {
	case has["META"] && has["STATE"]:
		return "talos", "talos.platform=metal"
	case has["META"] && has["BOOT"]:
		return "talos", "talos.platform=nocloud"
	case has["oem"] && has["persistent"]:
		return "harvester", "root=LABEL=COS_STATE"
	case has["persistence"]:
		return "vyos", "boot=live vyos-union=/boot/" + VyOSVersion
	}
	return "", ""
}

// SetFailures sets the failures that the guests of a simulated machine simulate from the next boot
// on: the words of POST /fail. They replace earlier ones.
func (m *Machine) SetFailures(words ...string) {
	m.state.Lock()
	defer m.state.Unlock()
	all := strings.Join(words, ",")
	m.failures = &all
}

// runGuest runs a stand-in guest as a process with the machine's disks. It is the same program that
// is PID 1 in QEMU machines.
func (l *life) runGuest(product, cmdline string) ending {
	m := l.sim.m
	m.state.Lock()
	if m.failures != nil {
		cmdline += " ingotlab.fail=" + *m.failures
	}
	m.state.Unlock()
	args := []string{"-product=" + product, "-cmdline=" + cmdline, "-serial=" + m.spec.Serial, "-uuid=" + m.spec.UUID}
	for path, serial := range m.devices() {
		args = append(args, "-disk="+path+"="+m.DiskPathOf(serial)+",serial="+serial)
	}
	if product == "vyos" {
		root, err := m.vyosRoot()
		if err != nil {
			l.say("LAB-SIM system: %v", err)
			return noBoot
		}
		args = append(args, "-root="+root, "-dhcrelay="+filepath.Join(PackageDir("relay"), "usr/sbin/dhcrelay"))
	}
	c := m.lab.Command(l.ctx, m.Namespace(), m.spec.Guest, args...)
	out := &agentOutput{console: l.console}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		l.say("LAB-SIM starting the guest: %v", err)
		<-l.ctx.Done()
		return cutOff
	}
	err := c.Wait() // it is killed when the power is cut
	if l.ctx.Err() != nil {
		return cutOff
	}
	switch end := out.ending(); {
	case err == nil && end == "reboot":
		return rebooted
	case err == nil && end == "poweroff":
		return switchedOff
	}
	l.say("LAB-SIM the guest ended: %v", err)
	<-l.ctx.Done()
	return cutOff
}

// vyosRoot returns the folder that is the root file system of a simulated router. It is created
// again if the configuration injected into the disk has changed; configuration saved by the router
// itself is only in the folder.
func (m *Machine) vyosRoot() (string, error) {
	const etc = "opt/vyatta/etc/config"
	from := "boot/" + VyOSVersion + "/rw/" + etc + "/"
	found := map[string][]byte{}
	f, err := os.Open(m.DiskPath())
	if err != nil {
		return "", err
	}
	defer f.Close() // opened only for reading
	parts, err := partitions(f)
	if err != nil {
		return "", err
	}
	for _, p := range parts {
		if p.name != "persistence" {
			continue
		}
		fs, err := ext4.Read(file.New(f, true), p.size, p.start, 512)
		if err != nil {
			return "", fmt.Errorf("reading the partition persistence: %w", err)
		}
		for _, name := range []string{"config.boot", "scripts/vyos-postconfig-bootup.script"} {
			if b, err := fs.ReadFile(from + name); err == nil { // each may be missing
				found[name] = b
			}
		}
	}
	h := sha256.New()
	for _, name := range []string{"config.boot", "scripts/vyos-postconfig-bootup.script"} {
		h.Write(append(found[name], 0))
	}
	sum := []byte(hex.EncodeToString(h.Sum(nil)))
	root := m.path("vyos")
	if b, err := os.ReadFile(filepath.Join(root, "sum")); err == nil && bytes.Equal(b, sum) {
		return root, nil
	}
	if err := os.RemoveAll(root); err != nil {
		return "", err
	}
	put := func(name string, b []byte) error {
		path := filepath.Join(root, name)
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o755))
	}
	err = errors.Join(put("opt/vyatta/etc/config.boot.default", []byte(vyosDefault)), os.MkdirAll(filepath.Join(root, "var/lib"), 0o755))
	for name, b := range found {
		err = errors.Join(err, put(filepath.Join(etc, name), b))
	}
	return root, errors.Join(err, put("sum", sum))
}
