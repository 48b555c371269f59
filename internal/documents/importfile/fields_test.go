package importfile

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
)

// foreignKeys are all keys of the other formats, by kind. The samples have each of them.
var foreignKeys = map[string]string{
	"Hardware": `spec.agentID spec.auto.enrollmentEnabled spec.bmcRef.apiGroup spec.bmcRef.kind spec.bmcRef.name spec.tinkVersion
		spec.disks[].device spec.resources spec.userData spec.vendorData spec.references
		spec.interfaces[].netboot.allowPXE spec.interfaces[].netboot.allowWorkflow spec.interfaces[].netboot.ipxe.url
		spec.interfaces[].netboot.ipxe.contents spec.interfaces[].netboot.ipxe.binary spec.interfaces[].netboot.osie.baseURL
		spec.interfaces[].netboot.osie.kernel spec.interfaces[].netboot.osie.initrd spec.interfaces[].netboot.osie.kernelParams
		spec.interfaces[].netboot.pxelinux.config spec.interfaces[].netboot.rpi.serialNum spec.interfaces[].netboot.rpi.firmwarePath
		spec.interfaces[].netboot.rpi.configTxt spec.interfaces[].isoboot.sourceISO spec.interfaces[].disableDhcp
		spec.interfaces[].dhcp.mac spec.interfaces[].dhcp.hostname spec.interfaces[].dhcp.domain_name spec.interfaces[].dhcp.lease_time
		spec.interfaces[].dhcp.name_servers spec.interfaces[].dhcp.time_servers spec.interfaces[].dhcp.arch spec.interfaces[].dhcp.uefi
		spec.interfaces[].dhcp.iface_name spec.interfaces[].dhcp.ip.address spec.interfaces[].dhcp.ip.netmask
		spec.interfaces[].dhcp.ip.gateway spec.interfaces[].dhcp.ip.family spec.interfaces[].dhcp.vlan_id
		spec.interfaces[].dhcp.classless_static_routes[].destination_descriptor spec.interfaces[].dhcp.classless_static_routes[].router
		spec.interfaces[].dhcp.tftp_server_name spec.interfaces[].dhcp.boot_file_name
		spec.metadata.state spec.metadata.bonding_mode spec.metadata.manufacturer spec.metadata.facility spec.metadata.custom
		spec.metadata.instance.id spec.metadata.instance.state spec.metadata.instance.hostname spec.metadata.instance.allow_pxe
		spec.metadata.instance.rescue spec.metadata.instance.always_pxe spec.metadata.instance.ipxe_script_url
		spec.metadata.instance.network_ready spec.metadata.instance.operating_system spec.metadata.instance.ips
		spec.metadata.instance.userdata spec.metadata.instance.crypted_root_password spec.metadata.instance.tags
		spec.metadata.instance.ssh_keys spec.metadata.instance.storage.disks spec.metadata.instance.storage.raid
		spec.metadata.instance.storage.filesystems status metadata.annotations metadata.labels metadata.ownerReferences
		spec.arch spec.bmc.bootMode spec.bmc.connection.credentialsRef.name spec.bmc.connection.host spec.bmc.connection.insecureTLS
		spec.bmc.connection.providerOptions spec.instance.lookupID spec.instance.metadata spec.instance.networkConfig
		spec.instance.userdata spec.instance.vendordata spec.instance.osie.initrdURL spec.instance.osie.isoURL
		spec.instance.osie.kernelParams spec.instance.osie.kernelURL spec.instance.sshKeys spec.instance.vars
		spec.networkInterfaces[].dhcp.ipv4.disabled spec.networkInterfaces[].dhcp.ipv4.bootFileName
		spec.networkInterfaces[].dhcp.ipv4.classlessStaticRoutes spec.networkInterfaces[].dhcp.ipv4.domainName
		spec.networkInterfaces[].dhcp.ipv4.domainSearchList spec.networkInterfaces[].dhcp.ipv4.hostname
		spec.networkInterfaces[].dhcp.ipv4.leaseTimeSeconds spec.networkInterfaces[].dhcp.ipv4.nameservers
		spec.networkInterfaces[].dhcp.ipv4.tftpServerName spec.networkInterfaces[].dhcp.ipv4.ntpServers
		spec.networkInterfaces[].dhcp.ipv4.vlanID spec.networkInterfaces[].dhcp.ipv6 spec.networkInterfaces[].ipam.ipv4.address
		spec.networkInterfaces[].ipam.ipv4.gateway spec.networkInterfaces[].ipam.ipv4.prefix spec.networkInterfaces[].ipam.ipv6
		spec.networkInterfaces[].netboot.disabled spec.networkInterfaces[].netboot.ipxe spec.networkInterfaces[].netboot.pxelinux
		spec.networkInterfaces[].netboot.rpi spec.storageDevices[].name`,
	"Template": `spec.data`,
	"Workflow": `spec.disabled spec.templateRef spec.hardwareRef spec.hardwareMap spec.bootOptions.toggleAllowNetboot
		spec.bootOptions.isoURL spec.bootOptions.bootMode spec.bootOptions.custombootConfig.preparingActions
		spec.bootOptions.custombootConfig.postActions status spec.globals.env spec.globals.templateMap spec.globals.volumes
		spec.references spec.timeoutSeconds spec.vars spec.tasks[].agentID spec.tasks[].extra spec.tasks[].timeoutSeconds
		spec.tasks[].taskRef.name spec.tasks[].hardware.hardwareRef.name spec.tasks[].hardware.bootOptions`,
	"Machine": `spec.connection.host spec.connection.port spec.connection.authSecretRef.name spec.connection.authSecretRef.namespace
		spec.connection.insecureTLS spec.connection.providerOptions.preferredOrder spec.connection.providerOptions.intelAMT.port
		spec.connection.providerOptions.intelAMT.hostScheme spec.connection.providerOptions.ipmitool.port
		spec.connection.providerOptions.ipmitool.cipherSuite spec.connection.providerOptions.redfish.port
		spec.connection.providerOptions.redfish.useBasicAuth spec.connection.providerOptions.redfish.systemName
		spec.connection.providerOptions.rpc.consumerURL spec.connection.providerOptions.rpc.logNotificationsDisabled
		spec.connection.providerOptions.rpc.request spec.connection.providerOptions.rpc.signature
		spec.connection.providerOptions.rpc.hmac spec.connection.providerOptions.rpc.experimental
		spec.connection.providerOptions.homeassistant.switchEntityID
		spec.connection.providerOptions.homeassistant.powerOperationDelaySeconds status`,
	"Job": `spec.machineRef.name spec.machineRef.namespace spec.tasks[].powerAction spec.tasks[].oneTimeBootDeviceAction.device
		spec.tasks[].oneTimeBootDeviceAction.efiBoot spec.tasks[].bootDevice.device spec.tasks[].bootDevice.persistent
		spec.tasks[].bootDevice.efiBoot spec.tasks[].virtualMediaAction.mediaURL spec.tasks[].virtualMediaAction.kind
		spec.hardwareRef.name spec.connection spec.operations[].powerAction spec.operations[].bootDevice.name
		spec.operations[].bootDevice.persistent spec.operations[].bootDevice.efiBoot spec.operations[].virtualMediaAction
		spec.operations[].timeoutSeconds`,
	"Secret": `data.username data.password stringData.username stringData.password type immutable`,
	"Task": `spec.task spec.connection spec.actions[].name spec.actions[].if spec.actions[].image spec.actions[].command spec.actions[].args
		spec.actions[].env spec.actions[].volumes spec.actions[].namespaces spec.actions[].retries spec.actions[].timeoutSeconds
		spec.actions[].background spec.env spec.references spec.vars spec.volumes`,
	"Policy":                   `spec.workflowAutoCreation spec.referenceAccess`,
	"WorkflowRuleSet":          `spec.rules spec.workflow`,
	"TinkerbellTemplateConfig": `spec.template`,
	"TinkerbellMachineConfig": `spec.hardwareSelector spec.hardwareAffinity.required spec.osFamily spec.osImageURL spec.templateRef.kind
		spec.templateRef.name spec.users[].name spec.users[].sshAuthorizedKeys spec.hostOSConfiguration`,
}

