package genesis

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// documents checks the configuration documents of the machines, each on its own and against the lab file, and collects
// the problems.
type documents struct {
	lab      *Lab
	owns     machinefile.Claims
	problems inventory.Problems

	token, tokenFile string // token of the first Harvester node, and the name of the document that holds it
}

// check checks the document of machine m with role r.
func (d *documents) check(r role, m Machine) {
	if d.lab.systems == nil {
		return
	}
	contents := []byte(m.UserData.Reveal())
	ps, warnings := d.lab.systems.Review(r.kind, m.Config, contents)
	if len(ps) == 0 {
		d.lab.warnings = append(d.lab.warnings, warnings...)
	}

	more := d.lab.systems.CheckRelay(r.kind, contents, d.lab.Seed.Address)
	if r.mode != "" {
		more = append(more, d.checkNode(r, m)...)
	}
	for _, p := range more {
		// Report each field only once: skip it if a problem with this field or with the whole document is known
		// already.
		if !slices.ContainsFunc(ps, func(q inventory.Problem) bool { return q.Field == p.Field || q.Field == "" }) {
			p.File = m.Config
			ps = append(ps, p)
		}
	}
	for _, p := range ps {
		if !slices.Contains(d.problems, p) { // several machines may have the same document
			d.problems = append(d.problems, p)
		}
	}
}

// checkNode compares the configuration of a Harvester node with the lab file.
func (d *documents) checkNode(r role, m Machine) (ps inventory.Problems) {
	docs, err := strictyaml.Documents(m.Config, []byte(m.UserData.Reveal()))
	if err != nil || len(docs) != 1 {
		return nil // Review has reported this problem
	}
	doc := docs[0]
	if mode := doc.Text("install.mode"); mode != r.mode {
		ps.Add("install.mode", "write "+r.mode+", or change "+r.field+" of the lab file",
			"is %q, but machine %q is named in %s", mode, m.Name, r.field)
	}
	if r.mode == "join" {
		ps = append(ps, d.checkJoin(doc, m)...)
	} else {
		ps = append(ps, d.checkCreate(doc, m)...)
	}
	ps = append(ps, d.checkNodeNetwork(doc, m)...)
	ps = append(ps, d.checkISO(doc.Text("install.iso_url"))...)

	switch token := doc.Text("token"); {
	case token == "":
		ps.Add("token", "give all nodes the same token", "is missing")
	case d.tokenFile == "":
		d.token, d.tokenFile = token, m.Config
	case token != d.token:
		ps.Add("token", "give all nodes the same token", "differs from the token in %s", d.tokenFile)
	}
	return doc.Locate(ps)
}

// checkJoin checks that a node with the mode join joins the cluster of the lab file.
func (d *documents) checkJoin(doc strictyaml.Document, m Machine) (ps inventory.Problems) {
	vip := "VIP"
	if v := d.lab.Cluster.VIP; v.IsValid() {
		vip = v.String()
	}
	server := doc.Text("server_url")
	u, err := url.Parse(server)
	switch {
	case server == "":
		ps.Add("server_url", "write server_url: https://"+vip+":443", "is missing, but machine %q joins the cluster", m.Name)
	case vip != "VIP" && (err != nil || u.Hostname() != vip):
		ps.Add("server_url", "write https://"+vip+":443", "%q does not lead to the cluster's VIP %s", server, vip)
	}
	return ps
}

// checkCreate checks that a node with the mode create creates the cluster of the lab file.
func (d *documents) checkCreate(doc strictyaml.Document, m Machine) (ps inventory.Problems) {
	vip := d.lab.Cluster.VIP
	if v := doc.Text("install.vip"); vip.IsValid() && v != vip.String() {
		ps.Add("install.vip", "write "+vip.String()+", or change cluster.vip", "is %q, but the cluster's VIP is %s", v, vip)
	}
	if doc.Text("server_url") != "" {
		ps.Add("server_url", "leave it out: machine "+m.Name+" creates the cluster", "is only for nodes that join the cluster")
	}
	return ps
}

// checkNodeNetwork checks the interfaces and the static address of a node.
func (d *documents) checkNodeNetwork(doc strictyaml.Document, m Machine) (ps inventory.Problems) {
	const section = "install.management_interface"
	a, err := netip.ParseAddr(doc.Text(section + ".ip"))
	if err == nil && doc.Text(section+".method") == "static" && !hasAddress(m, a) {
		at := fmt.Sprintf("%s:%d", m.Config, doc.LineOf(section+".ip"))
		d.owns.Add(&ps, section+".ip", "address", a.String(), at)
	}
	for n := 0; ; n++ {
		field := fmt.Sprintf("%s.interfaces[%d].hwAddr", section, n)
		hw := doc.Text(field)
		if hw == "" {
			return ps
		}
		mac, err := inventory.ParseMAC(hw)
		if _, ok := m.InterfaceByMAC(mac); err == nil && !ok {
			ps.Add(field, "correct the MAC address, or add the interface to machine "+m.Name,
				"%s is not an interface of machine %q", hw, m.Name)
		}
	}
}

// checkISO checks the URL of an installer image. If it is a URL of this server, the lab file must list the image. If
// the lab file has a migration, the URL must be at the new server, because the new server then serves the images.
func (d *documents) checkISO(iso string) (ps inventory.Problems) {
	l := d.lab
	u, err := url.Parse(iso)
	if err != nil || iso == "" {
		return nil
	}
	name, isImage := strings.CutPrefix(u.Path, "/images/")
	host, err := netip.ParseAddr(u.Hostname())
	if err != nil || !isImage || host != l.Seed.Address && (l.Migrate == nil || host != l.Migrate.Address) {
		return nil // a URL of another server
	}

	if l.Migrate != nil && l.Migrate.Address.IsValid() && host != l.Migrate.Address {
		u.Host = strings.Replace(u.Host, host.String(), l.Migrate.Address.String(), 1)
		ps.Add("install.iso_url", "write "+u.String(),
			"the server will move from %s to %s before the cluster is installed", host, l.Migrate.Address)
	}
	if !d.lab.hasImage(name) {
		ps.Add("install.iso_url", "add it to images of the lab file, or correct the name", "unknown image %q", name)
	}
	return ps
}

// checkTalosconfig checks that the client certificate in the talosconfig and the machine's configuration have the same
// certificate authority. Otherwise Talos would refuse the client.
func (d *documents) checkTalosconfig(p *Platform, m Machine) {
	if p.Talosconfig.IsZero() {
		return
	}
	docs, err := strictyaml.Documents(p.TalosconfigFile, []byte(p.Talosconfig.Reveal()))
	if err != nil || len(docs) != 1 || docs[0].Text("context") == "" {
		d.problems = append(d.problems, inventory.Problem{
			File: p.TalosconfigFile, Field: "context", What: "is missing: the file has no current context, or is not a talosconfig",
			Remedy: "create the file with: talosctl gen config",
		})
		return
	}
	field := "contexts." + docs[0].Text("context") + ".ca"
	authority, line := docs[0].Text(field), docs[0].LineOf(field)

	docs, err = strictyaml.Documents(m.Config, []byte(m.UserData.Reveal()))
	if err != nil || authority == "" {
		return
	}
	for _, doc := range docs {
		if own := doc.Text("machine.ca.crt"); own != "" && own != authority {
			d.problems = append(d.problems, inventory.Problem{
				File: p.TalosconfigFile, Line: line, Field: "ca",
				What:   "the certificate authority differs from the one in " + m.Config,
				Remedy: "take both files from one run of: talosctl gen config",
			})
		}
	}
}
