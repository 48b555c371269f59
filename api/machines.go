package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// MachineStore reads and writes the machines of the inventory.
type MachineStore interface {
	Machine(ctx context.Context, name string) (inventory.Machine, error)
	Machines(ctx context.Context) ([]inventory.Machine, error)
	PutMachines(ctx context.Context, ms []inventory.Machine, replace bool, by string) error
	ChangeMachine(ctx context.Context, m inventory.Machine, by string) error
	DeleteMachine(ctx context.Context, name, by string) error
	Release(ctx context.Context, machine, by string) error
	UserData(ctx context.Context, machine string) (user, vendor inventory.Secret, err error)
}

// AgentStore reads the newest agent of a machine.
type AgentStore interface {
	MachineAgent(ctx context.Context, machine string) (inventory.Agent, error)
}

// DiskStore reads which disks were written. The keys are disks ("serial:…" or "wwn:…"), the values are the runs that
// wrote them.
type DiskStore interface {
	DisksWritten(ctx context.Context, machine string) (map[string]string, error)
}

// SeenStore holds the machines on the network that are not in the inventory.
type SeenStore interface {
	SeenUnknown(ctx context.Context) ([]inventory.Seen, error)
	SeenMAC(ctx context.Context, mac string) (inventory.Seen, error)
}

// BMC holds functions that use BMC drivers. Each function may be nil.
type BMC struct {
	// CheckHost returns an error if the configuration does not allow BMCs at this host. If CheckHost is nil, every host
	// is allowed. A DNS name is checked only when a connection to it is made.
	CheckHost func(host string) error
	// CheckCommand returns an error for a power command that is not in the configuration. If CheckCommand is nil, every
	// command is allowed.
	CheckCommand func(name string) error
	// Check logs in to a machine's BMC and reads its state.
	Check func(ctx context.Context, m inventory.Machine, retry bool) (inventory.BMCReport, error)
	// ForgetKey makes the server forget the certificate key of the BMC at the address.
	ForgetKey func(ctx context.Context, address string) error
}

type machines struct {
	stores  Stores
	views   *views
	events  *events
	netboot Netboot
	bmc     BMC
	now     func() time.Time
	// captures holds one element for each capture that is running. stopping is closed when the server stops.
	captures chan struct{}
	stopping <-chan struct{}
}

// maxPush limits the body of POST /v1/machines, in bytes. One request may contain all machines of a site.
const maxPush = 64 << 20

func (m *machines) routes() []httpapi.Route {
	const one = "/v1/machines/:name"
	push := httpapi.Body{Limit: maxPush}

	return []httpapi.Route{
		{Method: "GET", Path: "/v1/machines", Needs: inventory.RoleRead, Handler: httpapi.Get(m.views.list)},
		{Method: "POST", Path: "/v1/machines", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusCreated, push, m.push)},
		{Method: "GET", Path: one, Needs: inventory.RoleRead, Handler: httpapi.Get(m.get)},
		{Method: "PATCH", Path: one, Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.MergePatch, m.patch)},
		{Method: "DELETE", Path: one, Needs: inventory.RoleOperate, Handler: httpapi.Delete(m.delete)},
		{Method: "GET", Path: one + "/disks", Needs: inventory.RoleRead, Handler: httpapi.Get(m.listDisks)},
		{Method: "GET", Path: one + "/events", Needs: inventory.RoleRead, Handler: httpapi.Get(m.listEvents)},
		{Method: "GET", Path: one + "/capture", Needs: inventory.RoleOperate, Handler: m.capture},
		{Method: "GET", Path: one + "/syslog", Needs: inventory.RoleRead, Handler: httpapi.Get(m.listSyslog)},
		{Method: "POST", Path: one + "/release", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.NoBody, m.release)},
		{Method: "GET", Path: one + "/why", Needs: inventory.RoleRead, Handler: httpapi.Get(m.why)},
		{
			Method:  "POST",
			Path:    one + "/netboot",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, m.setNetboot),
		},
		{Method: "GET", Path: "/v1/why/:mac", Needs: inventory.RoleRead, Handler: httpapi.Get(m.whyMAC)},
		{Method: "GET", Path: "/v1/dhcp/leases", Needs: inventory.RoleRead, Handler: httpapi.Get(m.listLeases)},
		{Method: "GET", Path: "/v1/seen", Needs: inventory.RoleRead, Handler: httpapi.Get(m.listSeen)},
		{
			Method:  "POST",
			Path:    "/v1/seen/:mac/accept",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusCreated, httpapi.JSON, m.acceptSeen),
		},
	}
}

