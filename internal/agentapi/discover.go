package agentapi

import (
	"net/http"
	"net/netip"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// discoverEvery is the interval, in seconds, at which the agent of an unknown machine must report.
const discoverEvery = 60

// discover stores the hardware of an unknown machine. It returns 404 unless Discovery.Guest accepts the reported MAC
// together with the source address of the request (security S3, S7). The rate of requests is limited per source
// address, which is checked before the body is read, and per MAC.
func (s *server) discover(c *gin.Context) {
	source, addrErr := netip.ParseAddrPort(c.Request.RemoteAddr)
	address := source.Addr().Unmap()
	if s.reported.isRecent(address.String(), s.Now()) {
		httpapi.Fail(c, refuseReport())
		return
	}
	var d action.Discovery
	if err := httpapi.Decode(c, lenientBody(maxHello), &d); err != nil {
		httpapi.Fail(c, err)
		return
	}
	mac, err := inventory.ParseMAC(d.MAC)
	if err != nil || addrErr != nil || s.Discovery.Guest == nil || !s.Discovery.Guest(c.Request.Context(), mac, address) {
		httpapi.Fail(c, httpapi.NotFound())
		return
	}
	if !s.reported.begin(mac, address.String(), s.Now()) {
		httpapi.Fail(c, refuseReport())
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
