package workflows_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

const foreign = `version: "0.1"
name: foreign
documents: [{name: note, contents: "call {{ .webhook_url }}SUCCEEDED"}]
installer:
  kernel: vmlinuz-x
  initrd: [initrd-x]
  parameters: ["config={{ .documents_url }}note"]
  complete: webhook
  timeout: 3600
`

// newForeign is a world whose machine is installed by an installer that takes ten minutes
// and reports its end.
func newForeign(t *testing.T, source string, edit func(m *inventory.Machine)) *world {
	t.Helper()
	w := newWorld(t, func(m *inventory.Machine) {
		m.Image, m.Template = "", "foreign"
		m.Disks = []inventory.DeclaredDisk{{Device: "/dev/vda"}}
		if edit != nil {
			edit(m)
		}
	})
	require.NoError(t, w.Store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "foreign", Source: source}, "test"))
	for name, digit := range map[string]string{"vmlinuz-x": "c", "initrd-x": "a"} {
		require.NoError(
			t,
			w.Store.Images.PutImage(
				t.Context(),
				inventory.Image{Name: name, File: name, Size: 1, SHA256: strings.Repeat(digit, 64), Format: "raw"},
				"test",
			),
		)
	}
	w.installs = func(g inventory.Grant) {
		w.loads(g)
		w.after(10*time.Minute, func() { w.webhook(g, false, "") })
	}
	return w
}

// loads is the installer's way into memory.
func (w *world) loads(g inventory.Grant) {
	for _, k := range []string{inventory.EventDHCP, inventory.EventScript, inventory.EventKernel} {
		w.signal(k, g.Epoch, g.Boot, nil)
	}
	require.NoError(w.t, w.Store.Plans.SpendBoot(w.t.Context(), g.Owner, g.Boot, "initrd-x"))
	w.signal(inventory.EventPayload, g.Epoch, g.Boot, nil)
	w.signal(inventory.EventDocument, g.Epoch, g.Boot, nil)
}

// webhook is the installer's webhook.
func (w *world) webhook(g inventory.Grant, failed bool, message string) {
	now, err := w.Store.Grants.Grant(w.t.Context(), machine)
	require.NoError(w.t, err)
	if now.Owner != g.Owner {
		return // the run has ended
	}
	_, err = w.Store.Plans.InstallerReported(w.t.Context(), g.Owner, failed, message)
	require.NoError(w.t, err)
	kind := inventory.EventInstalled
	if failed {
		kind = inventory.EventInstallFailed
	}
	w.send(func() {
		w.env.SignalWorkflow(workflows.SignalEvent, workflows.Event{Kind: kind, Epoch: g.Epoch, Boot: g.Boot, Message: message})
	})
}

// back ends Temporal's outage. A real Temporal delivers waiting signals in one workflow
// task, and the run continues after the last one. Here each signal is a separate task, so
// the awaited signal comes last.
func (w *world) back() {
	w.down = false
	for _, signal := range slices.Backward(w.waiters) {
		signal()
	}
	w.waiters = nil
}

func (w *world) phases() []string {
	var out []string
	for _, m := range w.messages {
		phase, _, _ := strings.Cut(m, ":")
		if len(out) == 0 || out[len(out)-1] != phase {
			out = append(out, phase)
		}
	}
	return out
}

