package action

import (
	"fmt"
	"net/url"
	"strings"
)

// Variables of writefile for the contents of the file. Exactly one of them must be given. ContentsVariable is from Tinkerbell's
// action; the others are from the action of EKS Anywhere. The plan replaces NetplanVariable and BottlerocketVariable by
// ContentsVariable.
const (
	ContentsVariable     = "CONTENTS"
	BootConfigVariable   = "BOOTCONFIG_CONTENTS" // text of a kernel boot configuration
	HegelVariable        = "HEGEL_URLS"          // see HegelURLs
	NetplanVariable      = "STATIC_NETPLAN"      // true: the machine's network as a netplan file
	BottlerocketVariable = "STATIC_BOTTLEROCKET" // true: the machine's network as Bottlerocket's net.toml
)

// SettingsVariable is the variable of writefile that holds the settings which go into BottlerocketSettings. The plan sets it for
// BottlerocketVariable, because net.toml cannot hold name servers.
const SettingsVariable = "BOTTLEROCKET_SETTINGS"

// BottlerocketSettings is the path of Bottlerocket's settings in the file system of its net.toml.
const BottlerocketSettings = "/user-data.toml"

// MaxBootConfig is the maximum size of a boot configuration that the kernel reads, in bytes.
const MaxBootConfig = 32766

// contents returns an error unless exactly one of the variables for the contents is given. CONTENTS counts as given even if it is
// empty; texts and URLs count as given if they are not empty, and NetplanVariable and BottlerocketVariable if they are true.
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
	for _, network := range []string{NetplanVariable, BottlerocketVariable} {
		if on, err := Bool(env, network, false); on && err == nil {
			given = append(given, network)
		}
	}

	switch len(given) {
	case 0:
		return fmt.Errorf("reading %s: the contents are missing: give this variable, %s, %s, %s or %s", name, BootConfigVariable,
			HegelVariable, NetplanVariable, BottlerocketVariable)
	case 1:
		return nil
	}
	return fmt.Errorf("reading %s: give only one of them", strings.Join(given, " and "))
}

func bootConfig(env map[string]string, name string) error {
	switch text := env[name]; {
	case len(text) > MaxBootConfig:
		return fmt.Errorf("reading %s: it has %d bytes, and the kernel reads up to %d", name, len(text), MaxBootConfig)
	case strings.ContainsRune(text, 0):
		return fmt.Errorf("invalid %s; must not contain a zero byte", name)
	}
	return nil
}

func hegelURLs(env map[string]string, _ string) error {
	_, err := HegelURLs(env)
	return err
}

// HegelURLs returns the URLs of metadata services in HEGEL_URLS, without slashes at their ends. In HEGEL_URLS, commas separate the
// URLs. Errors do not contain the URLs, which may contain passwords.
func HegelURLs(env map[string]string) ([]string, error) {
	if env[HegelVariable] == "" {
		return nil, nil
	}

	var all []string
	for i, text := range strings.Split(env[HegelVariable], ",") {
		text = strings.TrimRight(strings.TrimSpace(text), "/")
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
			return nil, fmt.Errorf("invalid URL %[2]d of %[1]s; must be an http:// or https:// URL with a host and without a query",
				HegelVariable, i+1)
		}
		all = append(all, text)
	}
	return all, nil
}
