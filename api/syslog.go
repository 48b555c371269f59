package api

import (
	"context"
	"strconv"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// SyslogStore holds what machines have sent by syslog.
type SyslogStore interface {
	Syslog(ctx context.Context, f inventory.SyslogFilter) ([]inventory.SyslogLine, error)
}

type syslogOfMachine struct {
	byName
	httpapi.Page
}

// listSyslog returns a page of what a machine has sent by syslog, by number. The cursor is the number
// of the last line.
func (m *machines) listSyslog(ctx context.Context, q syslogOfMachine) (httpapi.List[inventory.SyslogLine], error) {
	var none httpapi.List[inventory.SyslogLine]
	found, err := m.find(ctx, q.Name)
	if err != nil {
		return none, err
	}
	f := inventory.SyslogFilter{Machine: found.Name}
	if f.After, f.Descending, err = cursor(q.Page); err != nil {
		return none, err
	}
	limit := pageLimit(q.Page)
	f.Limit = limit + 1 // one more shows whether the list continues
	lines, err := m.stores.Syslog.Syslog(ctx, f)
	if err != nil {
		return none, err
	}

	return httpapi.Cut(lines, limit, func(x inventory.SyslogLine) string { return strconv.FormatInt(x.Seq, 10) }), nil
}
