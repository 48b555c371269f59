package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

type machineStore interface {
	Machine(ctx context.Context, name string) (inventory.Machine, error)
	Machines(ctx context.Context) ([]inventory.Machine, error)
	MachineStates(ctx context.Context, names []string) ([]inventory.MachineState, error)
	Follow() (take func() (machines []string, operations bool), cancel func())
	UserData(ctx context.Context, name string) (user, vendor inventory.Secret, err error)
	PutMachines(ctx context.Context, ms []inventory.Machine, replace bool, by string) error
	DeleteMachine(ctx context.Context, name, by string) error
	Release(ctx context.Context, machine, by string) error
	DisksWritten(ctx context.Context, machine string) (map[string]string, error)
	Installed(ctx context.Context, machine string) (map[string]inventory.Installed, error)
	SeenUnknown(ctx context.Context) ([]inventory.Seen, error)
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	ArmByHand(ctx context.Context, machine, by string, until time.Time) (inventory.Grant, error)
	DisarmByHand(ctx context.Context, machine, by string, force bool) error
}

// A MachineView is a machine with what is going on there.
type MachineView struct {
	inventory.Machine
	Netboot  inventory.Netboot   `json:"netboot"`
	Workflow *inventory.Workflow `json:"workflow"` // its latest run, or null
	// Installed is what the last run that wrote to its disk has left; nil: none
	// has, as far as the inventory knows.
	Installed *inventory.Installed `json:"installed,omitempty"`
	LastSeen  time.Time            `json:"lastSeen,omitzero"`
}

// view adds to m what is going on there.
func (s *Server) view(ctx context.Context, m inventory.Machine) (MachineView, error) {
	vs, err := s.views(ctx, []inventory.Machine{m})
	if err != nil {
		return MachineView{Machine: m}, err
	}
	return vs[0], nil
}

// views is view for many, with one query for all of them.
func (s *Server) views(ctx context.Context, ms []inventory.Machine) ([]MachineView, error) {
	names := make([]string, len(ms))
	for i, m := range ms {
		names[i] = m.Name
	}
	states, err := s.states(ctx, names)
	if err != nil {
		return nil, err
	}
	only := "" // all of them
	if len(ms) == 1 {
		only = ms[0].Name
	}
	installed, err := s.cfg.Store.Installed(ctx, only)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]inventory.MachineState, len(states))
	for _, st := range states {
		byName[st.Name] = st
	}
	vs := make([]MachineView, len(ms))
	for i, m := range ms {
		st := byName[m.Name] // nothing is going on at one that has just been deleted
		st.Machine = m
		vs[i] = s.viewOf(st)
		vs[i].install(installed)
	}
	return vs, nil
}

// viewOf adds to st what only this process knows.
func (s *Server) viewOf(st inventory.MachineState) MachineView {
	v := MachineView{Machine: st.Machine, Netboot: st.Grant.View(s.cfg.Now()), LastSeen: s.agents.lastSeen(st.Name)}
	if v.LastSeen.IsZero() {
		v.LastSeen = st.LastSeen
	}
	if st.Workflow != nil {
		w := s.summary(*st.Workflow)
		v.Workflow = &w
	}
	return v
}

// states reads machines (nil = all) with what is going on there. A run that has only just been started has no record
// yet, and may be forgotten meanwhile.
func (s *Server) states(ctx context.Context, names []string) ([]inventory.MachineState, error) {
	states, err := s.cfg.Store.MachineStates(ctx, names)
	if err != nil {
		return nil, err
	}
	fresh := s.fresh.newest()
	for i, st := range states {
		f, ok := fresh[st.Name]
		if !ok || st.Workflow != nil && !f.Started.After(st.Workflow.Started) {
			continue
		}
		w, err := s.latest(ctx, st.Name)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking at machine %q: %w", st.Name, err)
		}
		states[i].Workflow = &w
	}
	return states, nil
}

// install adds what is installed, of what is installed on machines by name.
func (v *MachineView) install(on map[string]inventory.Installed) {
	if x, ok := on[v.Name]; ok {
		v.Installed = &x
	}
}