// saysNothing are keys without which a sample means the same, and that are not worth a line: what
// only says which kind a reference has, a value that is the default, and the name of a template in
// EKS Anywhere, where the document has it.
var saysNothing = regexp.MustCompile(strings.Join([]string{
	`^Hardware spec\.bmcRef\.(apiGroup|kind)$`, `^TinkerbellMachineConfig spec\.templateRef\.kind$`,
	`^Hardware spec\.interfaces\[\]\.disableDhcp$`, `^ network\.interfaces\[\]\.dhcp\.(uefi|hostname)$`,
	`^Machine spec\.connection\.(insecureTLS|authSecretRef\.namespace)$`, `^Job spec\.machineRef\.namespace$`,
	`^Job spec\.tasks\[\]\.bootDevice\.efiBoot$`, `^Hardware spec\.metadata\.instance\.hostname$`,
	`^Machine spec\.connection\.providerOptions\.intelAMT\.hostScheme$`, `^Workflow spec\.hardwareMap\.device_[0-9]$`,
}, "|"))

// unused are keys of the samples that say nothing only there: defaults, what another key says as
// well, and what follows a task without a counterpart.
var unused = map[string]bool{
	"Machine node-2-bmc spec.connection.providerOptions.intelAMT.port": true,
	"Hardware node-2.example.com spec.disks":                           true,
	"Hardware node-5 spec.interfaces[0].dhcp.lease_time":               true,
	"Workflow install-node-1 spec.hardwareRef":                         true,
	"Job iso spec.tasks[1]":                                            true,
}

