package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat16"
	"go.yaml.in/yaml/v3"
)

// talosConfig is the part of a machine configuration that this guest applies.
type talosConfig struct {
	Version string `yaml:"version"`
	Machine struct {
		Type     string   `yaml:"type"`
		CA       keyPair  `yaml:"ca"`
		CertSANs []string `yaml:"certSANs"`
		Network  struct {
			Hostname   string `yaml:"hostname"`
			Interfaces []struct {
				Interface      string `yaml:"interface"`
				DeviceSelector struct {
					HardwareAddr string `yaml:"hardwareAddr"`
				} `yaml:"deviceSelector"`
				DHCP      bool     `yaml:"dhcp"`
				Addresses []string `yaml:"addresses"`
				Routes    []struct {
					Network string `yaml:"network"`
					Gateway string `yaml:"gateway"`
				} `yaml:"routes"`
				VIP struct {
					IP string `yaml:"ip"`
				} `yaml:"vip"`
			} `yaml:"interfaces"`
		} `yaml:"network"`
		Install struct {
			Disk         string         `yaml:"disk"`
			DiskSelector map[string]any `yaml:"diskSelector"`
			Image        string         `yaml:"image"`
			Wipe         bool           `yaml:"wipe"`
		} `yaml:"install"`
	} `yaml:"machine"`
	Cluster struct {
		ID           string  `yaml:"id"`
		Secret       string  `yaml:"secret"`
		ClusterName  string  `yaml:"clusterName"`
		CA           keyPair `yaml:"ca"`
		ControlPlane struct {
			Endpoint string `yaml:"endpoint"`
		} `yaml:"controlPlane"`
		APIServer struct {
			CertSANs []string `yaml:"certSANs"`
		} `yaml:"apiServer"`
	} `yaml:"cluster"`
	hostname string // of the document HostnameConfig, or of machine.network
}

type keyPair struct {
	Crt string `yaml:"crt"`
	Key string `yaml:"key"`
}

// The keys of a v1alpha1 document and of its machine; other keys are errors, as in Talos.
var (
	talosKeys   = strings.Fields("version debug persist machine cluster")
	machineKeys = strings.Fields(
		`type token ca acceptedCAs certSANs controlPlane kubelet pods network disks install files env time sysctls sysfs
		registries systemDiskEncryption features udev logging kernel seccompProfiles baseRuntimeSpecOverrides
		nodeLabels nodeAnnotations nodeTaints`,
	)
	clusterKeys = strings.Fields(
		`id secret controlPlane clusterName network token aescbcEncryptionSecret secretboxEncryptionSecret ca acceptedCAs
		aggregatorCA serviceAccount apiServer controllerManager proxy scheduler discovery etcd coreDNS externalCloudProvider extraManifests
		extraManifestHeaders inlineManifests adminKubeconfig allowSchedulingOnMasters allowSchedulingOnControlPlanes`,
	)
)

// parseTalos reads a machine configuration of one or more documents.
func parseTalos(b []byte) (*talosConfig, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var c *talosConfig
	hostname := ""
	for {
		var node yaml.Node
		if err := dec.Decode(&node); err != nil {
			if c != nil && err.Error() == "EOF" {
				break
			}
			return nil, fmt.Errorf("reading the machine configuration: %w", err)
		}
		var top map[string]yaml.Node
		if err := node.Decode(&top); err != nil {
			return nil, fmt.Errorf("reading the machine configuration: %w", err)
		}
		if _, other := top["apiVersion"]; other {
			var d struct {
				Kind     string `yaml:"kind"`
				Hostname string `yaml:"hostname"`
			}
			if err := node.Decode(&d); err != nil || d.Kind == "" {
				return nil, fmt.Errorf("reading the machine configuration: a document without kind (%w)", err)
			}
			if d.Kind == "HostnameConfig" {
				hostname = d.Hostname
			}
			continue
		}
		c = &talosConfig{}
		if err := node.Decode(c); err != nil {
			return nil, fmt.Errorf("reading the machine configuration: %w", err)
		}
		for _, in := range []struct {
			node  yaml.Node
			known []string
		}{{node, talosKeys}, {top["machine"], machineKeys}, {top["cluster"], clusterKeys}} {
			var keys map[string]yaml.Node
			if err := in.node.Decode(&keys); err != nil {
				return nil, fmt.Errorf("reading the machine configuration: %w", err)
			}
			for k := range keys {
				if !slices.Contains(in.known, k) {
					return nil, fmt.Errorf("reading the machine configuration: unknown key %q", k)
				}
			}
		}
	}
	switch {
	case c.Version != "v1alpha1":
		return nil, fmt.Errorf("reading the machine configuration: version %q", c.Version)
	case !slices.Contains([]string{"init", "controlplane", "worker"}, c.Machine.Type):
		return nil, fmt.Errorf("reading the machine configuration: machine.type %q", c.Machine.Type)
	case c.Cluster.ControlPlane.Endpoint == "":
		return nil, errors.New("reading the machine configuration: cluster.controlPlane.endpoint is missing")
	}
	if c.hostname = hostname; hostname == "" {
		c.hostname = c.Machine.Network.Hostname
	}
	return c, nil
}

