package agent

import "strings"

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
	for _, word := range strings.Fields(line) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "ingot.server":
			c.Server = value
		case "ingot.pin":
			c.Pin = value
		case "ingot.machine":
			c.Machine = value
		case "ingot.claim":
			c.Claim = value
		case "ingot.plan":
			c.PlanKey = value
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
	if c.MAC == "" {
		c.MAC = bootif
	}
	return c
}