// unmatched are documents without anything to take over, which the import says.
var unmatched = regexp.MustCompile(`^(TinkerbellMachineConfig mgmt-(md|etcd)|Cluster .*|TinkerbellDatacenterConfig .*|Task .*|` +
	`WorkflowRuleSet .*|Policy .*|Namespace .*)$`)

// TestNothingIsDropped: without any one key, a sample becomes something else: the key is imported,
// or it is in the list of what is ignored.
func TestNothingIsDropped(t *testing.T) {
	for name, files := range samples {
		t.Run(name, func(t *testing.T) {
			read := readSamples(t, files)
			before, err := Read(read)
			require.NoError(t, err)
			want := withoutPlaces(t, before)

			for n, f := range read {
				if isCSV(f.Content) {
					continue
				}
				docs := nodes(t, f.Content)
				for _, k := range keysOf(docs) {
					if slices.ContainsFunc(before.Ignored, func(x Ignored) bool { return k.below(f.Name, x) }) ||
						unmatched.MatchString(k.object) || unused[k.object+" "+k.path] ||
						saysNothing.MatchString(k.kind+" "+index.ReplaceAllString(k.path, "[]")) || ofKubernetesOnly(k.path) {
						continue
					}
					put := k.remove()
					changed := append([]File(nil), read...)
					changed[n].Content = encode(t, docs)
					put()

					got, err := Read(changed)
					if err == nil && withoutPlaces(t, got) == want {
						t.Errorf("%s: %s %s is dropped", f.Name, k.object, k.path)
					}
				}
			}
		})
	}
}

// TestSamplesHaveAllKeys: the samples have every key of the other formats.
func TestSamplesHaveAllKeys(t *testing.T) {
	found := map[string]bool{}
	for _, files := range samples {
		for _, f := range readSamples(t, files) {
			if isCSV(f.Content) {
				continue
			}
			for _, k := range keysOf(nodes(t, f.Content)) {
				found[k.kind+" "+macKey.ReplaceAllString(index.ReplaceAllString(k.path, "[]"), "[]")] = true
			}
		}
	}
	for kind, keys := range foreignKeys {
		for _, key := range strings.Fields(keys) {
			require.True(t, found[kind+" "+key], "no sample has %s %s", kind, key)
		}
	}
}

