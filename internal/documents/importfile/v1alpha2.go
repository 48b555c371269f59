package importfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// laterHardware is a Hardware of tinkerbell.org/v1alpha2. Fields that are not imported have the type any; see
// ignoredLaterHardware.
type laterHardware struct {
	typeMeta
	Spec struct {
		Arch string `json:"arch"`
		BMC  *struct {
			BootMode   string           `json:"bootMode"`
			Connection *laterConnection `json:"connection"`
		} `json:"bmc"`
		Instance          laterInstance             `json:"instance"`
		NetworkInterfaces map[string]laterInterface `json:"networkInterfaces"` // by MAC address
		StorageDevices    []struct {
			Name string `json:"name"`
		} `json:"storageDevices"`
	} `json:"spec"`
}

type laterConnection struct {
	CredentialsRef  *reference       `json:"credentialsRef"`
	Host            string           `json:"host"`
	InsecureTLS     bool             `json:"insecureTLS"`
	ProviderOptions *providerOptions `json:"providerOptions"`
}

type laterInstance struct {
	Userdata   inventory.Secret `json:"userdata"`
	Vendordata inventory.Secret `json:"vendordata"`
	OSIE       struct {
		KernelParams []string `json:"kernelParams"`
	} `json:"osie"`
	SSHKeys []string `json:"sshKeys"`
}

type laterInterface struct {
	DHCP struct {
		IPv4 struct {
			Disabled         bool         `json:"disabled"`
			DomainName       string       `json:"domainName"`
			Hostname         string       `json:"hostname"`
			LeaseTimeSeconds *int64       `json:"leaseTimeSeconds"`
			Nameservers      []netip.Addr `json:"nameservers"`
			NTPServers       []string     `json:"ntpServers"`
			VLANID           vlanText     `json:"vlanID"`
		} `json:"ipv4"`
	} `json:"dhcp"`
	IPAM struct {
		IPv4 struct {
			Address netip.Addr `json:"address"`
			Gateway netip.Addr `json:"gateway"`
			Prefix  any        `json:"prefix"` // 24, or "24"
		} `json:"ipv4"`
	} `json:"ipam"`
	Netboot struct {
		Disabled bool `json:"disabled"`
	} `json:"netboot"`
}

const onlyIPv4 = "DHCP gives only IPv4 addresses"

// ignoredLaterHardware maps each ignored key of a v1alpha2 Hardware to the reason why it is not imported. [] matches a
// MAC address that is a key of networkInterfaces.
var ignoredLaterHardware = map[string]string{
	"metadata.namespace":                        "an inventory has no namespaces",
	"spec.agentID":                              ignoredHardware["spec.agentID"],
	"spec.auto":                                 ignoredHardware["spec.auto"],
	"spec.references":                           ignoredHardware["spec.references"],
	"spec.instance.lookupID":                    ownMetadata,
	"spec.instance.metadata":                    ownMetadata,
	"spec.instance.networkConfig":               "Ingot derives it from the machine's interfaces",
	"spec.instance.vars":                        "a template gets such values from the hardware map of its run",
	"spec.instance.osie.initrdURL":              ownLoader,
	"spec.instance.osie.isoURL":                 ownLoader,
	"spec.instance.osie.kernelURL":              ownLoader,
	"spec.networkInterfaces[].dhcp.ipv6":        onlyIPv4,
	"spec.networkInterfaces[].ipam.ipv6":        onlyIPv4,
	"spec.networkInterfaces[].netboot.ipxe":     ownLoader,
	"spec.networkInterfaces[].netboot.rpi":      ownLoader,
	laterDHCP("bootFileName"):                   ownLoader,
	laterDHCP("tftpServerName"):                 ownLoader,
	laterDHCP("classlessStaticRoutes"):          ignoredHardware["spec.interfaces[].dhcp.classless_static_routes"],
	laterDHCP("domainSearchList"):               "DHCP sends only the domain in domainName",
	"spec.networkInterfaces[].netboot.pxelinux": ownLoader,
}

func laterDHCP(key string) string { return "spec.networkInterfaces[].dhcp.ipv4." + key }

