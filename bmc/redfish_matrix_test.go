package bmc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// sequences are what a run does with a BMC, step by step. done is the effect of a step.
var sequences = map[string][]step{
	"network boot":   {power("on"), power("off"), boot("pxe", "Pxe Once"), power("on")},
	"own boot order": {boot("pxe", "Pxe Once"), boot("none", "None Disabled")},
	"virtual media": {
		media("http://10.0.0.1/a.iso"), boot("cdrom", "Cd Once"), power("on"), media(""),
	},
	"reset of the BMC": {{
		func(ctx context.Context, b *redfishBench) error { return b.ResetBMC(ctx, b.bmc, password(), nil) },
		func(b *redfishBench) bool { return b.service.Resets() > 0 },
	}},
}

type step struct {
	do   func(ctx context.Context, b *redfishBench) error
	done func(b *redfishBench) bool
}

func power(word string) step {
	return step{
		func(ctx context.Context, b *redfishBench) error { return b.Set(ctx, b.bmc, password(), word, nil) },
		func(b *redfishBench) bool { return string(b.machine.PowerState()) == word },
	}
}

func boot(device, override string) step {
	return step{
		func(ctx context.Context, b *redfishBench) error {
			warning, err := b.SetBootDevice(ctx, b.bmc, password(), inventory.BootDevice{Device: device, EFI: true}, nil)
			b.warned = strings.Contains(warning, "the BMC may use pxe at a later start")
			return err
		},
		func(b *redfishBench) bool {
			return strings.HasPrefix(b.service.Override(), override) || device == "none" && b.warned
		},
	}
}

func media(url string) step {
	return step{
		func(ctx context.Context, b *redfishBench) error { return b.SetMedia(ctx, b.bmc, password(), url, nil) },
		func(b *redfishBench) bool { return b.service.Media() == url },
	}
}

// TestRedfishFalseSuccess: each call of each sequence fails in turn, in each way, once or from then on. No step
// reports success unless its effect is there, and no session stays open. A wrong state is read once: of a BMC
// whose every read is wrong, nothing can be proven. A warning that the BMC may use another boot device does not count
// as success either.
func TestRedfishFalseSuccess(t *testing.T) {
	falseSuccesses(t, slices.Collect(maps.Keys(redfishFaults)), vlab.RedfishHPE)
}

// TestRedfishFalseSuccessOfOddities is the same in the shapes that stray from the specification, for the faults that
// look like a success.
func TestRedfishFalseSuccessOfOddities(t *testing.T) {
	falseSuccesses(t, []string{"lied about", "misread"}, vlab.RedfishOddities()...)
}

// TestLabRedfishFalseSuccess is the same in all shapes with all faults, which takes minutes.
func TestLabRedfishFalseSuccess(t *testing.T) {
	if !*lab {
		t.Skip("long: make e2e FULL=1")
	}
	falseSuccesses(t, slices.Collect(maps.Keys(redfishFaults)),
		append(vlab.RedfishOddities(), vlab.RedfishHPE, vlab.RedfishDell, vlab.RedfishSupermicro)...)
}

var redfishFaults = map[string]vlab.RedfishFault{
	"refused": {Status: 403}, "unauthorized": {Status: 401}, "unavailable": {Status: 503},
	"lied about": {Lie: true}, "misread": {Misread: true},
	"not answered in time": {Wait: make(chan struct{})}, "lost": {Lose: true}, "dropped": {Drop: true},
}

func falseSuccesses(t *testing.T, faults []string, shapes ...vlab.RedfishShape) {
	t.Helper()
	for _, shape := range shapes {
		for name, steps := range sequences {
			if name == "reset of the BMC" && shape != vlab.RedfishHPE {
				continue // it takes a second each time, and is the same in all
			}
			odd := slices.Contains(vlab.RedfishOddities(), shape)
			if name == "virtual media" && odd && !*lab && shape != vlab.RedfishTypes && shape != vlab.RedfishTasks {
				continue // TestLabRedfishFalseSuccess has all of them
			}
			long := name == "virtual media" || name == "reset of the BMC"
			for _, how := range faults {
				fault := redfishFaults[how]
				if (how == "unavailable" || how == "dropped") && shape != vlab.RedfishHPE {
					continue // they look like refused and lost
				}
				if long && !*lab && slices.Contains([]string{"refused", "unavailable", "dropped"}, how) {
					continue // TestLabRedfishFalseSuccess has them
				}
				t.Run(fmt.Sprintf("%s/%s/%s", shape, name, how), func(t *testing.T) {
					t.Parallel()
					calls, states := requestsOf(t, shape, steps)
					cells := 0
					for i, call := range calls {
						if !changes(fault, call, states) {
							continue
						}
						cells++
						again := slices.Contains(calls[:i], call)
						if again && (call == "GET /redfish/v1" || strings.Contains(call, "/SessionService/")) {
							continue // each step logs in and out: the first one suffices
						}
						falseSuccess(t, shape, steps, faultAt(fault, calls, i, false), how, call)
						if !again && !fault.Misread {
							falseSuccess(t, shape, steps, faultAt(fault, calls, i, true), how, call+" (always)")
						}
					}
					require.NotZero(t, cells)
				})
			}
		}
	}
}

