package genesis

import (
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// A role is what a machine of the lab becomes: the router, the platform or a node of the cluster.
type role struct {
	field    string // field of the lab file that assigns the role
	machine  string
	template string // default template
	kind     string // kind of the machine's document
	mode     string // create or join for a Harvester node, otherwise ""
}

// roles returns the roles in the order in which the machines are installed.
func (l Lab) roles() (roles []role) {
	if r := l.Router; r != nil {
		roles = append(roles, role{
			field: "router.machine", machine: r.Machine, template: "vyos", kind: inventory.DocumentVyOS,
		})
	}
	if p := l.Platform; p != nil {
		roles = append(roles, role{
			field: "platform.machine", machine: p.Machine, template: "talos", kind: inventory.DocumentTalos,
		})
	}
	c := l.Cluster
	if c == nil {
		return roles
	}
	roles = append(roles, role{
		field: "cluster.create", machine: c.Create, template: "harvester-create",
		kind: inventory.DocumentHarvester, mode: "create",
	})
	for n, name := range c.Join {
		roles = append(roles, role{
			field: fmt.Sprintf("cluster.join[%d]", n), machine: name, template: "harvester-join",
			kind: inventory.DocumentHarvester, mode: "join",
		})
	}
	return roles
}

// kindOf returns the kind of the document of m, or "" if m has no role.
func (l Lab) kindOf(m Machine) string {
	for _, r := range l.roles() {
		if r.machine == m.Name {
			return r.kind
		}
	}
	return ""
}

// templateLabels holds, by built-in template, the labels or hardwareMap entries that the template needs. The value
// true means that the label's value must be the name of an image.
var templateLabels = map[string]map[string]bool{
	"vyos":             {"version": false},
	"talos":            {"kernel": true, "initramfs": true},
	"harvester-create": {"kernel": true, "initrd": true, "rootfs": true},
	"harvester-join":   {"kernel": true, "initrd": true, "rootfs": true},
}