func TestAnotherInstaller(t *testing.T) {
	w := newForeign(t, foreign, nil)
	var open, spent bool
	installs := w.installs
	w.installs = func(g inventory.Grant) {
		installs(g)
		w.after(5*time.Minute, func() {
			g, err := w.Store.Grants.Grant(t.Context(), machine)
			require.NoError(t, err)
			open, spent = g.SecretsOpen(w.env.Now()), g.Spent
		})
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	rec := w.record()
	require.Equal(t, inventory.StateSuccess, rec.State)
	require.Equal(t, "webhook", rec.Evidence)
	require.Equal(t, "installed (evidence: webhook): the installer has reported its success", rec.Message)
	require.Empty(t, rec.Actions)
	require.True(t, open, "it may read its documents while it installs")
	require.True(t, spent, "it is not loaded twice")
	require.Equal(t, 1, w.cycles, "one start, and no other")
	require.Equal(t, []string{"plan", "arm", "power", "dhcp", "loader", "install", "disarm", "done"}, w.phases())
	w.closed()
}

func TestTheAgentGoesBeforeTheInstaller(t *testing.T) {
	const wipe = "tasks: [{name: clean, worker: '{{.device_1}}', actions: [{name: wipe, image: wipe}]}]\n"
	t.Run("with a BMC", func(t *testing.T) {
		w := newForeign(t, foreign+wipe, nil)
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		rec := w.record()
		require.Equal(t, "D1", rec.Disk.Serial)
		require.Equal(t, []action.Key{{Epoch: 1, Action: 0, Attempt: 1}}, w.assigned, "the BMC restarts it, no agent has to")
		require.Equal(t, action.Success, rec.Actions[1].State)
		require.Equal(t, 2, w.cycles)
		w.closed()
	})
	for name, x := range map[string]struct {
		takes time.Duration // the machine, to restart
		down  bool          // Temporal, for twenty minutes
	}{
		"without a BMC": {3 * time.Minute, false}, "without a BMC, by a quick machine": {0, false}, "without a BMC, all word of it at once": {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newForeign(t, foreign+wipe, func(m *inventory.Machine) { m.BMC = nil })
			w.noHome = true
			w.after(time.Hour, w.boots)
			agent := w.agentFor
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Payload.Leaving {
					w.after(time.Second, func() { // with its report
						w.after(x.takes, w.boots)
						if x.down {
							w.down = true
							w.after(20*time.Minute, w.back)
						}
					})
				}
				return agent(a)
			}
			require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
			require.Equal(t, []action.Key{{Epoch: 1, Action: 0, Attempt: 1}, {Epoch: 1, Action: 1, Attempt: 1}}, w.assigned)
			require.Contains(t, w.messages, "power: opening network boot (boot 2)")
			require.Equal(t, action.Success, w.record().Actions[1].State)
			require.Empty(t, w.asked)
			w.closed()
		})
	}
}

// Each call fails once permanently, after it took effect: the run leaves nothing open.
func TestUnwindOfAnInstaller(t *testing.T) {
	for n := 1; ; n++ {
		w := newForeign(t, foreign, nil)
		w.failAt = n
		err := w.run(contract.ProvisionInput{Machine: machine})
		if !w.failing {
			require.NoError(t, err)
			require.Greater(t, n, 15, "a run makes more calls than that")
			return
		}
		w.closed()
	}
}

func TestAFailedInstallerFailsTheRun(t *testing.T) {
	w := newForeign(t, foreign, nil)
	w.installs = func(g inventory.Grant) {
		w.loads(g)
		w.after(10*time.Minute, func() { w.webhook(g, true, "no disk matches /dev/disk/by-id/x") })
	}
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "no disk matches /dev/disk/by-id/x")
	rec := w.record()
	require.Equal(t, inventory.StateFailed, rec.State)
	require.Equal(t, "the installer reported that it failed: no disk matches /dev/disk/by-id/x", rec.Message)
	w.closed()
}

func TestAFailedInstallerWaitsUnderPolicyPause(t *testing.T) {
	w := newForeign(t, foreign, nil)
	tries := 0
	w.installs = func(g inventory.Grant) {
		tries++
		w.loads(g)
		w.after(10*time.Minute, func() { w.webhook(g, tries == 1, "once") })
	}
	w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Restart} }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Policy: contract.Pause}))
	require.Len(t, w.asked, 1)
	require.Contains(t, w.asked[0].Text, "once")
	require.Equal(t, int64(2), w.record().Epoch)
	w.closed()
}