// changes reports whether the fault has an effect on the call. Only reads of states can be misread, and only writes
// lied about; a log-in is not, because its answer is the session.
func changes(f vlab.RedfishFault, call string, states []string) bool {
	method, path, _ := strings.Cut(call, " ")
	switch {
	case f.Lie:
		return method != "GET" && !strings.HasSuffix(path, "/Sessions")
	case f.Misread:
		return method == "GET" && slices.Contains(states, path)
	}
	return true
}

// faultAt returns the faults that make the i-th of the calls fail, alone or with all later ones like it.
func faultAt(f vlab.RedfishFault, calls []string, i int, always bool) []vlab.RedfishFault {
	f.Method, f.Path, _ = strings.Cut(calls[i], " ")
	if !always {
		f.Count = 1
	}
	before := 0
	for _, c := range calls[:i] {
		if c == calls[i] {
			before++
		}
	}
	if before == 0 {
		return []vlab.RedfishFault{f}
	}
	return []vlab.RedfishFault{{Method: f.Method, Path: f.Path, Count: before}, f} // let the earlier ones pass
}

func falseSuccess(t *testing.T, shape vlab.RedfishShape, steps []step, faults []vlab.RedfishFault, how, call string) {
	t.Helper()
	b := newRedfishBench(t, shape)
	// Most of the time would go by in waits for what never comes.
	b.cfg.Step, b.cfg.Hard, b.cfg.Settle, b.cfg.Back = 2*time.Millisecond, 30*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond
	request, logout := b.cfg.request, b.cfg.logout
	late := faults[len(faults)-1].Wait != nil
	if late {
		b.cfg.request, b.cfg.logout = 60*time.Millisecond, 60*time.Millisecond
	}
	b.service.Pretend(faults...)
	for n, s := range steps {
		if err := s.do(t.Context(), b); err != nil {
			break
		}
		require.True(t, s.done(b), "%s %s: step %d: success without effect", call, how, n)
	}
	b.service.Pretend()
	b.cfg.request, b.cfg.logout = request, logout
	if late {
		// On a busy host, a log-in that its client gave up may be answered only after the next operation.
		b.server.CloseClientConnections()
		require.Eventually(t, func() bool { return b.conns.Load() == 0 }, time.Minute, time.Millisecond)
	}
	// The next operation deletes what could not be deleted. On a busy host it may be too slow for the limits of this test.
	require.Eventually(t, func() bool {
		_, err := b.State(t.Context(), b.bmc, password())
		return err == nil || !late
	}, time.Minute, time.Millisecond)
	now, most := b.service.Sessions()
	require.Zero(t, now, "%s %s: a session is left", call, how)
	// A session whose log-in is never answered is deleted after the next log-in, and one that the BMC never deletes when it does.
	if how != "lost" && !late && call != "DELETE /redfish/v1/SessionService/Sessions/* (always)" {
		require.LessOrEqual(t, most, 1, "%s %s", call, how)
	}
	b.server.Close()
}

// requestsOf returns the requests of a sequence, those for log-in and session included, and the paths of the states.
func requestsOf(t *testing.T, shape vlab.RedfishShape, steps []step) (calls, states []string) {
	t.Helper()
	b := newRedfishBench(t, shape)
	b.cfg.Hard = 10 * time.Second // nothing fails here, however slow this host is
	for _, s := range steps {
		require.NoError(t, s.do(t.Context(), b))
		require.True(t, s.done(b))
		calls = append(append(calls, "GET /redfish/v1", "POST /redfish/v1/SessionService/Sessions"), b.service.Calls()...)
	}
	for i, c := range calls { // ids of sessions differ
		if at := strings.Index(c, "/Sessions/"); at >= 0 {
			calls[i] = c[:at] + "/Sessions/*"
		}
	}
	require.True(t, slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "DELETE") }))
	return calls, b.service.States()
}
