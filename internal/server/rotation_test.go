package server

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// idle is a machine that is off.
type idle struct{ lab.Chassis }

func (idle) PowerState() lab.PowerState { return lab.Off }

const firstPassword = "canary-first-1"

// rotationBench is a server with one machine, whose BMC is a Redfish service.
type rotationBench struct {
	*server
	service *lab.Redfish
	owner   inventory.Owner
}

func newRotationBench(t *testing.T, shape lab.RedfishShape) *rotationBench {
	t.Helper()
	cfg := testConfig(t)
	cfg.BMC.Networks = []string{"127.0.0.0/8"}
	b := &rotationBench{server: testServer(t, cfg), service: lab.NewRedfish(idle{}, shape, "ingot", firstPassword)}
	web := httptest.NewTLSServer(b.service)
	t.Cleanup(web.Close)
	u, err := url.Parse(web.URL)
	require.NoError(t, err)
	port, err := strconv.Atoi(u.Port())
	require.NoError(t, err)
	require.NoError(t, b.records.store.Machines.PutMachines(t.Context(), []inventory.Machine{{
		Name: "m1", Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:01"}},
		BMC: &inventory.BMC{
			Driver: inventory.DriverRedfish, Host: u.Hostname(), Port: port, User: "ingot", Password: inventory.NewSecret(firstPassword),
		},
	}}, true, "test"))
	g, err := b.records.store.Grants.TakeGrant(t.Context(), "m1", "run-1", "bmc/m1/job", false)
	require.NoError(t, err)
	b.owner = g.Owner
	return b
}

func (b *rotationBench) machine(t *testing.T) inventory.Machine {
	t.Helper()
	m, err := b.records.store.Machines.Machine(t.Context(), "m1")
	require.NoError(t, err)
	return m
}

func always(context.Context) error { return nil }

// settled requires that the BMC accepts the stored password, that it is the only one, and returns it.
func (b *rotationBench) settled(t *testing.T, what string) string {
	t.Helper()
	ctx := t.Context()
	password, err := b.controllers.rotation().Password(ctx, b.machine(t))
	require.NoError(t, err, what)
	_, err = b.controllers.driver.State(ctx, b.machine(t).Controller(), password)
	require.NoError(t, err, what)
	stored, err := b.records.store.BMCPasswords.BMCPassword(ctx, "m1")
	require.NoError(t, err, what)
	require.Equal(t, stored.Reveal(), password.Reveal(), what)
	candidate, _, err := b.records.store.BMCPasswords.BMCCandidate(ctx, "m1")
	require.NoError(t, err, what)
	require.True(t, candidate.IsZero(), "%s: no candidate is left", what)
	return password.Reveal()
}

// killer is the store and the BMC of a process that dies at its n-th call, before or after the call takes effect.
type killer struct {
	activities.RotationStore
	activities.PasswordBMC
	calls, n int
	after    bool
}

type killed struct{}

// die carries out a call and ends the process if it is the n-th.
func (k *killer) die(do func()) {
	k.calls++
	last := k.calls == k.n // a call may contain others
	if last && !k.after {
		panic(killed{})
	}
	do()
	if last {
		panic(killed{})
	}
}

func (k *killer) BMCPassword(ctx context.Context, m string) (p inventory.Secret, err error) {
	k.die(func() { p, err = k.RotationStore.BMCPassword(ctx, m) })
	return p, err
}

func (k *killer) BMCCandidate(ctx context.Context, m string) (p inventory.Secret, run string, err error) {
	k.die(func() { p, run, err = k.RotationStore.BMCCandidate(ctx, m) })
	return p, run, err
}

func (k *killer) PutBMCCandidate(ctx context.Context, o inventory.Owner, p inventory.Secret) (err error) {
	k.die(func() { err = k.RotationStore.PutBMCCandidate(ctx, o, p) })
	return err
}

func (k *killer) CommitBMCCandidate(ctx context.Context, m string, p inventory.Secret) (err error) {
	k.die(func() { err = k.RotationStore.CommitBMCCandidate(ctx, m, p) })
	return err
}

func (k *killer) State(ctx context.Context, b inventory.BMC, p inventory.Secret) (s string, err error) {
	k.die(func() { s, err = k.PasswordBMC.State(ctx, b, p) })
	return s, err
}

func (k *killer) SetPassword(ctx context.Context, b inventory.BMC, p, next inventory.Secret,
	fence func(context.Context) error,
) (err error) {
	k.die(func() { err = k.PasswordBMC.SetPassword(ctx, b, p, next, fence) })
	return err
}