// readLaterHardware reads a Hardware of v1alpha2. The interfaces of the machine keep the order that they have in the document.
func (r *machines) readLaterHardware(o object) {
	var d laterHardware
	if !r.found.decode(o, &d, ignoredLaterHardware) {
		return
	}

	x := d.Spec
	m := r.newMachine(o, d.Metadata.Labels)
	m.SSHKeys, m.KernelArgs = x.Instance.SSHKeys, x.Instance.OSIE.KernelParams
	for _, s := range x.StorageDevices {
		addDisk(&m, s.Name)
	}
	m.UserData, m.VendorData = x.Instance.Userdata, x.Instance.Vendordata

	h := hardware{object: o}
	uefi := false
	if x.BMC != nil {
		if uefi = x.BMC.BootMode == "UEFI"; !uefi && x.BMC.BootMode != "BIOS" && x.BMC.BootMode != "" {
			r.found.add(o.doc, "spec.bmc.bootMode", "write UEFI or BIOS", "unknown boot mode %q", clip(x.BMC.BootMode))
		}
		if c := x.BMC.Connection; c != nil {
			h.controller = "Hardware " + o.key()
			r.bmcs.addController(controller{object: o, key: h.controller, at: "spec.bmc.connection", secret: "credentialsRef"},
				connection{Host: c.Host, AuthSecretRef: c.CredentialsRef, InsecureTLS: c.InsecureTLS, ProviderOptions: c.ProviderOptions})
		}
	}

	order := keysBelow(o, "spec.networkInterfaces")
	for _, mac := range order {
		i := r.laterInterface(o, "spec.networkInterfaces."+mac, x.NetworkInterfaces[mac])
		i.MAC, i.Arch, i.UEFI = mac, x.Arch, uefi
		if boots := func(i inventory.Interface) bool { return !i.DisableNetboot }; boots(i) && slices.ContainsFunc(m.Interfaces, boots) {
			r.found.ignore(o, "spec.networkInterfaces."+mac+".netboot", "a machine boots from only one interface, here the first")
			i.DisableNetboot = true
		}
		m.Interfaces = append(m.Interfaces, i)
	}
	h.machine, h.fieldOf = m, laterField(order)
	r.hardware = append(r.hardware, h)
}

// keysBelow returns the keys of the object at path, in the order of the document.
func keysBelow(o object, path string) []string {
	var keys []string
	o.doc.Each(func(p string, _ int) {
		rest, below := strings.CutPrefix(p, path+".")
		if key, _, deeper := strings.Cut(rest, "."); below && !deeper && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	})
	return keys
}

func (r *machines) laterInterface(o object, path string, x laterInterface) inventory.Interface {
	dhcp, ip := x.DHCP.IPv4, x.IPAM.IPv4
	i := inventory.Interface{
		Hostname: dhcp.Hostname, Domain: dhcp.DomainName, Nameservers: dhcp.Nameservers, VLAN: int(dhcp.VLANID),
		DisableDHCP: dhcp.Disabled, DisableNetboot: x.Netboot.Disabled, Address: ip.Address, Gateway: ip.Gateway,
		LeaseTime:   r.lease(o, path+".dhcp.ipv4.leaseTimeSeconds", dhcp.LeaseTimeSeconds),
		TimeServers: r.timeServers(o, path+".dhcp.ipv4.ntpServers", dhcp.NTPServers),
	}
	if ip.Prefix != nil {
		bits, err := strconv.Atoi(strings.TrimPrefix(fmt.Sprint(ip.Prefix), "/"))
		if err != nil || bits < 1 || bits > 32 {
			r.found.add(o.doc, path+".ipam.ipv4.prefix", "write a number from 1 to 32", "invalid prefix")
		} else {
			i.Netmask = net.IP(net.CIDRMask(bits, 32)).String()
		}
	}
	return i
}

// laterField returns a function that translates a field of inventory.Machine to its path in a v1alpha2 Hardware. macs
// are the keys of networkInterfaces, in the order of the machine's interfaces.
func laterField(macs []string) func(field string) string {
	names := strings.NewReplacer(
		".address", ".ipam.ipv4.address", ".netmask", ".ipam.ipv4.prefix", ".gateway", ".ipam.ipv4.gateway",
		".hostname", ".dhcp.ipv4.hostname", ".domain", ".dhcp.ipv4.domainName", ".nameservers", ".dhcp.ipv4.nameservers",
		".timeServers", ".dhcp.ipv4.ntpServers", ".leaseTime", ".dhcp.ipv4.leaseTimeSeconds", ".vlan", ".dhcp.ipv4.vlanID",
		".disableDHCP", ".dhcp.ipv4.disabled", ".disableNetboot", ".netboot.disabled", ".mac", "",
	)
	return func(field string) string {
		first, _, _ := strings.Cut(field, ".")
		first, number, _ := strings.Cut(first, "[")
		switch first {
		case "name":
			return "metadata.name"
		case "labels":
			return "metadata." + field
		case "interfaces":
			n, err := strconv.Atoi(strings.TrimSuffix(number, "]"))
			if err != nil || n >= len(macs) {
				return "spec.networkInterfaces"
			}
			_, rest, deeper := strings.Cut(field, ".")
			switch {
			case !deeper:
				return "spec.networkInterfaces." + macs[n]
			case rest == "arch":
				return "spec.arch"
			case rest == "uefi":
				return "spec.bmc.bootMode"
			}
			return "spec.networkInterfaces." + macs[n] + names.Replace("."+rest)
		case "disks", "diskSelector":
			return "spec.storageDevices"
		case "kernelArgs":
			return "spec.instance.osie.kernelParams"
		case "sshKeys":
			return "spec.instance." + field
		case "userData":
			return "spec.instance.userdata"
		case "vendorData":
			return "spec.instance.vendordata"
		}
		return "spec." + field
	}
}

