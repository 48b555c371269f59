package bootsvc

import (
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/ingotmetal/ingot/inventory"
)

// urls builds the URLs that machines get.
type urls struct {
	cfg  *Config
	port atomic.Uint32 // of the HTTP listener
}

// newURLs returns the URLs with the port of the first configured HTTP address. webFiles.listen stores the bound port
// later.
func newURLs(cfg *Config) *urls {
	u := &urls{cfg: cfg}
	if _, port, err := net.SplitHostPort(cfg.HTTPAddr[0]); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			u.port.Store(uint32(n))
		}
	}
	return u
}

// base returns the URL of the HTTP handler for machines, without a trailing slash.
func (u *urls) base() string {
	if port := u.port.Load(); port != 80 {
		return "http://" + net.JoinHostPort(u.cfg.Address.String(), strconv.Itoa(int(port)))
	}
	return "http://" + u.cfg.Address.String()
}

// script returns the URL of the script called name, for the client with this MAC.
func (u *urls) script(mac, name string) string { return u.base() + "/ipxe/script/" + mac + "/" + name }

// loader returns the URL of the loader called name, for the client with this MAC.
func (u *urls) loader(mac, name string) string {
	return u.base() + loaderPath + dashed(mac) + "/" + name
}

// dashed returns a MAC with dashes instead of colons, for URLs and file names.
func dashed(mac string) string { return strings.ReplaceAll(mac, ":", "-") }

// boot returns the base URL of the files of d's boot, with a trailing slash.
func (u *urls) boot(d Decision) string {
	return u.base() + "/boot/" + dashed(d.Interface.MAC) + "/" + u.token(d) + "/"
}

// token returns the secret path element that gives access to the files of d's boot.
func (u *urls) token(d Decision) string { return inventory.BootToken(u.cfg.ClaimKey, d.Owner, d.Boot) }

// isOpen reports whether d allows kernel and initramfs, and whether token is the token of d's boot.
func (u *urls) isOpen(d Decision, token string) bool {
	return d.servesAgent() && inventory.Equal(token, u.token(d))
}
