package agent

import (
	"context"
	"fmt"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/facts"
)

// A large number of disks does not prevent an agent from starting or an inspection from completing.
func TestInspectManyDisks(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	cfg := s.config()
	cfg.Finder = shelf(2000)
	s.start(cfg)
	res := s.result(s.give(0, action.Inspect, nil, nil))
	if res.State != action.Success || res.Output["disks"] != "2000" {
		t.Fatalf("%s %s %s", res.State, res.Message, res.Output["disks"])
	}
	if n := facts.JSONSize(res); n > 200<<10 {
		t.Fatalf("the report has %d bytes", n)
	}
	if n := facts.JSONSize(s.hellos[0]); n > action.MaxHello || s.hellos[0].Facts.Truncated == "" {
		t.Fatalf("the hello has %d bytes, left out %q", n, s.hellos[0].Facts.Truncated)
	}
}

// shelf is a machine with that many disks.
type shelf int

func (n shelf) Facts(context.Context) (action.Facts, error) {
	var f action.Facts
	for i := range int(n) {
		f.Disks = append(f.Disks, action.Disk{
			Path: fmt.Sprintf("/dev/sd%d", i), Serial: fmt.Sprintf("S%06d", i), Model: "a disk", Size: 1 << 40,
			ByID: []string{fmt.Sprintf("/dev/disk/by-id/x-S%06d", i)},
		})
	}
	return f, nil
}