// An overdue installer is never interrupted: an operator is asked with network boot closed,
// and its late report still counts.
func TestOverdueInstallerAsksOperator(t *testing.T) {
	t.Run("waits on", func(t *testing.T) {
		w := newForeign(t, foreign, nil)
		w.installs = func(g inventory.Grant) {
			w.loads(g)
			w.after(150*time.Minute, func() { w.webhook(g, false, "") })
		}
		w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Retry} }
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Len(t, w.asked, 1)
		require.Equal(t, "1.install.1.0", w.asked[0].ID)
		require.Equal(
			t,
			"the installer has not reported its end within 1h0m0s; the installer has fetched its document; look at the machine's console",
			w.asked[0].Text,
		)
		require.Equal(t, 1, w.cycles)
		require.Equal(t, 1, w.offs)
		w.closed()
	})
	t.Run("an operator's word", func(t *testing.T) {
		w := newForeign(t, foreign, nil)
		w.installs = w.loads
		w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Continue} }
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, "operator", w.record().Evidence)
		w.closed()
	})
	t.Run("aborted", func(t *testing.T) {
		w := newForeign(t, foreign, nil)
		w.installs = w.loads
		require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted")
		require.Equal(t, 1, w.cycles, "no timer has switched anything")
		w.closed()
	})
	t.Run("its word lay in the database", func(t *testing.T) {
		w := newForeign(t, foreign, nil)
		w.installs = func(g inventory.Grant) {
			w.loads(g)
			w.after(10*time.Minute, func() {
				w.down = true // Temporal's outage
				w.webhook(g, false, "")
			})
		}
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Empty(t, w.asked)
		require.True(t, w.drained)
		w.closed()
	})
}

// A question about an installer or the installed system is withdrawn when the missing report
// arrives.
func TestLateReportWithdrawsQuestion(t *testing.T) {
	const late = 90 * time.Minute // the question has been open for an hour, and is answered in half an hour
	withdrawn := func(t *testing.T, w *world, id string) {
		t.Helper()
		require.Len(t, w.asked, 1)
		require.Equal(t, id, w.asked[0].ID)
		require.Nil(t, w.record().Question)
		w.closed()
	}
	t.Run("webhook", func(t *testing.T) {
		w := newForeign(t, foreign, nil)
		w.installs = func(g inventory.Grant) {
			w.loads(g)
			w.after(late, func() { w.webhook(g, false, "") })
		}
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, "webhook", w.record().Evidence)
		require.Equal(t, 1, w.cycles)
		withdrawn(t, w, "1.install.1.0")
	})
	t.Run("webhook of a failure", func(t *testing.T) {
		w := newForeign(t, foreign, nil)
		w.installs = func(g inventory.Grant) {
			w.loads(g)
			w.after(late, func() { w.webhook(g, true, "no disk") })
		}
		require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "the installer reported that it failed: no disk")
		withdrawn(t, w, "1.install.1.0")
	})
	t.Run("phone-home", func(t *testing.T) {
		w := newForeign(t, strings.Replace(foreign, "SUCCEEDED", "SUCCEEDED then {{ .phone_home_url }}", 1), nil)
		installs := w.installs
		w.installs = func(g inventory.Grant) {
			installs(g)
			w.after(late, func() { w.signal(inventory.EventPhoneHome, g.Epoch, g.Boot, nil) })
		}
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, "phone-home", w.record().Evidence)
		withdrawn(t, w, "1.ready.0")
	})
	t.Run("phone-home of what the agent installed", func(t *testing.T) {
		w := newWorld(t, nil)
		w.noHome = true
		w.after(70*time.Minute, func() { w.signal(inventory.EventPhoneHome, 1, 1, nil) })
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, "phone-home", w.record().Evidence)
		withdrawn(t, w, "1.ready.1")
	})
	t.Run("Talos", func(t *testing.T) {
		document, err := os.ReadFile("../deploy/genesis/talos.yaml")
		require.NoError(t, err)
		w := newForeign(t, strings.Replace(strings.Replace(foreign, "complete: webhook", "complete: talos", 1),
			`{name: note, contents: "call {{ .webhook_url }}SUCCEEDED"}`, `{name: talos, kind: talos}`, 1),
			func(m *inventory.Machine) { m.UserData = inventory.NewSecret(string(document)) })
		w.installs = w.loads
		w.env.OnActivity(w.do.TalosInstalled, mock.Anything, mock.Anything).After(late).Return("shown", nil)
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, "talos", w.record().Evidence)
		withdrawn(t, w, "1.install.1.0")
	})
	t.Run("of an installer that seemed never to boot", func(t *testing.T) {
		w := newForeign(t, foreign, nil)
		w.installs = func(g inventory.Grant) {
			w.signal(inventory.EventDHCP, g.Epoch, g.Boot, nil)
			if g.Boot == inventory.MaxBoots {
				w.after(30*time.Minute, func() { w.webhook(g, false, "") })
			}
		}
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		withdrawn(t, w, "1.boot.3")
	})
	t.Run("a decision that was taken before counts", func(t *testing.T) {
		w := newForeign(t, foreign, nil)
		w.installs = func(g inventory.Grant) {
			w.loads(g)
			w.after(150*time.Minute, func() { w.webhook(g, false, "") })
		}
		require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted")
		withdrawn(t, w, "1.install.1.0")
	})
}