func (s *Server) listMachines(c *gin.Context) {
	states, err := s.states(c.Request.Context(), nil)
	if err != nil {
		s.fail(c, err)
		return
	}
	installed, err := s.cfg.Store.Installed(c.Request.Context(), "")
	if err != nil {
		s.fail(c, err)
		return
	}
	vs := make([]MachineView, len(states))
	for i, st := range states {
		vs[i] = s.viewOf(st)
		vs[i].install(installed)
	}
	c.JSON(http.StatusOK, items(vs))
}

func (s *Server) pushMachines(c *gin.Context) {
	var in struct {
		Machines []inventory.Machine `json:"machines"`
		Replace  bool                `json:"replace"`
	}
	if err := bodyWithin(c, &in, false, maxPush); err != nil {
		s.fail(c, err)
		return
	}
	if len(in.Machines) == 0 {
		s.fail(c, invalid("machines", "", "no machine was given"))
		return
	}
	vs, warnings, err := s.putMachines(c, in.Machines, in.Replace)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusCreated, struct {
		list[MachineView]
		Warnings []string `json:"warnings,omitempty"`
	}{items(vs), warnings})
}

// network is what is known of the provisioning network now.
func (s *Server) network() inventory.Network {
	if s.cfg.Network == nil {
		return inventory.Network{}
	}
	return s.cfg.Network()
}

// putMachines validates and stores ms, all or nothing, and returns them with
// what may be wrong with them all the same.
func (s *Server) putMachines(c *gin.Context, ms []inventory.Machine, replace bool) (vs []MachineView, warnings []string, err error) {
	ctx := c.Request.Context()
	stored, err := s.cfg.Store.Machines(ctx)
	if err != nil {
		return nil, nil, err
	}
	before := make(map[string]inventory.Machine, len(stored))
	for _, m := range stored {
		before[m.Name] = m
	}
	network := s.network()
	var problems inventory.Problems
	for i, m := range ms {
		ms[i] = inventory.Canonical(m)
		found := inventory.Validate(ms[i])
		s.checkPower(&found, "", ms[i].BMC)
		checkNetwork(&found, network, ms[i], before[m.Name])
		for _, p := range found {
			if len(ms) > 1 {
				p.Field = strings.TrimSuffix(first(m.Name, fmt.Sprintf("machines[%d]", i))+": "+p.Field, ": ")
			}
			problems = append(problems, p)
		}
	}
	if err := problems.Err(); err != nil {
		return nil, nil, err
	}
	if err := s.cfg.Store.PutMachines(ctx, ms, replace, by(c)); err != nil {
		return nil, nil, err
	}
	if stored, err = s.cfg.Store.Machines(ctx); err != nil {
		return nil, nil, err
	}
	after := make(map[string]inventory.Machine, len(stored))
	for _, m := range stored {
		after[m.Name] = m
	}
	out := make([]inventory.Machine, len(ms))
	for i, m := range ms {
		out[i] = after[m.Name]
	}
	vs, err = s.views(ctx, out)
	return vs, append(network.Warnings(ms), inventory.GatewayWarnings(ms, stored)...), err
}

// checkNetwork refuses reservations that this server could not keep: its own
// addresses, and subnets that none of the listed relays serves. An address that
// the machine has already stays: the server may have moved there.
func checkNetwork(problems *inventory.Problems, n inventory.Network, m, before inventory.Machine) {
	for at, i := range m.Interfaces {
		has := slices.ContainsFunc(before.Interfaces, func(x inventory.Interface) bool { return x.Address == i.Address && x.Netmask == i.Netmask })
		if !i.Address.IsValid() || has {
			continue
		}
		field := fmt.Sprintf("interfaces[%d].address", at)
		if whose := n.Taken(i.Address); whose != "" {
			problems.Add(field, "reserve another address", "%s is %s", i.Address, whose)
		} else if subnet, unserved := n.Unserved(i); unserved && len(n.Relays) > 0 {
			problems.Add(field, "correct the address, or list that subnet's relay under netboot.relays in the configuration", "%s", n.Reason(subnet))
		}
	}
}