// pemOf decodes a base64 PEM block, the form of certificates and keys in machine configurations.
func pemOf(s string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	return block.Bytes, nil
}

// talosDocument configures the network and gets the configuration: from a volume labelled CIDATA (platform nocloud), or from
// the URL on the command line, which it tries until it succeeds.
func (h *host) talosDocument(ctx context.Context) ([]byte, error) {
	if platform := first(h.parameter("talos.platform")); platform == "nocloud" {
		for _, d := range h.disks {
			if b := d.cidata("user-data"); len(b) > 0 {
				h.say("configuration from CIDATA of %s", d.name)
				return b, h.leaseAll(ctx, "")
			}
		}
		return nil, errors.New("finding the configuration: there is no volume CIDATA with user-data")
	} else if platform != "metal" {
		return nil, fmt.Errorf("there is no platform %q", platform)
	}
	if err := h.leaseAll(ctx, ""); err != nil {
		return nil, err
	}
	from := first(h.parameter("talos.config"))
	if from == "" {
		h.stage("maintenance", "no configuration")
		<-ctx.Done()
		return nil, ctx.Err()
	}
	at, err := h.substitute(from)
	if err != nil {
		return nil, err
	}
	h.stage("config", "fetching the machine configuration")
	for try := 1; ; try++ {
		b, err := fetch(ctx, at, 16*mib)
		if err == nil && len(bytes.TrimSpace(b)) == 0 {
			err = errors.New("it is empty")
		}
		if err == nil {
			h.say("configuration of %d bytes fetched, try %d", len(b), try)
			return b, nil
		}
		h.say("fetching the configuration: try %d: %v", try, err)
		if !pause(ctx, min(time.Duration(try)*time.Second, 10*time.Second)) {
			return nil, ctx.Err()
		}
	}
}

// substitute replaces ${uuid}, ${serial}, ${mac} and ${hostname} in query values, and nowhere else.
func (h *host) substitute(from string) (string, error) {
	u, err := url.Parse(from)
	if err != nil {
		return "", fmt.Errorf("reading talos.config: %w", err)
	}
	q := u.Query()
	if len(q) == 0 {
		return from, nil
	}
	mac := ""
	if all, err := cards(); err == nil && len(all) > 0 {
		mac = all[0].HardwareAddr.String()
	}
	values := map[string]string{"uuid": h.uuid, "serial": h.serial, "mac": mac, "hostname": ""}
	for k := range q {
		for i, v := range q[k] {
			q[k][i] = regexp.MustCompile(`\$\{(\w+)\}`).ReplaceAllStringFunc(v, func(s string) string {
				if r, ok := values[s[2:len(s)-1]]; ok {
					return r
				}
				return s
			})
		}
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// cidata reads a file of the disk's CIDATA volume.
func (d *disk) cidata(name string) []byte {
	p := d.find("CIDATA")
	if p.size == 0 {
		return nil
	}
	f, err := os.Open(d.path)
	if err != nil {
		return nil
	}
	defer f.Close() // only read from
	fs, err := fat16.Read(file.New(f, true), p.size, p.start, sector)
	if err != nil {
		return nil
	}
	b, err := fs.ReadFile("/" + name)
	if err != nil {
		return nil
	}
	if i := bytes.IndexByte(b, 0); i >= 0 { // the rest of the last cluster
		b = b[:i]
	}
	return b
}
