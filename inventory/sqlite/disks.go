package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Disks are the records of disks to which runs have written.
type Disks struct{ *db }

// DiskWritten records that o's run is about to write to disk d of its machine. If the machine was available, it is in service from then on.
// If the disk has neither a serial number nor a WWN, the error is inventory.ErrInvalid, because Ingot could not recognize the disk later.
func (s Disks) DiskWritten(ctx context.Context, o inventory.Owner, d action.Disk) error {
	ids := d.ID().Keys()
	what := fmt.Sprintf("recording the written disk %q of machine %q", d.Path, o.Machine)
	if len(ids) == 0 {
		return fmt.Errorf("%s: the disk has neither serial nor WWN: %w", what, inventory.ErrInvalid)
	}
	return s.write(ctx, what, func(tx *transaction) error {
		for _, id := range ids {
			n, err := exec(ctx, tx, `INSERT INTO disk_written (machine, identity, run, at) SELECT ?1, ?4, ?2, ?5 WHERE `+held+`
				ON CONFLICT (machine, identity) DO UPDATE SET run = excluded.run, at = excluded.at`,
				o.Machine, o.Run, o.Epoch, id, nanos(s.now()))
			if err != nil {
				return err
			}
			if n == 0 {
				return fencedOr(ctx, tx, o, errors.New("nothing was recorded"))
			}
		}

		// When a run writes to an available machine, the machine is in service again.
		tx.show(o.Machine)
		return do(ctx, tx, "DELETE FROM standing WHERE machine = ? AND state = ?", o.Machine, inventory.StandingAvailable)
	})
}

// DisksWritten returns the run that last wrote to each disk of a machine. The keys of the map identify the disks, as "serial:X" or "wwn:Y".
func (s Disks) DisksWritten(ctx context.Context, machine string) (map[string]string, error) {
	var rows []struct{ Identity, Run string }
	if err := s.ro.SelectContext(ctx, &rows, "SELECT identity, run FROM disk_written WHERE machine = ?",
		machine); err != nil {
		return nil, fmt.Errorf("listing written disks of machine %q: %w", machine, err)
	}
	out := make(map[string]string, len(rows))
	for _, r := range rows {
		out[r.Identity] = r.Run
	}
	return out, nil
}