func (m *machines) find(ctx context.Context, name string) (inventory.Machine, error) {
	found, err := m.stores.Machines.Machine(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		return found, hint(fmt.Errorf("machine %q: %w", name, inventory.ErrNotFound), "ingot machine list")
	}
	return found, err
}

type pushMachines struct {
	Machines machineList `json:"machines"`
	Replace  bool        `json:"replace"`
}

// A machineList is decoded so that each problem names its field, as for the machines of a file.
type machineList []inventory.Machine

// UnmarshalJSON reads the machines. encoding/json stops at its first error: then strictyaml, which is slower, finds all problems.
func (l *machineList) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	wrong := dec.Decode((*[]inventory.Machine)(l))
	var raw []json.RawMessage
	if wrong == nil || json.Unmarshal(b, &raw) != nil {
		return wrong
	}

	var problems inventory.Problems
	for i := range raw {
		var m inventory.Machine
		var found inventory.Problems
		if err := strictyaml.DecodeJSON(raw[i], &m); err != nil && !errors.As(err, &found) {
			return err
		}
		problems = append(problems, nameMachine(found, len(raw), i, m.Name)...)
	}
	return cmp.Or(problems.Err(), wrong)
}

// nameMachine puts the name of the machine at index i of count machines before the fields of its problems, if there are others.
func nameMachine(found inventory.Problems, count, i int, name string) inventory.Problems {
	for n, p := range found {
		if count > 1 {
			found[n].Field = strings.TrimSuffix(cmp.Or(name, fmt.Sprintf("machines[%d]", i))+": "+p.Field, ": ")
		}
	}
	return found
}

// Validate returns an error if the request contains no machine.
func (q *pushMachines) Validate() error {
	if len(q.Machines) == 0 {
		return inventory.Invalid("machines", "", "no machine was given")
	}
	return nil
}

type pushedMachines struct {
	httpapi.List[apitypes.MachineView]
	Warnings []string `json:"warnings,omitempty"`
}

func (m *machines) push(ctx context.Context, q pushMachines) (pushedMachines, error) {
	stored, warnings, err := m.put(ctx, q.Machines, q.Replace)
	return pushedMachines{httpapi.NewList(stored), warnings}, err
}

// put validates machines and stores all of them or none. It returns the stored machines, and warnings about probable
// mistakes.
func (m *machines) put(ctx context.Context, ms []inventory.Machine, replace bool) ([]apitypes.MachineView, []string, error) {
	before, err := m.stores.Machines.Machines(ctx)
	if err != nil {
		return nil, nil, err
	}
	network := m.netboot.network()
	if err := m.validate(ms, before, network); err != nil {
		return nil, nil, err
	}
	if err := m.stores.Machines.PutMachines(ctx, ms, replace, httpapi.Actor(ctx)); err != nil {
		return nil, nil, err
	}

	after, err := m.stores.Machines.Machines(ctx)
	if err != nil {
		return nil, nil, err
	}
	byName := machinesByName(after)
	var out []inventory.Machine
	for _, x := range ms {
		// A repetition of a keyed request stores nothing, so a machine that was deleted after the first attempt is not
		// found.
		if stored, ok := byName[x.Name]; ok {
			out = append(out, stored)
		}
	}
	views, err := m.views.of(ctx, out)

	return views, m.warnings(ctx, ms, before, after), err
}

// warnings returns one line for each probable mistake in ms, the machines that were stored. before and after are the machines as they
// were stored before and are stored now.
func (m *machines) warnings(ctx context.Context, ms, before, after []inventory.Machine) []string {
	return slices.Concat(m.netboot.network().Warnings(ms), inventory.GatewayWarnings(ms, after), m.phoneHomeWarnings(ctx, ms),
		passwordWarnings(ms, machinesByName(before), machinesByName(after)))
}

