package metadatasvc

import (
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// profile is the data that one client may get.
type profile struct {
	machine inventory.Machine
	grant   inventory.Grant
	secret  bool // includes user-data, and vendor-data with the phone-home nonce
	// byAddress includes user-data in the EC2 tree only; see inventory.Machine.UserDataByAddress.
	byAddress bool
	// document is the name of the requested document of the plan, or "" for other requests.
	document string
}

// boot returns the number of the current boot of the run of g, or 0 if there is no run.
func boot(g inventory.Grant) int {
	if g.Run == "" {
		return 0
	}
	return g.Boot
}

// hostname returns the host name of m in the metadata.
func hostname(m inventory.Machine) string { return cloudinit.FQDN(m) }
