package agent

import (
	"cmp"
	"strings"
)

// CommandLine reads the agent's parameters from a kernel command line:
//
//	ingot.server=https://192.0.2.1:7443   base URL of the server
//	ingot.pin=sha256:HEX                  digest of its certificate's SubjectPublicKeyInfo
//	ingot.machine=NAME                    this machine's name in the inventory
//	ingot.claim=HEX                       this boot's claim
//	ingot.plan=ed25519:BASE64URL          the key with which the server signs orders
//	ingot.mac=52:54:00:00:00:01           the interface to use
//	ingot.rescue=1                        an operator uses this boot: run no action
//	ingot.discover=1                      an unknown machine: report the hardware, and nothing else
//
// BOOTIF=01-52-54-… replaces a missing ingot.mac. If a parameter is repeated, the last one counts,
// as in the kernel.
func CommandLine(line string) Config {
	var c Config
	var bootif string
	texts := map[string]*string{
		"ingot.server": &c.Server, "ingot.pin": &c.Pin, "ingot.machine": &c.Machine, "ingot.claim": &c.Claim, "ingot.plan": &c.PlanKey,
	}
	for _, word := range strings.Fields(line) {
		name, value, _ := strings.Cut(word, "=")
		if text := texts[name]; text != nil {
			*text = value
		}
		switch name {
		case "ingot.mac":
			c.MAC = strings.ToLower(strings.ReplaceAll(value, "-", ":"))
		case "ingot.rescue":
			c.Rescue = value != "0"
		case "ingot.discover":
			c.Discover = value != "0"
		case "BOOTIF":
			if _, mac, ok := strings.Cut(value, "-"); ok {
				bootif = strings.ToLower(strings.ReplaceAll(mac, "-", ":"))
			}
		}
	}
	c.MAC = cmp.Or(c.MAC, bootif)
	return c
}