// run rotates the password in a process that dies at call n. It reports whether the process has died.
func (k *killer) run(t *testing.T, b *rotationBench) (died bool) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			require.Equal(t, killed{}, r)
			died = true
		}
	}()
	require.NoError(t, (&activities.Rotation{Store: k, BMC: k}).Rotate(t.Context(), b.machine(t), b.owner, always))
	return false
}

// TestS26RotationSurvivesAKill: whenever the server is killed while it changes the password of a BMC, the password that the BMC
// accepts is a stored one. It is found by the next attempt of the same run, and by another operation after the run has ended.
func TestS26RotationSurvivesAKill(t *testing.T) {
	for _, shape := range []lab.RedfishShape{lab.RedfishDell, lab.RedfishHPE, lab.RedfishSupermicro} {
		for _, after := range []bool{false, true} {
			for _, resumes := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s after=%t resumes=%t", shape, after, resumes), func(t *testing.T) {
					t.Parallel()
					kills, changed := 0, 0
					for n := 1; ; n++ {
						b := newRotationBench(t, shape)
						k := &killer{RotationStore: b.records.store.BMCPasswords, PasswordBMC: b.controllers.driver, n: n, after: after}
						if !k.run(t, b) {
							break
						}
						kills++
						what := fmt.Sprintf("killed at call %d", n)
						if resumes {
							require.NoError(t, b.controllers.rotation().Rotate(t.Context(), b.machine(t), b.owner, always), what)
						}
						require.NoError(t, b.records.store.Grants.EndGrant(t.Context(), b.owner))
						now := b.settled(t, what)
						if now != firstPassword {
							changed++
						}
						require.False(t, resumes && now == firstPassword, "%s: the password was not changed", what)
					}
					require.Equal(t, 8, kills, "calls of an undisturbed rotation")
					require.Positive(t, changed)
				})
			}
		}
	}
}

// TestS26RotationOfAHostileBMC: a BMC that refuses, ignores or loses the change leaves one password, which it accepts. The
// password is in no error.
func TestS26RotationOfAHostileBMC(t *testing.T) {
	const account = "/redfish/v1/AccountService/Accounts/2"
	for name, x := range map[string]struct {
		fault   lab.RedfishFault
		ok, new bool
	}{
		"none":        {lab.RedfishFault{Count: -1}, true, true},
		"refused":     {lab.RedfishFault{Method: "PATCH", Path: account, Status: 400}, false, false},
		"ignored":     {lab.RedfishFault{Method: "PATCH", Path: account, Lie: true}, false, false},
		"dropped":     {lab.RedfishFault{Method: "PATCH", Path: account, Drop: true}, false, false},
		"lost":        {lab.RedfishFault{Method: "PATCH", Path: account, Lose: true}, true, true},
		"unavailable": {lab.RedfishFault{Path: account, Status: 503}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newRotationBench(t, lab.RedfishSupermicro)
			b.service.Pretend(x.fault)
			err := b.controllers.rotation().Rotate(t.Context(), b.machine(t), b.owner, always)
			require.Equal(t, x.ok, err == nil, "%v", err)
			if err != nil {
				require.NotContains(t, err.Error(), firstPassword)
			}
			b.service.Pretend()
			require.NoError(t, b.records.store.Grants.EndGrant(t.Context(), b.owner))
			require.Equal(t, x.new, b.settled(t, name) != firstPassword)
			now, _ := b.service.Sessions()
			require.Zero(t, now)
		})
	}
}

// TestS26AnotherOperationKeepsTheCandidate: an operation that runs during a rotation does not remove the password that is about to
// be set, and a run that has lost its machine sets none.
func TestS26AnotherOperationKeepsTheCandidate(t *testing.T) {
	b := newRotationBench(t, lab.RedfishHPE)
	ctx, store := t.Context(), b.records.store
	between := func(context.Context) error {
		password, err := b.records.store.BMCPasswords.BMCPassword(ctx, "m1")
		require.NoError(t, err)
		candidate, _, err := store.BMCPasswords.BMCCandidate(ctx, "m1")
		require.NoError(t, err)
		require.False(t, candidate.IsZero())
		require.Equal(t, firstPassword, password.Reveal())
		require.ErrorIs(t, store.BMCPasswords.DropBMCCandidate(ctx, "m1", candidate, ""), inventory.ErrConflict)
		return nil
	}
	require.NoError(t, b.controllers.rotation().Rotate(ctx, b.machine(t), b.owner, between))
	second := b.settled(t, "rotated")
	require.NotEqual(t, firstPassword, second)

	require.NoError(t, store.Grants.EndGrant(ctx, b.owner))
	require.ErrorIs(t, b.controllers.rotation().Rotate(ctx, b.machine(t), b.owner, always), inventory.ErrFenced)
	require.Equal(t, second, b.settled(t, "fenced"))
}

