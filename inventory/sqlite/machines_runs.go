package sqlite

import (
	"context"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// keepForRuns is called in the transaction that changes the machines ms. It returns an inventory.Conflicts if a value would change on which
// an open run relies (see changesForRuns). If no run owns such a machine but an operator holds its grant, the change is allowed, and
// keepForRuns ends this grant.
func keepForRuns(ctx context.Context, tx *transaction, ms []inventory.Machine,
	stored map[string]*storedMachine, by string,
) error {
	var ps inventory.Problems
	for _, m := range ms {
		before := stored[m.Name]
		if before == nil {
			continue
		}

		field, err := changesForRuns(before.Machine, m)
		if err != nil {
			return err
		}
		if field == "" {
			continue
		}

		run, err := openRun(ctx, tx, m.Name)
		if err != nil {
			return err
		}

		if run != "" {
			ps.Add(field, "wait until the run has ended, or cancel it: ingot workflow cancel "+m.Name,
				"machine %q: run %s is open; MACs, addresses and disks cannot change until the run ends", m.Name, run)
			continue
		}

		g, err := grantOf(ctx, tx, m.Name)
		if err != nil {
			return err
		}
		if !g.ByOperator() {
			continue
		}
		if err := end(ctx, tx, g.Owner); err != nil {
			return err
		}
		if err := addOperatorEvent(ctx, tx, m.Name, by,
			"netboot closed: MACs, addresses or disks of the machine were changed"); err != nil {
			return err
		}
	}
	if len(ps) > 0 {
		return inventory.Conflicts(ps)
	}
	return nil
}

// changesForRuns compares two versions, a and b, of a machine. It returns the name of the first field that differs and that must not change
// while a run is open, or "" if there is none.
func changesForRuns(a, b inventory.Machine) (string, error) {
	nics := func(m inventory.Machine) any {
		out := []inventory.Interface{}
		for _, i := range m.Interfaces {
			out = append(out, inventory.Interface{
				MAC: i.MAC, Address: i.Address, Netmask: i.Netmask, Gateway: i.Gateway,
				DisableNetboot: i.DisableNetboot,
			})
		}
		return out
	}

	for _, f := range []struct {
		name string
		of   func(m inventory.Machine) any
	}{
		{"interfaces", nics},
		{"disks", func(m inventory.Machine) any { return append([]inventory.DeclaredDisk{}, m.Disks...) }},
		{"diskSelector", func(m inventory.Machine) any { return m.DiskSelector }},
		// During a run, a protected disk may be added but not removed: Bind and Assign read the list again.
		{"protectedDisks", func(m inventory.Machine) any {
			return slices.DeleteFunc(slices.Clone(a.ProtectedDisks),
				func(d action.DiskID) bool { return slices.Contains(m.ProtectedDisks, d) })
		}},
	} {
		x, err := toJSON(f.of(a))
		if err != nil {
			return "", err
		}
		y, err := toJSON(f.of(b))
		if err != nil {
			return "", err
		}
		if x != y {
			return f.name, nil
		}
	}
	return "", nil
}

// openRun returns the run that holds the machine's grant. If no run holds it, openRun returns a run of the machine that has not ended, or
// "" if there is none.
func openRun(ctx context.Context, tx *transaction, machine string) (string, error) {
	return optional(scalar[string](ctx, tx,
		`SELECT run FROM grant_ WHERE machine = ?1 AND run <> '' AND run NOT GLOB 'operator:*'
		UNION ALL SELECT run FROM workflow WHERE machine = ?1 AND final = 0 LIMIT 1`, machine))
}
