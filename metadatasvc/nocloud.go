package metadatasvc

import "github.com/ingotmetal/ingot/internal/documents/cloudinit"

// nocloud returns a document of the NoCloud seed for p. For the path "", it returns the list of these documents. For an unknown path, it
// returns false. p.secret must be true.
func (s *Server) nocloud(p profile, path string) ([]byte, bool) {
	return tree{asked: path, leaves: map[string][]byte{
		"meta-data":      cloudinit.MetaData(p.machine, ""),
		"user-data":      cloudinit.UserData(p.machine),
		"vendor-data":    cloudinit.VendorData(p.machine, s.phoneHomeURL(p)),
		"network-config": cloudinit.NetworkConfig(p.machine),
	}}.get()
}
