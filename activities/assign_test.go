package activities

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// planned is a store that holds one machine and the plan of one run.
type planned struct {
	unused
	plan     inventory.Plan
	lost     error // why there is no plan
	assigned []inventory.Assignment
	spared   []action.DiskID
	userData string // other than a cloud-config
}

func (p *planned) Machine(context.Context, string) (inventory.Machine, error) {
	return inventory.Machine{Name: "m1", ProtectedDisks: p.spared}, nil
}

func (p *planned) UserData(context.Context, string) (user, vendor inventory.Secret, err error) {
	return inventory.NewSecret(cmp.Or(p.userData, "#cloud-config")), vendor, nil
}

func (p *planned) DiskWritten(context.Context, inventory.Owner, action.Disk) error { return nil }

func (p *planned) Plan(context.Context, string) (inventory.Plan, error) { return p.plan, p.lost }

func (p *planned) Assign(_ context.Context, a inventory.Assignment) error {
	p.assigned = append(p.assigned, a)
	return nil
}

// S8: what is signed names machine, run, boot, attempt, plan, disk and the
// image's digest, and holds what the agent gets, secrets resolved.
func TestS8AssignmentsAreSigned(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	s := &planned{plan: inventory.Plan{Run: "r1", DiskAlias: "/dev/sda", Actions: []action.Action{
		{Name: "write", Image: "image2disk", Timeout: 60, Environment: map[string]string{"IMG_SHA256": "abc", "DEST_DISK": "/dev/sda"}},
		{Name: "seed", Image: "configdrive", Timeout: 60},
		{Name: "reboot", Image: "reboot", Timeout: 60},
	}}}
	s.plan.Digest, err = digest(s.plan.Actions)
	require.NoError(t, err)
	a := New(Config{
		Store:  storeOf(s),
		Site:   Site{PlanKey: private, ClaimKey: make([]byte, 32), MetadataURL: "http://192.0.2.1"},
		Clocks: Clocks{Now: time.Now},
	})
	owner := inventory.Owner{Machine: "m1", Run: "r1", Epoch: 4}
	disk := &action.Disk{Path: "/dev/vda", Serial: "S1", Size: 1 << 30}
	for n := range s.plan.Actions {
		key := action.Key{Epoch: 4, Action: n, Attempt: 2}
		for range 2 {
			require.NoError(t, a.Assign(t.Context(), AssignRequest{Owner: owner, Boot: 3, Key: key, Disk: disk}))
		}
		first, again := s.assigned[2*n], s.assigned[2*n+1]
		require.Equal(t, first, again, "the same each time")
		o, err := first.Payload.Signed.Verify(public)
		require.NoError(t, err)
		want := first.Payload
		want.Signed = nil
		require.Equal(t, action.Order{Machine: "m1", Boot: 3, Plan: s.plan.Digest, Assignment: want}, o)
		require.Equal(t, "r1", o.Run)
		require.Equal(t, key, o.Key)
		require.Equal(t, "S1", o.Disk.Serial)
	}
	var o action.Order
	require.NoError(t, json.Unmarshal(s.assigned[2].Payload.Signed.Order, &o))
	require.Equal(t, "#cloud-config", o.Action.Environment["USER_DATA"])

	// Actions that do not match the plan's digest are not signed.
	s.plan.Actions[0].Environment["IMG_SHA256"] = "def"
	before := len(s.assigned)
	err = a.Assign(t.Context(), AssignRequest{Owner: owner, Boot: 3, Key: action.Key{Epoch: 4, Attempt: 1}, Disk: disk})
	var app *temporal.ApplicationError
	require.ErrorAs(t, fail(err), &app)
	require.Equal(t, TypeInvalid, app.Type())
	require.Len(t, s.assigned, before)
}

// A disk that was protected after it was bound is not written, and the signed order tells
// the agent which disks are protected.
func TestAssignLeavesProtectedDisksAlone(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	s := &planned{plan: inventory.Plan{Run: "r1", Actions: []action.Action{{Name: "write", Image: "image2disk", Timeout: 60}}}}
	s.spared = []action.DiskID{{WWN: "0xAB"}}
	s.plan.Digest, err = digest(s.plan.Actions)
	require.NoError(t, err)
	a := New(Config{Store: storeOf(s), Site: Site{PlanKey: private}, Clocks: Clocks{Now: time.Now}})
	q := AssignRequest{
		Owner: inventory.Owner{Machine: "m1", Run: "r1", Epoch: 4},
		Boot:  1,
		Key:   action.Key{Epoch: 4, Attempt: 1},
		Disk:  &action.Disk{Path: "/dev/vda", WWN: "0xab"},
	}
	require.ErrorContains(t, a.Assign(t.Context(), q), "is protected")
	require.Empty(t, s.assigned)
	q.Disk.WWN = "0xcd"
	require.NoError(t, a.Assign(t.Context(), q))
	o, err := s.assigned[0].Payload.Signed.Verify(public)
	require.NoError(t, err)
	require.Equal(t, s.spared, o.Protected)
}

// A run that was reset continues under another id. Every request of it fails because it does
// not own the machine, and it asks an operator.
func TestAssignOfAResetRunIsFenced(t *testing.T) {
	c := &crowded{planned: planned{lost: inventory.ErrNotFound}}
	a := New(Config{Store: storeOf(c), Clocks: Clocks{Now: time.Now}})
	for run, want := range map[string]string{"r2": TypeFenced, "r1": TypeNotFound} {
		owner := inventory.Owner{Machine: "m1", Run: run, Epoch: 1}
		var app *temporal.ApplicationError
		require.ErrorAs(t, fail(a.Assign(t.Context(), AssignRequest{Owner: owner, Key: action.Key{Epoch: 1, Attempt: 1}})), &app)
		require.Equal(t, want, app.Type(), run)
	}
}
