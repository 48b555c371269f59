package metadatasvc

import (
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// profile says which machine a client belongs to, and what the client may get.
type profile struct {
	machine inventory.Machine
	grant   inventory.Grant
	secret  bool // the client gets user-data, and vendor-data with the phone-home nonce
	// byAddress: the client gets user-data, but only in the EC2 tree; see inventory.Machine.UserDataByAddress.
	byAddress bool
	// document is the name of the requested document of the run's plan; "" = the request is for something else.
	document string
}

// boot returns the number of the current boot of the run that holds g, or 0 if no run holds g.
func boot(g inventory.Grant) int {
	if g.Run == "" {
		return 0
	}
	return g.Boot
}

// hostname returns the host name that the metadata contain for m.
func hostname(m inventory.Machine) string { return cloudinit.FQDN(m) }