// laterTask is a Task of tinkerbell.org/v1alpha2: a template with one task.
type laterTask struct {
	typeMeta
	Spec struct {
		Actions []struct {
			Name           string            `json:"name"`
			If             string            `json:"if"`
			Image          string            `json:"image"`
			Command        any               `json:"command"` // text or a list
			Args           []string          `json:"args"`
			Env            map[string]string `json:"env"`
			Volumes        []string          `json:"volumes"`
			Namespaces     map[string]string `json:"namespaces"`
			TimeoutSeconds int64             `json:"timeoutSeconds"`
			Background     bool              `json:"background"`
		} `json:"actions"`
		Env     map[string]string `json:"env"`
		Volumes []string          `json:"volumes"`
	} `json:"spec"`
}

// laterCommand returns command, a string or a list, followed by args.
func laterCommand(command any, args []string) (words []string) {
	switch c := command.(type) {
	case string:
		words = append(words, c)
	case []any:
		for _, word := range c {
			words = append(words, fmt.Sprint(word))
		}
	}
	return append(words, args...)
}

// readLaterTask reads a Task. It adds a problem for each key that changes what an action does and that Ingot does not support.
func (r *templates) readLaterTask(o object) {
	var d laterTask
	if !r.found.decode(o, &d, map[string]string{
		"metadata.namespace":     ignoredWorkflow["metadata.namespace"],
		"metadata.labels":        "a template has no labels",
		"spec.references":        ignoredHardware["spec.references"],
		"spec.vars":              ignoredLaterHardware["spec.instance.vars"],
		"spec.actions[].retries": "a failed action ends the run; ingot workflow retry continues at that action",
	}) {
		return
	}

	actions := []map[string]any{}
	for n, x := range d.Spec.Actions {
		at := fmt.Sprintf("spec.actions[%d].", n)
		if x.If != "" {
			r.found.add(o.doc, at+"if", "write a template for each case", "conditions are not supported: every action is carried out")
		}
		if x.Background {
			r.found.add(
				o.doc,
				at+"background",
				"leave background out, or let the installed system do the work",
				"actions are carried out one after another",
			)
		}
		a := map[string]any{"name": x.Name, "image": x.Image, "environment": x.Env, "volumes": x.Volumes, "namespaces": x.Namespaces}
		if x.TimeoutSeconds != 0 {
			a["timeout"] = x.TimeoutSeconds
		}
		command := laterCommand(x.Command, x.Args)
		if len(command) > 0 {
			a["command"] = command
		}
		maps.DeleteFunc(a, func(_ string, v any) bool {
			switch v := v.(type) {
			case map[string]string:
				return len(v) == 0
			case []string:
				return len(v) == 0
			}
			return false
		})
		actions = append(actions, a)
	}
	task := map[string]any{"name": o.name, "worker": "{{.device_1}}", "actions": actions}
	if len(d.Spec.Env) > 0 {
		task["environment"] = d.Spec.Env
	}
	if len(d.Spec.Volumes) > 0 {
		task["volumes"] = d.Spec.Volumes
	}
	raw, err := json.Marshal(struct {
		Version string `json:"version"`
		Name    string `json:"name"`
		Tasks   []any  `json:"tasks"`
	}{"0.1", o.name, []any{task}})
	if err != nil {
		r.found.report(err)
		return
	}
	source, err := strictyaml.FromJSON(raw)
	if err != nil {
		r.found.report(err)
		return
	}
	t, err := template.Parse(o.doc.File, source)
	r.addTemplate(o, t, err, func(p inventory.Problem) inventory.Problem {
		p.Field = strings.Replace(strings.TrimPrefix(p.Field, "tasks[0]."), "timeout", "timeoutSeconds", 1)
		p.Field = "spec." + strings.Replace(p.Field, "environment", "env", 1)
		p.Line = o.doc.LineOf(p.Field)
		return p
	})
}

