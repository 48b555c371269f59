package cli

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/inventory"
)

func TestNoticesInWords(t *testing.T) {
	require.Equal(t, "https://example.com", noticeStatus(apitypes.NotifyStatus{Receiver: "https://example.com"}))
	text := noticeStatus(apitypes.NotifyStatus{Receiver: "https://example.com", Error: "the receiver\x1b[2J answers 503", Dropped: 3})
	require.Contains(t, text, "3 given up")
	require.NotContains(t, text, "\x1b")
}

// A host where parts of its site are missing says what an operator can do.
func TestSiteNamesTheWayOutOfMissingParts(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printSite(&out, inventory.SiteStatus{Role: siterole.Active, Prepared: "h1", Silent: "inventory.db is missing"}))
	require.Contains(t, out.String(), "put the missing file back")
}

// S33: another DHCP server is in the status.
func TestStatusNamesASecondDHCPServer(t *testing.T) {
	var out bytes.Buffer
	tab := NewTable(&out)
	statusFields(tab, apitypes.Status{Netboot: apitypes.NetbootStatus{Rivals: []inventory.Rival{
		{Server: netip.MustParseAddr("10.10.20.66"), Where: "eth1", Machine: "node-1\x1b[2J", Last: time.Now()},
		{Server: netip.MustParseAddr("10.10.20.67"), Where: "eth1", Ingot: true, Last: time.Now()},
	}}})
	require.NoError(t, tab.Flush())
	require.Contains(t, out.String(), "another DHCP server at 10.10.20.66 was chosen by machine node-1")
	require.Contains(t, out.String(), "another Ingot server at 10.10.20.67 answers clients (eth1)")
	require.NotContains(t, out.String(), "\x1b")
}

// The status names who waits, for what, and the command that answers.
func TestStatusShowsWhoWaits(t *testing.T) {
	var out bytes.Buffer
	tab := NewTable(&out)
	statusFields(tab, apitypes.Status{Waiting: []apitypes.WaitingStatus{
		{Name: "node-1", Since: time.Now(), Text: "disk \x1b[2Jholds ext4\nmore", Next: "ingot workflow decide node-1 --choice retry"},
	}, MoreWaiting: true})
	require.NoError(t, tab.Flush())
	require.Regexp(t, `waits: +node-1, .*: disk .*holds ext4`, out.String())
	require.Regexp(t, `answer: +ingot workflow decide node-1 --choice retry`, out.String())
	require.Contains(t, out.String(), "more: ingot workflow list --state waiting")
	require.NotContains(t, out.String(), "\x1b")
}
