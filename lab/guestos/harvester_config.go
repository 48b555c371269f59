package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// harvesterConfig is the installer's configuration file with its documented keys; other keys are errors.
type harvesterConfig struct {
	SchemeVersion int            `yaml:"scheme_version"`
	ServerURL     string         `yaml:"server_url,omitempty"`
	Token         string         `yaml:"token"`
	SANs          []string       `yaml:"sans,omitempty"`
	OS            harvesterOS    `yaml:"os"`
	Install       harvesterSetup `yaml:"install"`
	Settings      map[string]any `yaml:"system_settings,omitempty"`
}

type harvesterOS struct {
	Hostname       string            `yaml:"hostname,omitempty"`
	Password       string            `yaml:"password,omitempty"`
	Keys           []string          `yaml:"ssh_authorized_keys,omitempty"`
	NTP            []string          `yaml:"ntp_servers,omitempty"`
	DNS            []string          `yaml:"dns_nameservers,omitempty"`
	WriteFiles     []any             `yaml:"write_files,omitempty"`
	Modules        []string          `yaml:"modules,omitempty"`
	Sysctls        map[string]string `yaml:"sysctls,omitempty"`
	Environment    map[string]string `yaml:"environment,omitempty"`
	Labels         map[string]string `yaml:"labels,omitempty"`
	SSHD           map[string]any    `yaml:"sshd,omitempty"`
	Persistent     []string          `yaml:"persistent_state_paths,omitempty"`
	AfterInstall   []string          `yaml:"after_install_chroot_commands,omitempty"`
	External       map[string]any    `yaml:"external_storage_config,omitempty"`
	KernelArgument string            `yaml:"additional_kernel_arguments,omitempty"`
	Wifi           []any             `yaml:"wifi,omitempty"`
}

type harvesterSetup struct {
	Automatic  bool   `yaml:"automatic,omitempty"`
	SkipChecks bool   `yaml:"skipchecks,omitempty"`
	ConfigURL  string `yaml:"config_url,omitempty"`
	Mode       string `yaml:"mode"`
	Management struct {
		Interfaces []struct {
			Name   string `yaml:"name,omitempty"`
			HwAddr string `yaml:"hwAddr,omitempty"`
		} `yaml:"interfaces"`
		Method       string            `yaml:"method"`
		IP           string            `yaml:"ip,omitempty"`
		SubnetMask   string            `yaml:"subnet_mask,omitempty"`
		Gateway      string            `yaml:"gateway,omitempty"`
		DefaultRoute bool              `yaml:"default_route,omitempty"`
		MTU          int               `yaml:"mtu,omitempty"`
		VLAN         int               `yaml:"vlan_id,omitempty"`
		Bond         map[string]string `yaml:"bond_options,omitempty"`
	} `yaml:"management_interface"`
	ForceEFI    bool               `yaml:"force_efi,omitempty"`
	Device      string             `yaml:"device"`
	DataDisk    string             `yaml:"data_disk,omitempty"`
	ISO         string             `yaml:"iso_url,omitempty"`
	Silent      bool               `yaml:"silent,omitempty"`
	PowerOff    bool               `yaml:"poweroff,omitempty"`
	NoFormat    bool               `yaml:"no_format,omitempty"`
	Debug       bool               `yaml:"debug,omitempty"`
	TTY         string             `yaml:"tty,omitempty"`
	ForceGPT    bool               `yaml:"force_gpt,omitempty"`
	ForceMBR    bool               `yaml:"force_mbr,omitempty"`
	Role        string             `yaml:"role,omitempty"`
	NetImages   bool               `yaml:"with_net_images,omitempty"`
	WipeAll     bool               `yaml:"wipe_all_disks,omitempty"`
	WipeList    []string           `yaml:"wipe_disks_list,omitempty"`
	VIP         string             `yaml:"vip,omitempty"`
	VIPHwAddr   string             `yaml:"vip_hw_addr,omitempty"`
	VIPMode     string             `yaml:"vip_mode,omitempty"`
	Webhooks    []harvesterWebhook `yaml:"webhooks,omitempty"`
	Addons      map[string]any     `yaml:"addons,omitempty"`
	Harvester   map[string]any     `yaml:"harvester,omitempty"`
	RawDisk     string             `yaml:"raw_disk_image_path,omitempty"`
	PartSize    string             `yaml:"persistent_partition_size,omitempty"`
	PodCIDR     string             `yaml:"cluster_pod_cidr,omitempty"`
	ServiceCIDR string             `yaml:"cluster_service_cidr,omitempty"`
	ClusterDNS  string             `yaml:"cluster_dns,omitempty"`
}