// passwordWarnings returns one line for each machine of ms that was to keep its BMC password, and has none now.
func passwordWarnings(ms []inventory.Machine, before, after map[string]inventory.Machine) (out []string) {
	has := func(m inventory.Machine) bool { return m.BMC != nil && m.BMC.HasPassword }
	for _, x := range ms {
		now, found := after[x.Name]
		switch {
		case !found || !has(x) || has(now):
		case has(before[x.Name]):
			out = append(out, x.Name+": the BMC password was deleted, because the settings for reaching the BMC changed: give it again")
		default:
			out = append(out, x.Name+": the text says that a BMC password is stored, but this server has none: give it")
		}
	}
	return out
}

// phoneHomeWarnings returns one line for each machine whose installed system will not phone home. If user data cannot
// be read, this is not an error here, because the plan of a run reads the user data again.
func (m *machines) phoneHomeWarnings(ctx context.Context, ms []inventory.Machine) (out []string) {
	for _, x := range ms {
		if x.UserDataByAddress && x.UserData.IsZero() && x.HasUserData {
			x.UserData, _, _ = m.stores.Machines.UserData(ctx, x.Name)
		}
		if w := cloudinit.PhoneHomeWarning(x); w != "" {
			out = append(out, x.Name+": "+w)
		}
	}
	return out
}

func machinesByName(ms []inventory.Machine) map[string]inventory.Machine {
	out := make(map[string]inventory.Machine, len(ms))
	for _, m := range ms {
		out[m.Name] = m
	}
	return out
}

// validate replaces each element of ms by its canonical form. It returns all problems of all machines as one error.
func (m *machines) validate(ms, stored []inventory.Machine, network inventory.Network) error {
	before := machinesByName(stored)
	var problems inventory.Problems
	for i, x := range ms {
		ms[i] = inventory.Canonical(x)
		found := inventory.Validate(ms[i])
		m.bmc.validate(&found, "", ms[i].BMC)
		checkNetwork(&found, network, ms[i], before[x.Name])
		problems = append(problems, nameMachine(found, len(ms), i, x.Name)...)
	}

	return problems.Err()
}

// checkNetwork adds a problem for each address of m that this server cannot reserve: an address of the server itself
// or, if relays are configured, an address in a subnet without a relay. Addresses that the machine already has in the
// inventory are valid, because the server may have moved since they were stored.
func checkNetwork(problems *inventory.Problems, n inventory.Network, m, before inventory.Machine) {
	for at, i := range m.Interfaces {
		has := slices.ContainsFunc(before.Interfaces, func(x inventory.Interface) bool {
			return x.Address == i.Address && x.Netmask == i.Netmask
		})
		if !i.Address.IsValid() || has {
			continue
		}
		field := fmt.Sprintf("interfaces[%d].address", at)
		if owner := n.Taken(i.Address); owner != "" {
			problems.Add(field, "reserve another address", "%s is %s", i.Address, owner)
		} else if subnet, unserved := n.Unserved(i); unserved && len(n.Relays) > 0 {
			problems.Add(field, "correct the address, or list that subnet's relay under netboot.relays in the configuration",
				"%s", n.Reason(subnet))
		}
	}
}

// validate checks the host and the power command of x against this server's configuration. In problems, prefix precedes
// the names of fields.
func (b BMC) validate(problems *inventory.Problems, prefix string, x *inventory.BMC) {
	if host := x.DialHost(); host != "" && b.CheckHost != nil {
		field := "bmc.host"
		if x.Capabilities().Relayed {
			field = "bmc.consumerURL"
		}
		if err := b.CheckHost(host); err != nil {
			problems.Add(prefix+field, "list the BMC's network under bmc.networks in the configuration", "%v", err)
		}
	}
	if x != nil && x.Driver == inventory.DriverExec && x.Command != "" && b.CheckCommand != nil {
		if err := b.CheckCommand(x.Command); err != nil {
			problems.Add(prefix+"bmc.command", "name a command in the server's power.commands, or add this one there", "%v", err)
		}
	}
}

func (m *machines) get(ctx context.Context, q byName) (apitypes.MachineView, error) {
	found, err := m.find(ctx, q.Name)
	if err != nil {
		return apitypes.MachineView{}, err
	}
	view, err := m.views.viewMachine(ctx, found)
	if err != nil {
		return view, err
	}
	newest, err := m.stores.Agents.MachineAgent(ctx, found.Name)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return view, err
	}
	view.Firmware = newest.Facts.BIOS
	return view, nil
}

func (m *machines) delete(ctx context.Context, q byName) error {
	return m.stores.Machines.DeleteMachine(ctx, q.Name, httpapi.Actor(ctx))
}

