package metadatasvc

import "github.com/ingotmetal/ingot/internal/documents/cloudinit"

// nocloud returns a document of p's NoCloud seed, or the list of its documents for the path "". It returns false for an
// unknown path. p.secret must be true.
func (s *Server) nocloud(p profile, path string) ([]byte, bool) {
	return tree{asked: path, leaves: map[string][]byte{
		"meta-data":      cloudinit.MetaData(p.machine, ""),
		"user-data":      cloudinit.UserData(p.machine),
		"vendor-data":    cloudinit.VendorData(p.machine, s.phoneHomeURL(p)),
		"network-config": cloudinit.NetworkConfig(p.machine),
	}}.get()
}
