package activities

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// crowded is a machine with more disks than its agent could report.
type crowded struct {
	planned
	unused
	facts action.Facts
}

func (c *crowded) Agent(context.Context, inventory.Owner) (inventory.Agent, error) {
	return inventory.Agent{Facts: c.facts}, nil
}

func (c *crowded) Grant(context.Context, string) (inventory.Grant, error) {
	return inventory.Grant{Owner: inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}}, nil
}

func (c *crowded) DisksWritten(context.Context, string) (map[string]string, error) {
	return map[string]string{}, nil
}

func (c *crowded) AppendEvents(context.Context, []inventory.Event) error { return nil }

// A protected disk is never chosen: not as the only disk, not by its serial number, and not
// by an operator.
func TestBindLeavesProtectedDisksAlone(t *testing.T) {
	disk := func(n string) action.Disk {
		return action.Disk{Path: "/dev/" + n, Serial: n, Size: 1 << 30, Blank: true}
	}
	c := &crowded{facts: action.Facts{Disks: []action.Disk{disk("S1"), disk("S2")}}}
	c.spared = []action.DiskID{{Serial: "S1"}}
	a := New(Config{Store: storeOf(c), Clocks: Clocks{Now: time.Now}})
	owner := inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}
	b, err := a.Bind(t.Context(), BindRequest{Owner: owner})
	require.NoError(t, err)
	require.NotNil(t, b.Disk, "one is left: %s", b.Reason)
	require.Equal(t, "S2", b.Disk.Serial)
	b, err = a.Bind(t.Context(), BindRequest{Owner: owner, Selector: &inventory.DiskSelector{Serial: "S1"}})
	require.NoError(t, err)
	require.Nil(t, b.Disk)
	require.Contains(t, b.Reason, `protected, so never written: /dev/S1 (serial "S1"`)
}

// A disk that the agent could not report may match as well: only a selector of one unique
// disk is accepted then.
func TestBindAsksWhenDisksAreLeftOut(t *testing.T) {
	c := &crowded{facts: action.Facts{
		DisksOmitted: 3, Truncated: "by-id names, 3 disks", Disks: []action.Disk{{Path: "/dev/sda", Serial: "S1", Size: 1 << 30, Blank: true}},
	}}
	a := New(Config{Store: storeOf(c), Clocks: Clocks{Now: time.Now}})
	owner := inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}
	for reason, s := range map[string]*inventory.DiskSelector{
		"3 more disks": nil, "give the serial number": {MinSize: 1}, "by-id names": {Serial: "S2"}, "": {Serial: "S1"},
	} {
		b, err := a.Bind(t.Context(), BindRequest{Owner: owner, Selector: s})
		require.NoError(t, err)
		require.Equal(t, reason == "", b.Disk != nil, reason)
		require.Contains(t, b.Reason, reason)
	}
}
