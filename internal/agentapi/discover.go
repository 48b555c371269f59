package agentapi

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// discoverEvery is how often the agent of an unknown machine reports, in seconds.
const discoverEvery = 60

// Discovery receives the reports of unknown machines.
type Discovery struct {
	// Guest reports whether DHCP has given this address to this unknown MAC.
	Guest func(mac string, address netip.Addr) bool
	// Report stores the hardware of an unknown machine. It returns the machine's name if the
	// machine is in the inventory now.
	Report func(ctx context.Context, mac string, facts action.Facts) (machine string, err error)
}

// discover stores the hardware of an unknown machine. It is an unknown path for everyone else: for
// a MAC and a source address that DHCP has not admitted together (security S3, S7).
func (s *server) discover(c *gin.Context) {
	var d action.Discovery
	if err := httpapi.Decode(c, lenient(maxHello), &d); err != nil {
		httpapi.Fail(c, err)
		return
	}
	mac, err := inventory.ParseMAC(d.MAC)
	source, addrErr := netip.ParseAddrPort(c.Request.RemoteAddr)
	if err != nil || addrErr != nil || s.Discovery.Guest == nil || !s.Discovery.Guest(mac, source.Addr().Unmap()) {
		httpapi.Fail(c, httpapi.NotFound())
		return
	}
	if err := checkProtocol(d.Protocol); err != nil {
		httpapi.Fail(c, err)
		return
	}
	machine, err := s.Discovery.Report(c.Request.Context(), mac, d.Facts)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	c.JSON(http.StatusOK, action.Discovered{Known: machine != "", Machine: machine, Again: discoverEvery})
}
