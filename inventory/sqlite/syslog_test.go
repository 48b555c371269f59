package sqlite

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// S48: the newest lines of each machine stay, and a machine that sends many displaces its own only.
func TestS48SyslogIsBounded(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, put(t, w.Store, false, machine("m2", 2)))
	line := func(machine, text string, at time.Time) inventory.SyslogLine {
		return inventory.SyslogLine{Machine: machine, At: at, Severity: "info", Program: "kernel", Text: text}
	}
	require.NoError(t, w.Syslog.PutSyslog(ctx, nil))
	require.NoError(t, w.Syslog.PutSyslog(ctx, []inventory.SyslogLine{
		line("m2", "quiet", w.in(-time.Hour)), line("unknown", "nothing", w.in(0)),
	}))
	var many []inventory.SyslogLine
	for n := range maxSyslogLines + 20 {
		many = append(many, line("m1", fmt.Sprintf("%d %s", n, strings.Repeat("x", 2000)), w.in(0)))
	}
	require.NoError(t, w.Syslog.PutSyslog(ctx, many[:30]))
	require.NoError(t, w.Syslog.PutSyslog(ctx, many[30:]))

	got, err := w.Syslog.Syslog(ctx, inventory.SyslogFilter{Machine: "m1"})
	require.NoError(t, err)
	require.Len(t, got, maxSyslogLines)
	require.True(t, strings.HasPrefix(got[0].Text, "20 xx"), got[0].Text[:10])
	require.Len(t, got[0].Text, maxSyslogText)
	require.True(t, w.in(0).Equal(got[0].At))

	page, err := w.Syslog.Syslog(ctx, inventory.SyslogFilter{Machine: "m1", After: got[497].Seq})
	require.NoError(t, err)
	require.Equal(t, got[498:], page)
	page, err = w.Syslog.Syslog(ctx, inventory.SyslogFilter{Machine: "m1", Descending: true, Limit: 1})
	require.NoError(t, err)
	require.Equal(t, got[499:], page)

	got, err = w.Syslog.Syslog(ctx, inventory.SyslogFilter{Machine: "m2"})
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, "quiet", got[0].Text)
	n, err := w.Syslog.PruneSyslog(ctx, w.in(-time.Minute), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)

	require.NoError(t, w.Machines.DeleteMachine(ctx, "m1", "test"))
	var rows int
	require.NoError(t, w.ro.GetContext(ctx, &rows, "SELECT count(*) FROM syslog"))
	require.Zero(t, rows, "lines go with their machine")
}