// TestIgnoredKeysExist: each row of a table of ignored keys names a key of the format.
func TestIgnoredKeysExist(t *testing.T) {
	for _, x := range []struct {
		kind  string
		table map[string]string
	}{
		{"Hardware", ignoredHardware},
		{"Hardware", ignoredLaterHardware},
		{"Machine", ignoredController},
		{"Secret", ignoredSecret},
		{"Workflow", ignoredWorkflow},
		{"TinkerbellMachineConfig", ignoredMachineConfig},
	} {
		for key, why := range x.table {
			require.NotEmpty(t, why, key)
			if strings.HasPrefix(key, "metadata.") {
				continue // of every Kubernetes document
			}
			if x.kind == "Hardware" && (key == "spec.metadata.instance.operating_system_version" || key == "spec.metadata.instance.ip_addresses") {
				continue // of older releases, which no sample shows
			}
			require.True(t, slices.ContainsFunc(strings.Fields(foreignKeys[x.kind]), func(known string) bool {
				rest, ok := strings.CutPrefix(known, key)
				return ok && (rest == "" || strings.ContainsRune(".[", rune(rest[0])))
			}), "%s has no key %s", x.kind, key)
		}
	}
}

func ofKubernetesOnly(path string) bool {
	why, ok := ofKubernetes[strings.SplitN(path, "[", 2)[0]]
	return ok && why == ""
}

// A key is an entry of a mapping, or an element of a list, in a document of a sample.
type key struct {
	kind, path, object string
	parent             *yaml.Node
	at, count          int // in parent.Content
}

// remove removes the key, and returns what puts it back.
func (k key) remove() (put func()) {
	old := k.parent.Content
	k.parent.Content = slices.Delete(slices.Clone(old), k.at, k.at+k.count)
	return func() { k.parent.Content = old }
}

// below reports whether x says that the key, or what it is in, is ignored.
func (k key) below(file string, x Ignored) bool {
	rest, ok := strings.CutPrefix(k.path, x.Key)
	return ok && x.File == file && x.Object == k.object && (rest == "" || strings.ContainsRune(".[", rune(rest[0])))
}

func nodes(t testing.TB, b []byte) (out []*yaml.Node) {
	t.Helper()
	dec := yaml.NewDecoder(bytes.NewReader(b))
	for {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		out = append(out, &n)
	}
}

func encode(t testing.TB, docs []*yaml.Node) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	for _, d := range docs {
		require.NoError(t, enc.Encode(d))
	}
	require.NoError(t, enc.Close())
	return b.Bytes()
}

// keysOf returns the keys of documents, and of those in a List.
func keysOf(docs []*yaml.Node) (out []key) {
	var add func(d *yaml.Node)
	add = func(d *yaml.Node) {
		text := func(path string) string {
			b, _ := yaml.Marshal(d)
			docs, _ := strictyaml.Documents("", b)
			if len(docs) == 0 {
				return ""
			}
			return docs[0].Text(path)
		}
		kind, object := text("kind"), text("kind")+" "+text("metadata.name")
		if kind == "List" {
			for i := 0; i+1 < len(d.Content); i += 2 {
				if d.Content[i].Value == "items" {
					for _, item := range d.Content[i+1].Content {
						add(item)
					}
				}
			}
			return
		}
		out = appendKeys(out, d, key{kind: kind, object: object})
	}
	for _, d := range docs {
		if len(d.Content) == 1 {
			add(d.Content[0])
		}
	}
	return out
}

func appendKeys(out []key, n *yaml.Node, above key) []key {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := key{above.kind, strings.TrimPrefix(above.path+"."+n.Content[i].Value, "."), above.object, n, i, 2}
			if n.Content[i].Value != "<<" && n.Content[i+1].ShortTag() != "!!null" {
				out = appendKeys(append(out, k), n.Content[i+1], k)
			}
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			k := key{above.kind, above.path + "[" + string(rune('0'+i)) + "]", above.object, n, i, 1}
			out = appendKeys(append(out, k), c, k)
		}
	}
	return out
}
