package sqlite

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Syslog stores the lines that machines have sent by syslog.
type Syslog struct{ *db }

// Limits for the syslog lines of a machine. They are needed because another host can send lines with the machine's address (security S48).
const (
	maxSyslogLines = 500 // lines that are kept for each machine
	maxSyslogText  = 512 // bytes
)

// PutSyslog stores lines, and keeps the newest maxSyslogLines of each machine. Lines whose machine is not in the inventory are ignored.
func (s Syslog) PutSyslog(ctx context.Context, lines []inventory.SyslogLine) error {
	if len(lines) == 0 {
		return nil
	}
	return s.write(ctx, "recording what machines sent by syslog", func(tx *transaction) error {
		machines := map[string]bool{}
		for _, l := range lines {
			machines[l.Machine] = true
			err := do(ctx, tx, `INSERT INTO syslog (machine, at, severity, program, text)
				SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM machine WHERE name = ?1)`,
				l.Machine, nanos(l.At), clip(l.Severity, 16), clip(l.Program, 64), clip(l.Text, maxSyslogText))
			if err != nil {
				return err
			}
		}

		for _, machine := range slices.Sorted(maps.Keys(machines)) {
			err := do(ctx, tx, `DELETE FROM syslog WHERE machine = ?1 AND seq <=
				(SELECT seq FROM syslog WHERE machine = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)`, machine, maxSyslogLines)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

type syslogRow struct {
	inventory.SyslogLine
	At int64
}

func (r syslogRow) value() (inventory.SyslogLine, error) {
	r.SyslogLine.At = moment(r.At)
	return r.SyslogLine, nil
}

// Syslog returns the lines of f.Machine that f selects.
func (s Syslog) Syslog(ctx context.Context, f inventory.SyslogFilter) ([]inventory.SyslogLine, error) {
	q := selection{query: "SELECT seq, machine, at, severity, program, text FROM syslog WHERE true"}
	order, beyond, after := "seq", "seq > ?", f.After
	if f.Descending {
		order, beyond, after = "seq DESC", "seq < ?", cmp.Or(f.After, math.MaxInt64)
	}
	q.where(true, "machine = ?", f.Machine)
	q.where(true, beyond, after)
	q.page(order, cmp.Or(max(f.Limit, 0), 1000))
	out, err := list[syslogRow](ctx, s.ro, q.query, q.args...)
	return out, wrap(err, "listing what machine %q sent by syslog", f.Machine)
}

// PruneSyslog deletes lines from before the given time, but at most limit lines. It returns the number of deleted lines.
func (s Syslog) PruneSyslog(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "lines of syslog", find: "SELECT seq FROM syslog WHERE at < ?1 ORDER BY at LIMIT ?2",
		remove: "DELETE FROM syslog WHERE seq = ?1 AND at < ?2",
	}, before, limit)
}
