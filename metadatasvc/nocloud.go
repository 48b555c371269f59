package metadatasvc

import "github.com/ingotmetal/ingot/internal/seed"

// nocloud returns a document of the NoCloud seed of p, which must be secret, or the list of them.
func (s *Server) nocloud(p profile, path string) ([]byte, bool) {
	return tree{asked: path, leaves: map[string][]byte{
		"meta-data":      seed.MetaData(p.machine, ""),
		"user-data":      seed.UserData(p.machine),
		"vendor-data":    seed.VendorData(p.machine, s.phoneHome(p)),
		"network-config": seed.NetworkConfig(p.machine),
	}}.get()
}
