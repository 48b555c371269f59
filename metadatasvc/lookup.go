package metadatasvc

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// phoneHomeURL returns the URL that the system installed by p's run requests to report that it is up. It returns "" if there is no run, or
// if the client must not get this URL.
func (s *Server) phoneHomeURL(p profile) string {
	if !p.secret && !p.byAddress || p.grant.Run == "" {
		return ""
	}
	return cloudinit.PhoneHomeURL(s.cfg.URL, s.cfg.Key, p.grant.Owner)
}

// bySource returns the profile of the machine that has the client's address, or false if there is none. The profile contains no secrets,
// with one exception: it contains the user data if the machine's UserDataByAddress is set, the secrets window is open, and no container of
// the run could be the client.
func (s *Server) bySource(r *http.Request) (profile, bool) {
	addr, ok := s.caller(r)
	if !ok {
		return profile{}, false
	}
	m, g, err := s.machines.MachineByAddress(r.Context(), addr)
	if err != nil {
		s.logFailure(err, "looking up the machine of an address")
		return profile{}, false
	}
	p := profile{machine: m, grant: g}
	if m.UserDataByAddress && !g.AddressClosed && g.SecretsOpen(s.now()) && len(s.cfg.Key) > 0 {
		user, vendor, err := s.machines.UserData(r.Context(), m.Name)
		if err != nil { // perhaps the key file is lost; the rest of the profile needs no key
			s.logFailure(err, "reading user data")
			return p, m.Name != ""
		}
		p.machine.UserData, p.machine.VendorData, p.byAddress = user, vendor, true
	}
	return p, m.Name != ""
}

// caller returns the address of the client. If the connection comes from a configured proxy, the client's address is the last address in
// X-Forwarded-For that does not belong to such a proxy. Without this header, it is the address of the proxy. If an address in the header is
// invalid, the client is unknown and ok is false.
func (s *Server) caller(r *http.Request) (netip.Addr, bool) {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	a := ap.Addr().Unmap().WithZone("")
	if !s.isProxy(a) {
		return a, true
	}
	lines := r.Header.Values("X-Forwarded-For")
	if len(lines) == 0 {
		return a, true
	}
	hops := strings.Split(strings.Join(lines, ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			return netip.Addr{}, false
		}
		if a = hop.Unmap().WithZone(""); !s.isProxy(a) {
			return a, true
		}
	}
	return a, true
}

func (s *Server) isProxy(a netip.Addr) bool {
	return slices.ContainsFunc(s.cfg.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// byCapability returns the profile, with secrets, of the machine called name. It returns false unless the capability belongs to the run
// that owns the machine and the secrets window is open. For an unknown machine, a closed window and a wrong capability, it does the same
// work, so that the time of the answer does not show which of these is the case.
func (s *Server) byCapability(ctx context.Context, name, capability string) (profile, bool) {
	m, err := s.machines.Machine(ctx, name)
	if err != nil {
		s.logFailure(err, "looking up a machine for metadata")
	}
	known := err == nil
	g := s.grantOf(ctx, name)
	valid := s.isCapability(g, capability)
	if !known || !valid || !g.SecretsOpen(s.now()) || g.Machine != name {
		return profile{}, false
	}
	m.UserData, m.VendorData, err = s.machines.UserData(ctx, name)
	if err != nil {
		s.log.Error("reading user data", "machine", name, "error", err)
		return profile{}, false
	}
	return profile{machine: m, grant: g, secret: true}, true
}

// grantOf returns the grant of a machine. It returns the zero Grant if the machine has none, or if the grant cannot be read.
func (s *Server) grantOf(ctx context.Context, machine string) inventory.Grant {
	g, err := s.machines.Grant(ctx, machine)
	if err != nil {
		s.logFailure(err, "looking up a grant")
		return inventory.Grant{}
	}
	return g
}

// isCapability reports whether the capability belongs to the run that holds g.
func (s *Server) isCapability(g inventory.Grant, capability string) bool {
	return len(s.cfg.Key) > 0 && inventory.Equal(capability, inventory.Capability(s.cfg.Key, g.Owner))
}

func (s *Server) logFailure(err error, what string) {
	if !errors.Is(err, inventory.ErrNotFound) {
		s.log.Error("answering a metadata request", "doing", what, "error", err)
	}
}
