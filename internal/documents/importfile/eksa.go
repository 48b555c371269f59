package importfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// machineConfigDocument is EKS Anywhere's TinkerbellMachineConfig.
type machineConfigDocument struct {
	typeMeta
	Spec struct {
		HardwareSelector map[string]string `json:"hardwareSelector"`
		OSImageURL       string            `json:"osImageURL"`
		TemplateRef      *reference        `json:"templateRef"`
		Users            []configUser      `json:"users"`
	} `json:"spec"`
}

type configUser struct {
	Name string   `json:"name"`
	Keys []string `json:"sshAuthorizedKeys"`
}

var ignoredMachineConfig = map[string]string{
	"metadata.namespace":       ignoredWorkflow["metadata.namespace"],
	"spec.hardwareAffinity":    "machines are chosen by hardwareSelector only",
	"spec.osFamily":            "the image determines the operating system",
	"spec.hostOSConfiguration": "put the configuration into user data",
}

// A machineConfig is a TinkerbellMachineConfig. It sets users, SSH keys and the template of the machines that its
// selector matches.
type machineConfig struct {
	object
	selector map[string]string
	template string
	users    []configUser
}

func (r *machines) readMachineConfig(o object) {
	var d machineConfigDocument
	if !r.found.decode(o, &d, ignoredMachineConfig) {
		return
	}
	c := machineConfig{object: o, selector: d.Spec.HardwareSelector, users: d.Spec.Users}
	if ref := d.Spec.TemplateRef; ref != nil {
		c.template = ref.Name
	}
	if url := d.Spec.OSImageURL; url != "" {
		r.found.ignore(o, "spec.osImageURL", "add the image: "+command("ingot", "image", "add", "NAME", url))
	}
	for n, u := range c.users {
		if u.Name == "" {
			r.found.add(o.doc, fmt.Sprintf("spec.users[%d].name", n), "name the user", "there is no name")
		}
	}
	if len(c.selector) == 0 {
		r.found.ignore(o, "spec.hardwareSelector", "an empty selector matches no machine, so the users and the template are not used")
		return
	}
	r.configs = append(r.configs, c)
}

// applyConfig applies c to the machines of the files that the selector of c matches.
func (r *machines) applyConfig(c machineConfig) {
	matched := false
	for i := range r.all {
		m := &r.all[i]
		if m.Own || !matches(m.Labels, c.selector) {
			continue
		}
		matched = true

		if other := r.configured[m.Name]; other != "" {
			r.found.add(c.doc, "spec.hardwareSelector", "let only one selector match each machine",
				"machine %s is also matched by %s", m.Name, other)
			continue
		}
		r.configured[m.Name] = c.String()
		if c.template != "" {
			m.Template = c.template
		}
		r.giveUsers(c, &m.Machine)
		for _, p := range inventory.Validate(m.Machine) {
			if strings.HasPrefix(p.Field, "sshKeys") || p.Field == "template" || p.Field == "userData" {
				r.found.add(c.doc, "spec", p.Remedy, "for machine %s, %s: %s", m.Name, p.Field, p.What)
			}
		}
	}
	if !matched {
		r.found.ignore(c.object, "spec.hardwareSelector", "no machine in the files has these labels")
	}
}

func matches(labels, selector map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// giveUsers adds the SSH keys of all users to m. It also gives m user data that creates the users. If m has user data
// already, giveUsers records the users as ignored instead.
func (r *machines) giveUsers(c machineConfig, m *inventory.Machine) {
	for _, u := range c.users {
		for _, k := range u.Keys {
			if k = strings.TrimSpace(k); k != "" && !slices.Contains(m.SSHKeys, k) {
				m.SSHKeys = append(m.SSHKeys, k)
			}
		}
	}

	switch {
	case len(c.users) == 0:
	case !m.UserData.IsZero():
		r.found.ignore(c.object, "spec.users", fmt.Sprintf("machine %s has its own user data; the users' keys become metadata", m.Name))
	default:
		m.UserData = inventory.NewSecret(cloudConfig(c.users))
	}
}

// cloudConfig returns a cloud-config that creates users (cloud-init's module "Users and Groups"). They may
// use sudo without a password, as in EKS Anywhere.
func cloudConfig(users []configUser) string {
	var b strings.Builder
	b.WriteString("#cloud-config\nusers:\n")
	for _, u := range users {
		fmt.Fprintf(&b, "  - name: %q\n    sudo: ALL=(ALL) NOPASSWD:ALL\n    shell: /bin/bash\n    lock_passwd: true\n", u.Name)
		if len(u.Keys) > 0 {
			b.WriteString("    ssh_authorized_keys:\n")
		}
		for _, k := range u.Keys {
			fmt.Fprintf(&b, "      - %q\n", strings.TrimSpace(k))
		}
	}
	return b.String()
}