// laterWorkflow is a Workflow of tinkerbell.org/v1alpha2.
type laterWorkflow struct {
	typeMeta
	Spec struct {
		Tasks []struct {
			Hardware struct {
				HardwareRef reference `json:"hardwareRef"`
			} `json:"hardware"`
			TaskRef reference `json:"taskRef"`
		} `json:"tasks"`
	} `json:"spec"`
}

// readLaterWorkflow reads a Workflow of v1alpha2. Each of its tasks becomes one run.
func (r *starts) readLaterWorkflow(o object) {
	const times = "set the timeouts of the actions, or the template's global_timeout"
	var d laterWorkflow
	if !r.found.decode(o, &d, map[string]string{
		"metadata.namespace":                ignoredWorkflow["metadata.namespace"],
		"metadata.labels":                   ignoredWorkflow["metadata.labels"],
		"spec.disabled":                     ignoredWorkflow["spec.disabled"],
		"spec.globals":                      "write the values into the Task",
		"spec.references":                   ignoredHardware["spec.references"],
		"spec.vars":                         ignoredLaterHardware["spec.instance.vars"],
		"spec.timeoutSeconds":               times,
		"spec.tasks[].timeoutSeconds":       times,
		"spec.tasks[].agentID":              ignoredHardware["spec.agentID"],
		"spec.tasks[].extra":                "a run has no extra data; give the values in the hardware map",
		"spec.tasks[].hardware.bootOptions": ignoredWorkflow["spec.bootOptions"],
	}) {
		return
	}
	if len(d.Spec.Tasks) == 0 {
		r.found.add(o.doc, "spec.tasks", "give at least one task", "there is no task")
	}
	for n, x := range d.Spec.Tasks {
		at := fmt.Sprintf("spec.tasks[%d].", n)
		if x.TaskRef.Name == "" {
			r.found.add(o.doc, at+"taskRef", "name a Task", "there is no task")
		}
		if x.Hardware.HardwareRef.Name == "" {
			r.found.add(o.doc, at+"hardware.hardwareRef", "name a Hardware", "there is no machine")
			continue
		}
		if n > 0 {
			r.found.ignore(o, strings.TrimSuffix(at, "."), "each task becomes a separate run: start the runs one after the other")
		}
		r.workflows = append(r.workflows, workflow{o, x.TaskRef.Name, x.Hardware.HardwareRef.Name, nil})
	}
}

// laterJob is a Job of bmc.tinkerbell.org/v1alpha2.
type laterJob struct {
	typeMeta
	Spec struct {
		HardwareRef reference `json:"hardwareRef"`
		Operations  []struct {
			PowerAction string `json:"powerAction"`
			BootDevice  *struct {
				Name       string `json:"name"`
				Persistent bool   `json:"persistent"`
				EFIBoot    bool   `json:"efiBoot"`
			} `json:"bootDevice"`
			VirtualMedia *bmcMedia `json:"virtualMediaAction"`
		} `json:"operations"`
	} `json:"spec"`
}

// readLaterJob reads a Job of v1alpha2. Its operations correspond to the tasks of v1alpha1.
func (r *starts) readLaterJob(o object) {
	var d laterJob
	if !r.found.decode(o, &d, map[string]string{
		"metadata.namespace":               ignoredWorkflow["metadata.namespace"],
		"metadata.labels":                  ignoredWorkflow["metadata.labels"],
		"spec.connection":                  "a command uses the BMC that is stored with its machine",
		"spec.operations[].timeoutSeconds": "each step has its own fixed timeout",
	}) {
		return
	}

	j := job{object: o, hardware: d.Spec.HardwareRef.Name}
	if j.hardware == "" {
		r.found.add(o.doc, "spec.hardwareRef", "name a Hardware", "there is no machine")
	}
	var actions []bmcAction
	for _, x := range d.Spec.Operations {
		a := bmcAction{PowerAction: x.PowerAction, VirtualMedia: x.VirtualMedia}
		if b := x.BootDevice; b != nil {
			a.BootDevice = &bmcBoot{b.Name, b.Persistent, b.EFIBoot}
		}
		actions = append(actions, a)
	}
	r.addJob(j, "operation", actions)
}