// release ends the quarantine of a machine.
func (m *machines) release(ctx context.Context, q byName) (apitypes.MachineView, error) {
	found, err := m.find(ctx, q.Name)
	if err == nil {
		err = m.stores.Machines.Release(ctx, found.Name, httpapi.Actor(ctx))
	}
	if err != nil {
		return apitypes.MachineView{}, err
	}
	return m.get(ctx, q)
}

type machineDisks struct {
	httpapi.List[action.Disk]
	At time.Time `json:"at"`
}

// listDisks returns the disks that the machine's newest agent has found. Each disk names the run that last wrote it.
func (m *machines) listDisks(ctx context.Context, q byName) (machineDisks, error) {
	found, err := m.find(ctx, q.Name)
	if err != nil {
		return machineDisks{}, err
	}
	newest, err := m.stores.Agents.MachineAgent(ctx, found.Name)
	if errors.Is(err, inventory.ErrNotFound) {
		err = hint(fmt.Errorf("disks of machine %q: no agent has reported yet: %w", found.Name, inventory.ErrNotFound),
			"ingot machine inspect "+found.Name)
	}
	if err != nil {
		return machineDisks{}, err
	}
	written, err := m.stores.Disks.DisksWritten(ctx, found.Name)
	if err != nil {
		return machineDisks{}, err
	}

	disks := slices.Clone(newest.Facts.Disks)
	for i, d := range disks {
		for _, id := range []string{"serial:" + d.Serial, "wwn:" + d.WWN} {
			if run, ok := written[id]; ok {
				disks[i].Written = run
			}
		}
	}

	return machineDisks{httpapi.NewList(disks), newest.Hello}, nil
}

type eventsOfMachine struct {
	byName
	httpapi.Page
}

func (m *machines) listEvents(ctx context.Context, q eventsOfMachine) (httpapi.List[inventory.Event], error) {
	found, err := m.find(ctx, q.Name)
	if err != nil {
		return httpapi.List[inventory.Event]{}, err
	}
	return m.events.list(ctx, inventory.EventFilter{Machine: found.Name}, q.Page)
}

type seenMachines struct {
	httpapi.List[inventory.Seen]
	Dropped int64 `json:"dropped"`
}

func (m *machines) listSeen(ctx context.Context, _ httpapi.Empty) (seenMachines, error) {
	seen, err := m.stores.Seen.SeenUnknown(ctx)
	out := seenMachines{List: httpapi.NewList(seen)}
	if m.netboot.UnknownDropped != nil {
		out.Dropped = m.netboot.UnknownDropped()
	}
	return out, err
}

type acceptSeen struct {
	PathMAC string `path:"mac" json:"-"`
	Name    string `json:"name"`
	inventory.Interface
}

// UnmarshalJSON reads the body as a file is read: each problem names its field.
func (q *acceptSeen) UnmarshalJSON(b []byte) error {
	body := struct {
		Name string `json:"name"`
		inventory.Interface
	}{}
	err := strictyaml.DecodeJSON(b, &body)
	q.Name, q.Interface = body.Name, body.Interface
	return err
}

// acceptSeen creates a machine with a MAC that was seen on the network. If an agent on that machine has reported the
// hardware, the new machine contains a description of the hardware.
func (m *machines) acceptSeen(ctx context.Context, q acceptSeen) (apitypes.MachineView, error) {
	mac, err := inventory.ParseMAC(q.PathMAC)
	if err != nil {
		return apitypes.MachineView{}, err
	}
	if q.MAC != "" && q.MAC != mac {
		return apitypes.MachineView{}, inventory.Invalid("mac", "leave it out", "%q is not the MAC address in the request's path", q.MAC)
	}
	q.MAC = mac
	added := inventory.Machine{Name: q.Name, Interfaces: []inventory.Interface{q.Interface}}
	seen, err := m.stores.Seen.SeenMAC(ctx, mac)
	switch {
	case err == nil && seen.Facts != nil:
		added = inventory.FromFacts(q.Name, q.Interface, *seen.Facts)
	case err != nil && !errors.Is(err, inventory.ErrNotFound):
		return apitypes.MachineView{}, err
	}
	if _, _, err := m.put(ctx, []inventory.Machine{added}, false); err != nil {
		return apitypes.MachineView{}, err
	}
	return m.get(ctx, byName{Name: q.Name})
}
