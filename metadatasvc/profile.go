package metadatasvc

import (
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// profile is what one caller may see.
type profile struct {
	machine inventory.Machine
	grant   inventory.Grant
	secret  bool // user-data and vendor-data, which carries the nonce
	// byAddress: the user-data of the EC2 tree alone, see inventory.Machine.UserDataByAddress.
	byAddress bool
	// document is the name of the requested document of the plan; "" = none.
	document string
}

// boot returns the boot of g's run, or 0 without a run.
func boot(g inventory.Grant) int {
	if g.Run == "" {
		return 0
	}
	return g.Boot
}

// hostname returns the machine's name in the tree.
func hostname(m inventory.Machine) string { return cloudinit.FQDN(m) }
