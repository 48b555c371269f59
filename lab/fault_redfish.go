package lab

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Faults of a Redfish service that answers; those of BMC have the same meaning. One of Slow, Hold, Idle, Lie
// and Broken at a time: they replace what Pretend has set.

// Controlled is a machine's management controller, whose faults a test causes.
type Controlled interface {
	Unreachable(ctx context.Context) (Undo, error)
	Slow(d time.Duration) (Undo, error)
	Hold() (Undo, error)
	Idle() (Undo, error)
	Lie(state PowerState) (Undo, error)
	Broken() (Undo, error)
	Refuse(ctx context.Context) (Undo, error)
}

var (
	_ Controlled = (*BMC)(nil)
	_ Controlled = (*Redfish)(nil)
)

// Control returns the machine's BMC or Redfish service, or nil if it has neither.
func (m *Machine) Control() Controlled {
	switch {
	case m.fish != nil:
		return m.fish
	case m.bmc != nil:
		return m.bmc
	}
	return nil
}

// Unreachable removes the service from the network: requests get no answer.
func (r *Redfish) Unreachable(ctx context.Context) (Undo, error) {
	if err := r.Unplug(ctx); err != nil {
		return nil, fmt.Errorf("unplugging the Redfish service of %q: %w", r.machine.spec.Name, err)
	}
	return r.undoable("unplugged", func() error { return r.Plug(context.Background()) })
}

// Slow delays every request about power and boot device by d.
func (r *Redfish) Slow(d time.Duration) (Undo, error) {
	return r.pretend("slow", RedfishFault{Delay: d})
}

// Hold makes every request about power and boot device wait for Undo; then it is carried out.
func (r *Redfish) Hold() (Undo, error) {
	held := make(chan struct{})
	undo, err := r.pretend("held", RedfishFault{Wait: held})
	if err != nil {
		return nil, err
	}
	return func() error {
		defer func() {
			select {
			case <-held:
			default:
				close(held)
			}
		}()
		return undo()
	}, nil
}

// Idle makes the service answer writes about power and boot device with success without carrying them out.
func (r *Redfish) Idle() (Undo, error) { return r.pretend("idle", RedfishFault{Lie: true}) }

// Lie makes the service report the given power state, whatever the real one is.
func (r *Redfish) Lie(state PowerState) (Undo, error) {
	word := map[PowerState]string{On: "On", Off: "Off"}[state]
	return r.pretend("lying", RedfishFault{Method: http.MethodGet, Merge: map[string]any{"PowerState": word}})
}

// Broken makes the service answer every request about power and boot device with an error.
func (r *Redfish) Broken() (Undo, error) {
	return r.pretend("broken", RedfishFault{Status: http.StatusInternalServerError})
}

// Refuse changes the password and ends all sessions, as after a factory reset.
func (r *Redfish) Refuse(context.Context) (Undo, error) {
	before := r.setPassword("not-the-password")
	return r.undoable("refusing", func() error { r.setPassword(before); return nil })
}

// setPassword changes the password, ends all sessions, and returns the password before.
func (r *Redfish) setPassword(password string) (before string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.accepts = r.accepts, password
	clear(r.sessions)
	return before
}

// pretend makes a fault happen to the requests about power and boot device.
func (r *Redfish) pretend(what string, f RedfishFault) (Undo, error) {
	action := f
	f.Path, action.Path = "/redfish/v1/Systems/*", "/redfish/v1/Systems/*/Actions/*"
	r.Pretend(f, action)
	return r.undoable(what, func() error { r.Pretend(); return nil })
}

func (r *Redfish) undoable(what string, undo func() error) (Undo, error) {
	return r.machine.lab.undoable("Redfish service of "+r.machine.spec.Name+" "+what, undo)
}