// checkPower checks what b names of this server's configuration.
func (s *Server) checkPower(problems *inventory.Problems, prefix string, b *inventory.BMC) {
	if (!b.Manual() || b.Wakes()) && b.Host != "" && s.cfg.CheckBMCHost != nil {
		if err := s.cfg.CheckBMCHost(b.Host); err != nil {
			problems.Add(prefix+"bmc.host", "list its network under bmc.networks in the configuration", "%v", err)
		}
	}
	if b != nil && b.Driver == inventory.DriverExec && b.Command != "" && s.cfg.CheckPowerCommand != nil {
		if err := s.cfg.CheckPowerCommand(b.Command); err != nil {
			problems.Add(prefix+"bmc.command", "name one that is there, or have it added on the server", "%v", err)
		}
	}
}

func (s *Server) getMachine(c *gin.Context) {
	m, err := s.machine(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	vs, err := s.views(c.Request.Context(), []inventory.Machine{m})
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, vs[0])
}

// machine returns the machine that the path names.
func (s *Server) machine(c *gin.Context) (inventory.Machine, error) {
	return s.knownMachine(c.Request.Context(), c.Param("name"))
}

func (s *Server) knownMachine(ctx context.Context, name string) (inventory.Machine, error) {
	m, err := s.cfg.Store.Machine(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		return m, hint{fmt.Errorf("machine %q: %w", name, inventory.ErrNotFound), "ingot machine list"}
	}
	return m, err
}

