package api

import (
	"context"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// SyslogStore holds the syslog lines that machines have sent.
type SyslogStore interface {
	Syslog(ctx context.Context, f inventory.SyslogFilter) ([]inventory.SyslogLine, error)
}

type syslogOfMachine struct {
	byName
	httpapi.Page
}

// listSyslog returns a page of the syslog lines of a machine, ordered by their number.
func (m *machines) listSyslog(ctx context.Context, q syslogOfMachine) (httpapi.List[inventory.SyslogLine], error) {
	found, err := m.find(ctx, q.Name)
	if err != nil {
		return httpapi.List[inventory.SyslogLine]{}, err
	}
	return pageByNumber(q.Page, func(after int64, descending bool, limit int) ([]inventory.SyslogLine, error) {
		return m.stores.Syslog.Syslog(ctx, inventory.SyslogFilter{
			Machine: found.Name, After: after, Descending: descending, Limit: limit,
		})
	}, func(x inventory.SyslogLine) int64 { return x.Seq })
}
