package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/action"
)

// order verifies an assignment and returns the signed order in it. It returns an error if the order is not signed with the key in
// the boot script, belongs to another machine, run, boot, attempt or plan, or differs from the unsigned fields of the assignment
// (security S8). The agent then runs no part of the order.
func (a *Agent) order(as action.Assignment) (action.Order, error) {
	o, err := a.checkOrder(as)
	if err != nil {
		none := action.Assignment{Key: as.Key, Action: action.Action{Name: "order"}}
		return action.Order{Assignment: none}, fmt.Errorf("checking order %s (nothing was written): %w", as.Key, err)
	}
	return o, nil
}

func (a *Agent) checkOrder(as action.Assignment) (action.Order, error) {
	if a.key == nil {
		return action.Order{}, errors.New("the boot script has no key (ingot.plan) that checks signatures: boot the machine again")
	}

	o, err := as.Signed.Verify(a.key)
	if err != nil {
		return o, err
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	switch w := a.welcome; {
	case o.Machine != a.cfg.Machine:
		return o, fmt.Errorf("the order is signed for machine %q, but this is machine %q", o.Machine, a.cfg.Machine)
	case o.Run != w.Run:
		return o, fmt.Errorf("the order is signed for run %q, but this boot belongs to run %q", o.Run, w.Run)
	case o.Key.Epoch != w.Epoch:
		return o, fmt.Errorf("the order is signed for epoch %d, but this boot belongs to epoch %d", o.Key.Epoch, w.Epoch)
	case o.Boot != 0 && o.Boot != w.Boot:
		return o, fmt.Errorf("the order is signed for boot %d, but this is boot %d", o.Boot, w.Boot)
	case o.Key != as.Key:
		return o, fmt.Errorf("the order is signed for attempt %s, but this is another attempt", o.Key)
	case o.Plan == "":
		return o, errors.New("the signed order names no plan")
	case a.plan != "" && o.Plan != a.plan:
		return o, fmt.Errorf("the order is signed for plan %s, but this run began with plan %s", o.Plan, a.plan)
	}

	// The agent uses the signed fields, but logs show the unsigned ones: both must be equal.
	as.Signed = nil
	if !bytes.Equal(jsonOf(as), jsonOf(o.Assignment)) {
		return o, errors.New("the signed order differs from the assignment that came with it")
	}

	a.plan = o.Plan
	return o, nil
}

// jsonOf returns v as JSON, or nil if v cannot be encoded, which does not happen for the types of package action.
func jsonOf(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