func (s *Server) deleteMachine(c *gin.Context) {
	if err := s.cfg.Store.DeleteMachine(c.Request.Context(), c.Param("name"), by(c)); err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

const (
	armedFor    = time.Hour
	maxArmedFor = 24 * time.Hour
)

func (s *Server) patchMachine(c *gin.Context) {
	var in struct {
		AllowPXE *bool `json:"allowPXE"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	if in.AllowPXE == nil {
		s.fail(c, invalid("allowPXE", "replace the machine with POST /v1/machines to change anything else", "is missing"))
		return
	}
	m, err := s.machine(c)
	if err == nil {
		_, err = s.arm(c, m.Name, *in.AllowPXE, armedFor, false)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	vs, err := s.views(c.Request.Context(), []inventory.Machine{m})
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, vs[0])
}

func (s *Server) netbootMachine(c *gin.Context) {
	var in struct {
		Arm   *bool  `json:"arm"`
		For   string `json:"for"`
		Force bool   `json:"force"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	if in.Arm == nil {
		s.fail(c, invalid("arm", "", "is missing"))
		return
	}
	d := armedFor
	if in.For != "" {
		var err error
		if d, err = time.ParseDuration(in.For); err != nil || d <= 0 || d > maxArmedFor {
			s.fail(c, invalid("for", "for example 1h; at most 24h", "%q is no time to stay armed", in.For))
			return
		}
	}
	m, err := s.machine(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	n, err := s.arm(c, m.Name, *in.Arm, d, in.Force)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, n)
}

// arm opens or closes a person's netboot window.
func (s *Server) arm(c *gin.Context, machine string, open bool, d time.Duration, force bool) (inventory.Netboot, error) {
	if open {
		// A server that lost its key must not send machines into an
		// installation whose secrets it cannot open.
		if err := s.cfg.Store.KeyCheck(c.Request.Context()); err != nil {
			return inventory.Netboot{}, fmt.Errorf("arming %q: %w", machine, err)
		}
		if _, err := s.cfg.Store.ArmByHand(c.Request.Context(), machine, by(c), s.cfg.Now().Add(d)); err != nil {
			return inventory.Netboot{}, err
		}
	} else if err := s.cfg.Store.DisarmByHand(c.Request.Context(), machine, by(c), force); err != nil {
		return inventory.Netboot{}, err
	}
	g, err := s.cfg.Store.Grant(c.Request.Context(), machine)
	return g.View(s.cfg.Now()), err
}

func (s *Server) machineDisks(c *gin.Context) {
	m, err := s.machine(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	newest, err := s.cfg.Store.MachineAgent(c.Request.Context(), m.Name)
	if errors.Is(err, inventory.ErrNotFound) {
		err = hint{fmt.Errorf("disks of machine %q: no agent has looked at it yet: %w", m.Name, inventory.ErrNotFound), "ingot machine inspect " + m.Name}
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	written, err := s.cfg.Store.DisksWritten(c.Request.Context(), m.Name)
	if err != nil {
		s.fail(c, err)
		return
	}
	disks := append([]action.Disk{}, newest.Facts.Disks...)
	for i, d := range disks {
		for _, id := range []string{"serial:" + d.Serial, "wwn:" + d.WWN} {
			if run, ok := written[id]; ok {
				disks[i].Written = run
			}
		}
	}
	c.JSON(http.StatusOK, struct {
		list[action.Disk]
		At time.Time `json:"at"`
	}{items(disks), newest.Hello})
}

func (s *Server) machineEvents(c *gin.Context) {
	m, err := s.machine(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	s.events(c, inventory.EventFilter{Machine: m.Name})
}

// maxEvents is how many events one answer holds.
const maxEvents = 1000

// events answers with the events that f, after and limit name, in order.
func (s *Server) events(c *gin.Context, f inventory.EventFilter) {
	after, err := intQuery(c, "after", 0)
	if err != nil {
		s.fail(c, err)
		return
	}
	limit, err := intQuery(c, "limit", maxEvents)
	if err != nil {
		s.fail(c, err)
		return
	}
	f.After, f.Limit = after, int(min(max(limit, 1), maxEvents))
	es, err := s.cfg.Store.Events(c.Request.Context(), f)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, items(es))
}

func (s *Server) machineWorkflow(c *gin.Context) {
	m, err := s.machine(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	w, err := s.latest(c.Request.Context(), m.Name)
	if errors.Is(err, inventory.ErrNotFound) {
		err = hint{fmt.Errorf("machine %q has had no workflow: %w", m.Name, inventory.ErrNotFound), "ingot machine provision " + m.Name}
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.showWorkflow(c, w)
}

func (s *Server) whyMachine(c *gin.Context) {
	m, err := s.machine(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	i, ok := m.Netboot()
	if !ok {
		s.fail(c, invalid("interfaces", "", "machine %q has no interface that may boot from the network", m.Name))
		return
	}
	s.why(c, i.MAC)
}

func (s *Server) whyMAC(c *gin.Context) {
	mac, err := inventory.ParseMAC(c.Param("mac"))
	if err != nil {
		s.fail(c, err)
		return
	}
	s.why(c, mac)
}

func (s *Server) why(c *gin.Context, mac string) {
	if s.cfg.Why == nil {
		s.fail(c, fmt.Errorf("this server decides no boots: %w", errUnavailable))
		return
	}
	d, err := s.cfg.Why(c.Request.Context(), mac)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, d)
}

func (s *Server) listSeen(c *gin.Context) {
	seen, err := s.cfg.Store.SeenUnknown(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	var dropped int64
	if s.cfg.UnknownDropped != nil {
		dropped = s.cfg.UnknownDropped()
	}
	c.JSON(http.StatusOK, struct {
		list[inventory.Seen]
		Dropped int64 `json:"dropped"`
	}{items(seen), dropped})
}

func (s *Server) acceptSeen(c *gin.Context) {
	var in struct {
		Name string `json:"name"`
		inventory.Interface
	}
	mac, err := inventory.ParseMAC(c.Param("mac"))
	if err == nil {
		err = body(c, &in, false)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	if in.MAC != "" && in.MAC != mac {
		s.fail(c, invalid("mac", "leave it out", "%q is not the MAC of the path", in.MAC))
		return
	}
	in.MAC = mac
	vs, _, err := s.putMachines(c, []inventory.Machine{{Name: in.Name, Interfaces: []inventory.Interface{in.Interface}}}, false)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusCreated, vs[0])
}
