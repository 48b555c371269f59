// Package harvester supports Harvester: it checks installation configurations, adds webhooks to them, and queries
// an installed cluster.
package harvester

import (
	"fmt"
	"path"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
)

// Document checks and reads Harvester installation configurations.
type Document struct{}

// Disks returns the paths of the disks that the configuration overwrites, or "ALL ITS DISKS".
func (Document) Disks(contents []byte) (disks []string) {
	docs, _ := strictyaml.Documents("", contents) // none if they cannot be read
	for _, d := range docs {
		for _, field := range []string{"install.device", "install.data_disk"} {
			if v := d.Text(field); v != "" {
				disks = append(disks, v)
			}
		}
		for n := 0; d.Text(fmt.Sprintf("install.wipe_disks_list[%d]", n)) != ""; n++ {
			disks = append(disks, d.Text(fmt.Sprintf("install.wipe_disks_list[%d]", n)))
		}
		if d.Text("install.wipe_all_disks") == "true" {
			disks = append(disks, "ALL ITS DISKS")
		}
	}
	return disks
}

// Downloads returns the file names of the ISO images that the installer fetches.
func (Document) Downloads(contents []byte) (names []string) {
	docs, _ := strictyaml.Documents("", contents) // none if they cannot be read
	for _, d := range docs {
		if iso := d.Text("install.iso_url"); iso != "" {
			names = append(names, path.Base(iso))
		}
	}
	return names
}

// configuration is an installation configuration of scheme version 1, with every key that the installer (1.2 to
// 1.6) documents or reads.
type configuration struct {
	SchemeVersion  int               `json:"scheme_version"`
	ServerURL      string            `json:"server_url"`
	Token          string            `json:"token"`
	SANs           []string          `json:"sans"`
	OS             osSection         `json:"os"`
	Install        *installSection   `json:"install"`
	SystemSettings map[string]string `json:"system_settings"`
	// Versions of Helm charts, for custom images of Harvester.
	RuntimeVersion         string `json:"runtime_version"`
	RancherVersion         string `json:"rancher_version"`
	HarvesterChartVersion  string `json:"harvester_chart_version"`
	MonitoringChartVersion string `json:"monitoring_chart_version"`
	LoggingChartVersion    string `json:"logging_chart_version"`
}

type osSection struct {
	Hostname                   string            `json:"hostname"`
	Password                   string            `json:"password"`
	SSHAuthorizedKeys          []string          `json:"ssh_authorized_keys"`
	NTPServers                 []string          `json:"ntp_servers"`
	DNSNameservers             []string          `json:"dns_nameservers"`
	Modules                    []string          `json:"modules"`
	Sysctls                    map[string]string `json:"sysctls"`
	Environment                map[string]string `json:"environment"`
	Labels                     map[string]string `json:"labels"`
	WriteFiles                 []writtenFile     `json:"write_files"`
	AfterInstallChrootCommands []string          `json:"after_install_chroot_commands"`
	PersistentStatePaths       []string          `json:"persistent_state_paths"`
	AdditionalKernelArguments  string            `json:"additional_kernel_arguments"`
	ExternalStorage            any               `json:"external_storage_config"`
	SSHD                       struct {
		SFTP                bool `json:"sftp"`
		DisablePasswordAuth bool `json:"disable_password_auth"`
	} `json:"sshd"`
}

type writtenFile struct {
	Encoding    string       `json:"encoding"`
	Content     fileContents `json:"content"`
	Owner       string       `json:"owner"`
	Path        string       `json:"path"`
	Permissions string       `json:"permissions"`
}

// fileContents accepts the content of a file, as text or, with !!binary, as bytes. It does not keep the content, because no check needs it.
type fileContents struct{}

// UnmarshalText accepts any text.
func (fileContents) UnmarshalText([]byte) error { return nil }

type installSection struct {
	Automatic               bool                 `json:"automatic"`
	SkipChecks              bool                 `json:"skipchecks"`
	Mode                    string               `json:"mode"`
	ManagementInterface     *managementInterface `json:"management_interface"`
	VIP                     string               `json:"vip"`
	VIPHwAddr               string               `json:"vip_hw_addr"`
	VIPMode                 string               `json:"vip_mode"`
	ClusterDNS              string               `json:"cluster_dns"`
	ClusterPodCIDR          string               `json:"cluster_pod_cidr"`
	ClusterServiceCIDR      string               `json:"cluster_service_cidr"`
	ForceEFI                bool                 `json:"force_efi"`
	ForceGPT                bool                 `json:"force_gpt"`
	ForceMBR                bool                 `json:"force_mbr"`
	Device                  string               `json:"device"`
	DataDisk                string               `json:"data_disk"`
	WipeAllDisks            bool                 `json:"wipe_all_disks"`
	WipeDisksList           []string             `json:"wipe_disks_list"`
	PersistentPartitionSize string               `json:"persistent_partition_size"`
	ConfigURL               string               `json:"config_url"`
	ISOURL                  string               `json:"iso_url"`
	WithNetImages           bool                 `json:"with_net_images"`
	Silent                  bool                 `json:"silent"`
	PowerOff                bool                 `json:"poweroff"`
	NoFormat                bool                 `json:"no_format"`
	Debug                   bool                 `json:"debug"`
	TTY                     string               `json:"tty"`
	Role                    string               `json:"role"`
	Webhooks                []webhook            `json:"webhooks"`
	Addons                  map[string]addon     `json:"addons"`
	Harvester               any                  `json:"harvester"`
	RawDiskImagePath        string               `json:"raw_disk_image_path"`
}

type managementInterface struct {
	Interfaces []struct {
		Name   string `json:"name"`
		HwAddr string `json:"hwAddr"`
	} `json:"interfaces"`
	Method       string            `json:"method"`
	IP           string            `json:"ip"`
	SubnetMask   string            `json:"subnet_mask"`
	Gateway      string            `json:"gateway"`
	DefaultRoute bool              `json:"default_route"` // used before version 1.1; now read and ignored
	BondOptions  map[string]string `json:"bond_options"`
	MTU          int               `json:"mtu"`
	VLANID       int               `json:"vlan_id"`
}

type webhook struct {
	Event     string              `json:"event"`
	Method    string              `json:"method"`
	Headers   map[string][]string `json:"headers"`
	URL       string              `json:"url"`
	Payload   string              `json:"payload"`
	Insecure  bool                `json:"insecure"`
	BasicAuth struct {
		User     string `json:"user"`
		Password string `json:"password"`
	} `json:"basicAuth"`
}

type addon struct {
	Enabled       bool   `json:"enabled"`
	ValuesContent string `json:"values_content"`
}
