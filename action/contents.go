package action

import (
	"fmt"
	"net/url"
	"strings"
)

// Variables of writefile that hold or name the contents of the file. Exactly one
// is given. The first is Tinkerbell's, the others are those of EKS Anywhere.
const (
	ContentsVariable   = "CONTENTS"
	BootConfigVariable = "BOOTCONFIG_CONTENTS" // text of a kernel boot configuration
	HegelVariable      = "HEGEL_URLS"          // see HegelURLs
)

// MaxBootConfig is what the kernel reads of a boot configuration, in bytes.
const MaxBootConfig = 32766

// contents refuses an environment of writefile without contents, and one with
// more than one source of them. CONTENTS may be empty, the others may not.
func contents(env map[string]string, name string) error {
	var given []string
	if _, ok := env[ContentsVariable]; ok {
		given = append(given, ContentsVariable)
	}
	for _, other := range []string{BootConfigVariable, HegelVariable} {
		if env[other] != "" {
			given = append(given, other)
		}
	}

	switch len(given) {
	case 0:
		return fmt.Errorf("reading %s: it is missing: give it, %s or %s", name, BootConfigVariable, HegelVariable)
	case 1:
		return nil
	}
	return fmt.Errorf("reading %s: give only one of them", strings.Join(given, " and "))
}

func bootConfig(env map[string]string, name string) error {
	switch text := env[name]; {
	case len(text) > MaxBootConfig:
		return fmt.Errorf("reading %s: %d bytes, a kernel reads up to %d", name, len(text), MaxBootConfig)
	case strings.ContainsRune(text, 0):
		return fmt.Errorf("reading %s: it has a null byte", name)
	}
	return nil
}

func hegelURLs(env map[string]string, _ string) error {
	_, err := HegelURLs(env)
	return err
}

// HegelURLs returns the addresses in HEGEL_URLS, which commas separate: each is
// the address of a metadata service, without a slash at its end. An error shows no
// address, which may have a password in it.
func HegelURLs(env map[string]string) ([]string, error) {
	if env[HegelVariable] == "" {
		return nil, nil
	}

	var all []string
	for i, text := range strings.Split(env[HegelVariable], ",") {
		text = strings.TrimRight(strings.TrimSpace(text), "/")
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
			return nil, fmt.Errorf("invalid address %[2]d of %[1]s; must be http:// or https:// and a host", HegelVariable, i+1)
		}
		all = append(all, text)
	}
	return all, nil
}

// staticNetwork refuses a request of EKS Anywhere's writefile to make the
// network's configuration of a machine out of its lease.
func staticNetwork(env map[string]string, name string) error {
	if on, err := Bool(env, name, false); err != nil || on {
		return fmt.Errorf("reading %s: the agent does not make a network configuration: give it by %s, from .Hardware.Interfaces",
			name, ContentsVariable)
	}
	return nil
}