// An installer reports just before its power is cut: the boot that was given up continues,
// and its report counts.
func TestAnInstallerThatWasGivenUpReports(t *testing.T) {
	w := newForeign(t, foreign, nil)
	w.installs = func(g inventory.Grant) {
		w.signal(inventory.EventDHCP, g.Epoch, g.Boot, nil)
		w.signal(inventory.EventScript, g.Epoch, g.Boot, nil)
		w.atFence = func() {
			w.webhook(g, false, "")
			w.atFence = nil
		}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, "webhook", w.record().Evidence)
	require.Equal(t, 1, w.cycles)
	require.Zero(t, w.warm)
	require.Empty(t, w.asked)
	w.closed()
}

// The installer that was given up is delivered late, and its system phones home during the
// power operation: that report counts for either boot.
func TestAPhoneHomeOfABootThatWasGivenUp(t *testing.T) {
	w := newForeign(t, strings.Replace(foreign, "complete: webhook", "complete: phone-home", 1), nil)
	w.installs = func(g inventory.Grant) {
		w.signal(inventory.EventDHCP, g.Epoch, g.Boot, nil)
		w.signal(inventory.EventScript, g.Epoch, g.Boot, nil)
		w.atFence = func() {
			require.NoError(t, w.Store.Plans.SpendBoot(t.Context(), g.Owner, g.Boot, "initrd-x"))
			w.signal(inventory.EventPhoneHome, g.Epoch, g.Boot, nil)
			w.atFence = nil
		}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, w.cycles)
	require.Empty(t, w.asked)
	w.closed()
}

// The BMC does not answer when the machine is to be started again, and an operator is asked.
// The installer that was given up then reports, so the question is withdrawn.
func TestAPowerQuestionIsWithdrawn(t *testing.T) {
	w := newForeign(t, foreign, nil)
	w.installs = func(g inventory.Grant) {
		w.signal(inventory.EventDHCP, g.Epoch, g.Boot, nil)
		w.signal(inventory.EventScript, g.Epoch, g.Boot, nil)
		w.bmcDown = inventory.ErrUnreachable
	}
	w.answer = func(q inventory.Question) *contract.Decision {
		require.Contains(t, q.ID, ".power.")
		g, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		w.after(59*time.Minute, func() { w.webhook(g, false, "") })
		return nil
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, "webhook", w.record().Evidence)
	require.Len(t, w.asked, 1)
	require.Zero(t, w.warm)
	w.closed()
}

// The server was killed between the delivery of the payload and its record. An installer
// that fetches its document was delivered, so it is not booted again.
func TestAnInstallerAtWorkIsNotBootedAgain(t *testing.T) {
	w := newForeign(t, foreign, nil)
	var at inventory.Grant
	var netboot, secrets bool
	w.installs = func(g inventory.Grant) {
		for _, k := range []string{inventory.EventDHCP, inventory.EventScript, inventory.EventKernel, inventory.EventDocument} {
			w.signal(k, g.Epoch, g.Boot, nil)
		}
		w.after(5*time.Minute, func() {
			var err error
			at, err = w.Store.Grants.Grant(t.Context(), machine)
			require.NoError(t, err)
			netboot, secrets = at.NetbootOpen(w.env.Now()), at.SecretsOpen(w.env.Now())
		})
		w.after(10*time.Minute, func() { w.webhook(g, false, "") })
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, at.Boot)
	require.False(t, netboot, "the next network boot would be of the installer")
	require.True(t, secrets, "it may still read its documents")
	w.closed()
}