// TestS50RetargetingClearsBothPasswords: neither the password nor the one that a rotation is setting reaches another address.
func TestS50RetargetingClearsBothPasswords(t *testing.T) {
	b := newRotationBench(t, lab.RedfishHPE)
	ctx, store := t.Context(), b.records.store
	require.NoError(t, store.BMCPasswords.PutBMCCandidate(ctx, b.owner, inventory.NewSecret("canary-second-2")))
	m := b.machine(t)
	require.NoError(t, store.Machines.PutMachines(ctx, []inventory.Machine{m}, true, "test"))
	candidate, run, err := store.BMCPasswords.BMCCandidate(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, []string{"canary-second-2", "run-1"}, []string{candidate.Reveal(), run}, "an unchanged BMC keeps it")

	m.BMC.Host = "127.0.0.2"
	require.NoError(t, store.Machines.PutMachines(ctx, []inventory.Machine{m}, true, "test"))
	candidate, _, err = store.BMCPasswords.BMCCandidate(ctx, "m1")
	require.NoError(t, err)
	require.True(t, candidate.IsZero())
	password, err := store.BMCPasswords.BMCPassword(ctx, "m1")
	require.NoError(t, err)
	require.True(t, password.IsZero())
}

// TestS29EveryCallerSharesTheCount: an interrupted change of the password left two that are wrong. Whatever asks, the BMC refuses
// three log-ins, also across a restart, and then one with each password for each order of the operator, until the password is corrected.
func TestS29EveryCallerSharesTheCount(t *testing.T) {
	b := newRotationBench(t, lab.RedfishSupermicro)
	ctx := t.Context()
	enter := func(password string) {
		m := b.machine(t)
		m.BMC.Password = inventory.NewSecret(password)
		require.NoError(t, b.records.store.Machines.PutMachines(ctx, []inventory.Machine{m}, true, "test"))
	}
	enter("canary-wrong-1")
	require.NoError(t, b.records.store.BMCPasswords.PutBMCCandidate(ctx, b.owner, inventory.NewSecret("canary-wrong-2")))
	check := func(retry bool) error {
		_, err := b.controllers.check(ctx, b.machine(t), retry)
		return err
	}
	for range 2 {
		for range 3 {
			require.ErrorIs(t, check(false), inventory.ErrRefused)
			require.ErrorIs(t, b.controllers.rotation().Rotate(ctx, b.machine(t), b.owner, always), inventory.ErrRefused)
		}
		require.Equal(t, 3, b.service.Refused())
		var err error
		b.controllers, err = b.newControllers() // another process
		require.NoError(t, err)
	}
	err := check(false)
	require.ErrorIs(t, err, inventory.ErrResting)
	require.ErrorContains(t, err, "ingot bmc check m1 --retry")
	require.ErrorIs(t, check(true), inventory.ErrRefused)
	require.ErrorIs(t, check(false), inventory.ErrResting)
	require.Equal(t, 5, b.service.Refused(), "one with each of the two")

	enter(firstPassword)
	require.NoError(t, check(false), "corrected")
	require.Equal(t, firstPassword, b.settled(t, "corrected"))
}

// TestS29ARestingCandidateHidesNoPassword: a change of the password that did not come into force left a candidate, which the BMC
// has refused until it rests, because the present password could not be proven then. The present one is used all the same.
func TestS29ARestingCandidateHidesNoPassword(t *testing.T) {
	for _, retry := range []bool{false, true} {
		t.Run(fmt.Sprintf("retry=%t", retry), func(t *testing.T) {
			b := newRotationBench(t, lab.RedfishSupermicro)
			ctx := t.Context()
			require.NoError(t, b.records.store.BMCPasswords.PutBMCCandidate(ctx, b.owner, inventory.NewSecret("canary-wrong")))
			refused := []inventory.Secret{inventory.NewSecret("canary-wrong")}
			if retry { // the present password was refused, too, and then the operator has set it at the BMC
				refused = append(refused, inventory.NewSecret(firstPassword))
				b.service.Pretend(lab.RedfishFault{Method: "POST", Path: "/redfish/v1/SessionService/Sessions", Status: 401})
			}
			for range 3 {
				for _, password := range refused {
					_, err := b.controllers.driver.State(ctx, b.machine(t).Controller(), password)
					require.ErrorIs(t, err, inventory.ErrRefused)
				}
			}
			b.service.Pretend()

			for range 2 {
				_, err := b.controllers.check(ctx, b.machine(t), retry)
				require.NoError(t, err)
			}
			require.NoError(
				t,
				b.records.store.BMCPasswords.DropBMCCandidate(ctx, "m1", inventory.NewSecret("canary-wrong"), b.owner.Run),
				"it was kept",
			)
		})
	}
}
