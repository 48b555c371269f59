package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ingotmetal/ingot/inventory"
)

// Retire takes o's machine out of service and stores its standing st, in one transaction. It deletes the machine's user data and vendor
// data, the plans of its other runs, and the contents of their assignments. If st says that the machine is available, it also deletes the
// records that say which run wrote to which disk. Unless keepAddress is set, it removes the reserved addresses. The BMC's password is kept,
// because it belongs to the hardware. When Retire is called again, it changes only the standing.
func (s Machines) Retire(ctx context.Context, o inventory.Owner, st inventory.Standing, keepAddress bool) error {
	what := fmt.Sprintf("retiring machine %q", o.Machine)
	if st.State != inventory.StandingAvailable && st.State != inventory.StandingQuarantined {
		return fmt.Errorf("%s: standing %q: %w", what, st.State, inventory.ErrInvalid)
	}

	st.Run = o.Run
	standing, err := toJSON(st)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.write(ctx, what, func(tx *transaction) error {
		doc, err := scalar[string](ctx, tx, "SELECT doc FROM machine WHERE name = ?1 AND "+held, o.Machine, o.Run, o.Epoch)
		if errors.Is(err, inventory.ErrNotFound) {
			return fencedOr(ctx, tx, o, err)
		}
		if err != nil {
			return err
		}

		var more []boundStatement
		if !keepAddress {
			if doc, err = withoutAddresses(doc); err != nil {
				return err
			}
			more = append(more, stmt("UPDATE interface SET address = NULL WHERE machine = ?", o.Machine))
		}
		// In quarantine, the disks still count as written by Ingot, because the wipe could not be verified.
		if st.State == inventory.StandingAvailable {
			more = append(more, stmt("DELETE FROM disk_written WHERE machine = ?", o.Machine),
				stmt("DELETE FROM installation WHERE machine = ?", o.Machine))
		}

		if err := forgetOtherPlans(ctx, tx, o); err != nil {
			return err
		}
		err = doAll(ctx, tx, append(more,
			stmt("UPDATE machine SET doc = ?, user_data = NULL, vendor_data = NULL, version = version + 1, updated = ? WHERE name = ?",
				doc, nanos(s.now()), o.Machine),
			stmt("UPDATE assignment SET sealed = x'' WHERE machine = ?1 AND run <> ?2", o.Machine, o.Run),
			stmt(`INSERT INTO standing (machine, state, doc) VALUES (?,?,?)
				ON CONFLICT (machine) DO UPDATE SET state = excluded.state, doc = excluded.doc`, o.Machine, st.State, standing),
		)...)
		if err != nil {
			return err
		}

		message := st.State
		if st.Reason != "" {
			message += ": " + st.Reason
		}
		return addEvent(ctx, tx, o.Event(0, inventory.EventRetired, "", message))
	})
}

// withoutAddresses gets the JSON document of a machine, and returns it without the reserved addresses, netmasks and gateways.
func withoutAddresses(doc string) (string, error) {
	var m inventory.Machine
	if err := json.Unmarshal([]byte(doc), &m); err != nil {
		return "", err
	}

	for n := range m.Interfaces {
		i := &m.Interfaces[n]
		i.Address, i.Netmask, i.Gateway = netip.Addr{}, "", netip.Addr{}
	}
	return toJSON(m)
}

// Release returns a machine to service after an operator has checked it. If the machine is in service already, nothing changes.
func (s Machines) Release(ctx context.Context, machine, by string) error {
	return s.writeOnce(ctx, fmt.Sprintf("releasing machine %q", machine), func(tx *transaction) error {
		n, err := exec(ctx, tx, "DELETE FROM standing WHERE machine = ?", machine)
		if err != nil {
			return err
		}
		if n == 0 {
			return get(ctx, tx, &n, "SELECT 1 FROM machine WHERE name = ?", machine)
		}
		return addOperatorEvent(ctx, tx, machine, by, "machine released")
	})
}