// No file of the new boot was fetched yet: a request for a document comes from the installer
// of the boot that is being ended.
func TestLateDocumentDoesNotCloseNextBoot(t *testing.T) {
	w := newForeign(t, foreign, nil)
	open := false
	w.installs = func(g inventory.Grant) {
		w.signal(inventory.EventDocument, g.Epoch, g.Boot, nil)
		w.after(5*time.Minute, func() {
			now, err := w.Store.Grants.Grant(t.Context(), machine)
			require.NoError(t, err)
			open = now.NetbootOpen(w.env.Now())
		})
		w.after(10*time.Minute, func() { w.webhook(g, false, "") })
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.True(t, open)
	w.closed()
}

// A repeated workflow task receives all signals that have arrived since: the agent has left,
// and the installer has begun and ended. A phone-home counts for any boot.
func TestEarlyReportsOfNextBootAreKept(t *testing.T) {
	for _, complete := range []string{"webhook", "phone-home"} {
		t.Run(complete, func(t *testing.T) {
			source := strings.Replace(foreign, "complete: webhook", "complete: "+complete, 1)
			w := newForeign(
				t,
				source+"tasks: [{name: clean, worker: '{{.device_1}}', actions: [{name: wipe, image: wipe}]}]\n",
				func(m *inventory.Machine) { m.BMC = nil },
			)
			w.noHome = true
			w.after(time.Hour, w.boots)
			agent := w.agentFor
			w.agentFor = func(a inventory.Assignment) *action.Result {
				kinds := []string{inventory.EventDHCP, inventory.EventScript, inventory.EventKernel, inventory.EventPayload, inventory.EventInstalled}
				boot := a.Boot + 1
				if complete == "phone-home" {
					kinds, boot = []string{inventory.EventPhoneHome}, a.Boot
				}
				if !a.Payload.Leaving {
					for _, k := range kinds {
						w.signal(k, a.Epoch, boot, nil)
					}
				}
				return agent(a)
			}
			require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
			require.Equal(t, complete, w.record().Evidence)
			require.Empty(t, w.asked)
			w.closed()
		})
	}
}

// With its report that it restarts the machine, the agent allows the installer's boot. That
// window is closed too while an operator is asked, even after earlier questions.
func TestABootThatTheAgentAllowedIsClosedForAQuestion(t *testing.T) {
	w := newForeign(
		t,
		foreign+"tasks: [{name: clean, worker: '{{.device_1}}', actions: [{name: wipe, image: wipe}]}]\n",
		func(m *inventory.Machine) { m.BMC = nil },
	)
	w.disks = append(w.disks, action.Disk{Path: "/dev/vdb", Serial: "D2", Size: 1 << 30, Blank: true})
	w.noHome = true
	w.after(time.Hour, w.boots)
	agent, contested, open := w.agentFor, false, false
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Payload.Leaving {
			w.down = true // its report is stored, but has not reached the run
			w.after(2*time.Second, func() {
				w.env.SignalWorkflow(workflows.SignalEvent, workflows.Event{Kind: inventory.EventClaimConflict, Epoch: a.Epoch, Boot: a.Boot})
			})
		}
		return agent(a)
	}
	w.answer = func(q inventory.Question) *contract.Decision {
		if strings.Contains(q.ID, ".bind.") {
			return &contract.Decision{Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{Serial: "D1"}}
		}
		contested = true
		g, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		require.Equal(t, 2, g.Boot, "the agent has allowed it")
		open = g.NetbootOpen(w.env.Now())
		return &contract.Decision{Choice: contract.Abort}
	}
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Len(t, w.asked, 2)
	require.True(t, contested)
	require.False(t, open, "no one boots while an operator is asked")
	w.closed()
}

