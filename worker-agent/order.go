package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/action"
)

// order returns what the server signed of as. Its error says why nothing of as
// is carried out: the signature is not of the key that the boot script names,
// or what was signed is meant for another machine, run, boot, attempt or plan,
// or is not what came beside it (security S8).
func (a *Agent) order(as action.Assignment) (action.Order, error) {
	o, err := a.checkOrder(as)
	if err != nil {
		none := action.Assignment{Key: as.Key, Action: action.Action{Name: "order"}}
		return action.Order{Assignment: none}, fmt.Errorf("checking the order %s: %w: nothing was written", as.Key, err)
	}
	return o, nil
}

func (a *Agent) checkOrder(as action.Assignment) (action.Order, error) {
	if a.key == nil {
		return action.Order{}, errors.New("the boot script named no key (ingot.plan) to check signatures with: boot again")
	}

	o, err := as.Signed.Verify(a.key)
	if err != nil {
		return o, err
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	switch w := a.welcome; {
	case o.Machine != a.cfg.Machine:
		return o, fmt.Errorf("it is signed for machine %q, this is %q", o.Machine, a.cfg.Machine)
	case o.Run != w.Run:
		return o, fmt.Errorf("it is signed for run %q, this boot belongs to %q", o.Run, w.Run)
	case o.Key.Epoch != w.Epoch:
		return o, fmt.Errorf("it is signed for epoch %d, this boot belongs to %d", o.Key.Epoch, w.Epoch)
	case o.Boot != 0 && o.Boot != w.Boot:
		return o, fmt.Errorf("it is signed for boot %d, this is boot %d", o.Boot, w.Boot)
	case o.Key != as.Key:
		return o, fmt.Errorf("it is signed for attempt %s", o.Key)
	case o.Plan == "":
		return o, errors.New("it is signed for no plan")
	case a.plan != "" && o.Plan != a.plan:
		return o, fmt.Errorf("it is signed for the plan %s, this run began with %s", o.Plan, a.plan)
	}

	// An agent that shows one thing and does another would be hard to trust.
	as.Signed = nil
	if beside := jsonOf(as); !bytes.Equal(beside, jsonOf(o.Assignment)) {
		return o, errors.New("what is signed is not what came with it")
	}

	a.plan = o.Plan
	return o, nil
}

// jsonOf returns v as JSON; nil when it has none, as no value of package
// action does.
func jsonOf(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}

func jsonSize(v any) int { return len(jsonOf(v)) }
