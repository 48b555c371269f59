package metadatasvc

import "github.com/ingotmetal/ingot/internal/seed"

// nocloud returns the NoCloud seed of p, which must be secret.
func (s *Server) nocloud(p profile) tree {
	return tree{
		"meta-data":      seed.MetaData(p.machine, ""),
		"user-data":      seed.UserData(p.machine),
		"vendor-data":    seed.VendorData(p.machine, s.phoneHome(p)),
		"network-config": seed.NetworkConfig(p.machine),
	}
}