// The plan names images by digest. A file that is gone is noticed before
// anything is switched for it, and an image that was stored under the name since changes nothing.
func TestAnImageThatIsGoneIsNotBooted(t *testing.T) {
	w := newForeign(t, foreign, nil)
	gone := false
	w.do.Site.ImageStored = func(_ context.Context, i inventory.PlannedImage) error {
		if gone && i.Name == "initrd-x" {
			return inventory.ErrNotFound
		}
		return nil
	}
	installs := w.installs
	w.installs = func(g inventory.Grant) {
		if g.Boot == 1 {
			w.signal(inventory.EventDHCP, g.Epoch, g.Boot, nil)
			require.NoError(
				t,
				w.Store.Images.PutImage(
					t.Context(),
					inventory.Image{Name: "initrd-x", File: "initrd-x", Size: 1, SHA256: strings.Repeat("b", 64), Format: "raw"},
					"test",
				),
			)
			gone = true
			return
		}
		installs(g)
	}
	switched := 0
	w.answer = func(inventory.Question) *contract.Decision {
		switched = w.cycles + w.warm
		gone = false
		return &contract.Decision{Choice: contract.Retry}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Len(t, w.asked, 1)
	require.Contains(t, w.asked[0].Text, `image "initrd-x" (sha256 aaaaaaaaaaaa) was replaced or deleted`)
	require.Contains(t, w.asked[0].Text, "ingot workflow retry um760 --from start")
	require.Equal(t, 1, switched)
	w.closed()
}

func TestAnInstallerThatIsNotLoadedIsStartedAgain(t *testing.T) {
	w := newForeign(t, foreign, nil)
	installs := w.installs
	w.installs = func(g inventory.Grant) {
		if g.Boot == 1 {
			w.signal(inventory.EventDHCP, g.Epoch, g.Boot, nil)
			return
		}
		installs(g)
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, w.warm, "the second start is a reset")
	w.closed()
}

// The payload was delivered and its record came late: the machine is not restarted.
func TestAnInstallerThatWasLoadedAfterAllIsLeftAlone(t *testing.T) {
	w := newForeign(t, foreign, nil)
	w.installs = func(g inventory.Grant) {
		w.signal(inventory.EventDHCP, g.Epoch, g.Boot, nil)
		w.signal(inventory.EventScript, g.Epoch, g.Boot, nil)
		w.atFence = func() {
			require.NoError(w.t, w.Store.Plans.SpendBoot(w.t.Context(), g.Owner, g.Boot, "initrd-x"))
			w.after(time.Minute, func() { w.webhook(g, false, "") })
			w.atFence = nil
		}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, w.cycles)
	require.Zero(t, w.warm)
	w.closed()
}

// The same after a reset, before the next boot is allowed.
func TestAnInstallerThatIsLoadedBeforeItsBootIsAllowedIsLeftAlone(t *testing.T) {
	w := newForeign(t, foreign, nil)
	w.installs = func(g inventory.Grant) {
		w.signal(inventory.EventDHCP, g.Epoch, g.Boot, nil)
		w.fast = func() {
			require.NoError(w.t, w.Store.Plans.SpendBoot(w.t.Context(), g.Owner, g.Boot, "initrd-x"))
			w.after(time.Minute, func() { w.webhook(g, false, "") })
		}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, []int{1, 1}, []int{w.cycles, w.warm})
	require.Empty(t, w.asked)
	w.closed()
}

func TestPhoneHomeProvesWhatAnInstallerInstalled(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		w := newForeign(t, strings.Replace(foreign, "complete: webhook", "complete: phone-home", 1), nil)
		w.installs = func(g inventory.Grant) {
			w.loads(g)
			w.after(10*time.Minute, func() { w.signal(inventory.EventPhoneHome, g.Epoch, g.Boot, nil) })
		}
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, "phone-home", w.record().Evidence)
		require.NotContains(t, w.phases(), "ready")
		w.closed()
	})
	t.Run("after the webhook", func(t *testing.T) {
		w := newForeign(t, strings.Replace(foreign, "SUCCEEDED", "SUCCEEDED then {{ .phone_home_url }}", 1), nil)
		installs := w.installs
		armed := true
		w.installs = func(g inventory.Grant) {
			installs(g)
			w.after(30*time.Minute, func() {
				g, err := w.Store.Grants.Grant(t.Context(), machine)
				require.NoError(t, err)
				armed = !g.NetbootUntil.IsZero()
				w.signal(inventory.EventPhoneHome, g.Epoch, g.Boot, nil)
			})
		}
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, "phone-home", w.record().Evidence)
		require.Contains(t, w.phases(), "ready")
		require.False(t, armed, "the disarm came on the first of them")
		require.Equal(t, 1, w.cycles)
		w.closed()
	})
}

