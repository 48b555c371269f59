package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/site"
	"github.com/ingotmetal/ingot/inventory"
)

func TestNoticesInWords(t *testing.T) {
	require.Equal(t, "https://example.com", noticeStatus(api.NotifyStatus{Receiver: "https://example.com"}))
	text := noticeStatus(api.NotifyStatus{Receiver: "https://example.com", Error: "the receiver\x1b[2J answers 503", Dropped: 3})
	require.Contains(t, text, "3 given up")
	require.NotContains(t, text, "\x1b")
}

// A host where parts of its site are missing says what an operator can do.
func TestSiteNamesTheWayOutOfMissingParts(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printSite(&out, inventory.SiteStatus{Role: site.Active, Prepared: "h1", Silent: "inventory.db is missing"}))
	require.Contains(t, out.String(), "put the file back")
}