type harvesterWebhook struct {
	Event     string              `yaml:"event"`
	Method    string              `yaml:"method"`
	URL       string              `yaml:"url"`
	Headers   map[string][]string `yaml:"headers,omitempty"`
	Payload   string              `yaml:"payload,omitempty"`
	Insecure  bool                `yaml:"insecure,omitempty"`
	BasicAuth struct {
		User     string `yaml:"user"`
		Password string `yaml:"password"`
	} `yaml:"basicAuth,omitempty"`
}

// harvesterDocument fetches the configuration (30 attempts, 10 s apart, as Harvester's installer does), overrides it with the
// harvester.* parameters of the kernel command line, and checks it.
func (h *host) harvesterDocument(ctx context.Context) (*harvesterConfig, error) {
	doc := map[string]any{}
	inline := map[string]any{}
	for _, w := range h.parameters {
		key, value, ok := strings.Cut(w, "=")
		words := strings.Split(key, ".")
		if !ok || words[0] != "harvester" || len(words) < 2 {
			continue
		}
		var v any
		if err := yaml.Unmarshal([]byte(value), &v); err != nil {
			return nil, fmt.Errorf("reading %q of the command line: %w", key, err)
		}
		at := inline
		for _, name := range words[1 : len(words)-1] {
			next, ok := at[name].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[name] = next
			}
			at = next
		}
		at[words[len(words)-1]] = v
	}
	setup, _ := inline["install"].(map[string]any)
	if setup["automatic"] != true {
		return nil, errors.New("installing: an operator would have to answer questions (harvester.install.automatic is not true)")
	}
	if url, ok := setup["config_url"].(string); ok && url != "" {
		h.stage("config", "fetching the configuration")
		for try := 1; ; try++ {
			b, err := fetch(ctx, url, mib)
			if err == nil {
				if err := yaml.Unmarshal(b, &doc); err != nil {
					return nil, fmt.Errorf("reading the configuration: %w", err)
				}
				break
			}
			h.say("fetching the configuration: try %d: %v", try, err)
			if try == 30 {
				return nil, fmt.Errorf("fetching the configuration: %w", err)
			}
			if !pause(ctx, 10*time.Second) {
				return nil, ctx.Err()
			}
		}
	}
	overlay(doc, inline)
	b, err := yaml.Marshal(doc)
	if err != nil {
		return nil, err
	}
	c, err := parseHarvester(b)
	if err == nil && h.fails("config") {
		err = errors.New("reading the configuration: told to fail")
	}
	return c, err
}

// overlay overwrites the values of to with those of from, key by key.
func overlay(to, from map[string]any) {
	for k, v := range from {
		if sub, ok := v.(map[string]any); ok {
			if old, ok := to[k].(map[string]any); ok {
				overlay(old, sub)
				continue
			}
		}
		to[k] = v
	}
}

// parseHarvester reads and checks a configuration.
func parseHarvester(b []byte) (*harvesterConfig, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	c := &harvesterConfig{}
	if err := dec.Decode(c); err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	in := c.Install
	var wrong []string
	check := func(ok bool, what string) {
		if !ok {
			wrong = append(wrong, what)
		}
	}
	check(c.SchemeVersion == 1, "scheme_version is not 1")
	check(c.Token != "", "token is missing")
	check(c.OS.Password != "" || len(c.OS.Keys) > 0, "os has neither password nor ssh_authorized_keys")
	check(in.Mode == "create" || in.Mode == "join", "install.mode is neither create nor join")
	check(in.Mode != "join" || strings.HasPrefix(c.ServerURL, "https://"), "server_url is missing")
	check(in.Mode != "create" || in.VIPMode == "dhcp" && in.VIPHwAddr != "" || net.ParseIP(in.VIP) != nil, "install.vip is missing")
	check(len(in.Management.Interfaces) > 0, "install.management_interface.interfaces is missing")
	check(in.Management.Method == "dhcp" || in.Management.Method == "static",
		"install.management_interface.method is neither dhcp nor static")
	check(in.Device != "", "install.device is missing")
	for _, w := range in.Webhooks {
		check(slices.Contains([]string{"STARTED", "SUCCEEDED", "FAILED"}, w.Event), "install.webhooks: event "+w.Event)
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("reading the configuration: %s", strings.Join(wrong, "; "))
	}
	return c, nil
}