// Talos does not report: the run polls its API, and nothing else ends the wait.
func TestTheTalosAPIProvesWhatTalosInstalled(t *testing.T) {
	document, err := os.ReadFile("../deploy/genesis/talos.yaml")
	require.NoError(t, err)
	talos := strings.Replace(strings.Replace(foreign, "complete: webhook", "complete: talos", 1),
		`{name: note, contents: "call {{ .webhook_url }}SUCCEEDED"}`, `{name: talos, kind: talos}`, 1)
	start := func(t *testing.T) *world {
		w := newForeign(t, talos, func(m *inventory.Machine) { m.UserData = inventory.NewSecret(string(document)) })
		w.installs = w.loads
		return w
	}
	t.Run("it shows the authority", func(t *testing.T) {
		w := start(t)
		w.env.OnActivity(w.do.TalosInstalled, mock.Anything, mock.Anything).After(10*time.Minute).Return("shown", nil)
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, "talos", w.record().Evidence)
		require.Equal(t, 1, w.cycles)
		require.Empty(t, w.asked)
		w.closed()
	})
	t.Run("it never does", func(t *testing.T) {
		w := start(t)
		w.env.OnActivity(w.do.TalosInstalled, mock.Anything, mock.Anything).After(100*time.Hour).Return("", nil)
		require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted")
		require.Len(t, w.asked, 1)
		require.Contains(t, w.asked[0].Text, "has not reported its end within 1h0m0s")
		w.closed()
	})
	t.Run("the run loses its machine during it", func(t *testing.T) {
		w := start(t)
		w.env.OnActivity(w.do.TalosInstalled, mock.Anything, mock.Anything).After(10*time.Minute).
			Return("", temporal.NewNonRetryableApplicationError("taken", activities.TypeFenced, nil))
		require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Len(t, w.asked, 1)
		require.Equal(t, []string{contract.Abort}, w.asked[0].Choices)
	})
}

func TestACancelledInstallationIsClosed(t *testing.T) {
	w := newForeign(t, foreign, nil)
	w.installs = func(g inventory.Grant) {
		w.loads(g)
		w.after(5*time.Minute, w.env.CancelWorkflow)
	}
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, inventory.StateCancelled, w.record().State)
	w.closed()
}

func TestAnInstallerIsRefusedBeforeThePower(t *testing.T) {
	for name, x := range map[string]struct {
		edit func(m *inventory.Machine)
		want string
	}{
		"two disks and no selector": {func(m *inventory.Machine) {
			m.Disks = append(m.Disks, inventory.DeclaredDisk{Device: "/dev/vdb"})
		}, "give the machine a diskSelector"},
		"no disk and no selector": {func(m *inventory.Machine) { m.Disks = nil }, "give the machine a diskSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newForeign(t, foreign, x.edit)
			require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), x.want)
			require.Zero(t, w.cycles)
			require.Zero(t, w.offs)
		})
	}
	t.Run("a selector is enough", func(t *testing.T) {
		w := newForeign(t, foreign, func(m *inventory.Machine) {
			m.Disks, m.DiskSelector = nil, &inventory.DiskSelector{Serial: "D1"}
		})
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	})
	t.Run("a missing image", func(t *testing.T) {
		w := newForeign(t, strings.Replace(foreign, "vmlinuz-x", "vmlinuz-y", 1), nil)
		require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), `there is no image "vmlinuz-y"`)
		require.Zero(t, w.offs)
	})
	t.Run("a document that its program would refuse", func(t *testing.T) {
		w := newForeign(
			t,
			strings.Replace(foreign, `{name: note, contents: "call {{ .webhook_url }}SUCCEEDED"}`, `{name: config, kind: harvester}`, 1),
			func(m *inventory.Machine) {
				m.UserData = inventory.NewSecret("scheme_version: 1\ntoken: geheim-geheim\nsurprise: yes\n")
			},
		)
		err := w.run(contract.ProvisionInput{Machine: machine})
		require.ErrorContains(t, err, "surprise")
		require.NotContains(t, err.Error(), "geheim")
		require.Zero(t, w.offs)
	})
}

// S44: a history never contains resolved documents or parameters.
func TestS44NoCapabilityInTheHistory(t *testing.T) {
	w := newForeign(t, foreign, nil)
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	rec := w.record()
	o := inventory.Owner{Machine: machine, Run: rec.Run, Epoch: rec.Epoch}
	capability := inventory.Capability(w.do.Site.ClaimKey, o)
	for _, m := range w.messages {
		require.NotContains(t, m, capability)
	}
	plan, err := w.Store.Plans.Plan(t.Context(), rec.Run)
	require.NoError(t, err)
	require.NotContains(t, plan.Documents[0].Contents, capability)
}
