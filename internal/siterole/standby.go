package siterole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// tokenFileName is the name of the file with the token by which a standby recognizes its source.
const tokenFileName = "standby.token"

func tokenFile(cfg config.Config) string { return besideKeys(cfg, tokenFileName) }

// besideKeys returns the path of the file with the given name in the key file's directory.
func besideKeys(cfg config.Config, name string) string {
	return filepath.Join(filepath.Dir(cfg.KeyFile), name)
}

// CertificateFile returns the path of the certificate that this server presents to peers.
func CertificateFile(cfg config.Config) string { return besideKeys(cfg, identity.PeerFile) }

// Outcomes of MakeStandby.
const (
	StandbyMade       = "made"
	StandbyReassigned = "reassigned" // the host was a standby already, and now accepts the token of another source
	StandbyUnchanged  = "unchanged"
)

// StandbyResult describes a standby to the operator who has made it.
type StandbyResult struct {
	Outcome     string // StandbyMade, StandbyReassigned or StandbyUnchanged
	Role        string // role of this host; no longer Standby if a site was moved here earlier
	Name        string // name among the peers
	URL         string // URL of the peer API
	Fingerprint string // fingerprint of the standby's key
	TokenFile   string // path of the file with the token; the source needs a copy of the token
}

// MakeStandby makes the host with this configuration a standby, to which a site can be moved. It may be repeated. If name is "", the
// configured name is used. If the host is or was a site, the error is inventory.ErrConflict.
func MakeStandby(ctx context.Context, cfg config.Config, name string) (StandbyResult, error) {
	f, err := Open(cfg.DataDir)
	if err != nil {
		return StandbyResult{}, err
	}

	s := f.Site()
	if s.Source == nil {
		if s, err = newStandby(f, cfg, name); err != nil {
			return StandbyResult{}, err
		}
		return describeStandby(cfg, s, StandbyMade)
	}

	token, err := newSourceToken(cfg, s)
	if err != nil {
		return StandbyResult{}, err
	}
	if token == "" {
		return describeStandby(cfg, s, StandbyUnchanged)
	}

	// Do not change the role file while a server runs: the server has the file in memory, and would overwrite the change.
	if hostnet.ServerAnswers(ctx, cfg) {
		return StandbyResult{}, fmt.Errorf("%s contains another token, and a server is running at %s: stop ingot serve first: %w",
			tokenFile(cfg), cfg.Listen, inventory.ErrConflict)
	}
	if s, err = awaitSource(f, token); err != nil {
		return StandbyResult{}, err
	}
	return describeStandby(cfg, s, StandbyReassigned)
}

func newStandby(f *File, cfg config.Config, name string) (Site, error) {
	for _, file := range []string{
		filepath.Join(cfg.DataDir, "ingot.db"), filepath.Join(cfg.DataDir, "temporal"),
		filepath.Join(cfg.DataDir, FileName), cfg.KeyFile,
	} {
		if there, err := durablefile.Exists(file); err != nil {
			return Site{}, err
		} else if there {
			return Site{}, fmt.Errorf("%s exists, so this host runs or ran a site; "+
				"move the file away, or configure another data_dir and key_file: %w", file, inventory.ErrConflict)
		}
	}

	if err := os.MkdirAll(cfg.ImageDir(), 0o750); err != nil {
		return Site{}, err
	}
	if _, err := identity.LoadToken(cfg.TokenFile); err != nil {
		return Site{}, err
	}
	if _, err := identity.LoadCertificate(CertificateFile(cfg)); err != nil {
		return Site{}, err
	}

	token, err := identity.LoadToken(tokenFile(cfg))
	if err != nil {
		return Site{}, err
	}

	return f.Change(func(s *Site) error {
		s.Name = name
		s.Name = ServerName(cfg, *s)
		s.Role, s.Source = Standby, &Giver{TokenSHA256: identity.Digest(token)}
		s.Why = "became a standby on " + time.Now().UTC().Format(time.RFC3339)
		return nil
	})
}

// newSourceToken returns the token in the standby's token file if the standby does not accept it yet, otherwise "". This can happen in a
// data directory that was left by a Genesis run with an undone migration.
func newSourceToken(cfg config.Config, s Site) (string, error) {
	if s.Role != Standby {
		return "", nil
	}
	token, err := identity.ReadToken(tokenFile(cfg))
	if errors.Is(err, fs.ErrNotExist) || err == nil && identity.Digest(token) == s.Source.TokenSHA256 {
		return "", nil
	}
	return token, err
}

// awaitSource makes a standby accept the first source that shows the token. If the standby already holds the prepared site of another
// source, the error is inventory.ErrConflict.
func awaitSource(f *File, token string) (Site, error) {
	return f.Change(func(s *Site) error {
		if s.Role != Standby || s.Prepared != nil {
			return fmt.Errorf("the token file contains another token, but this standby has already received the site of %q: "+
				"put the earlier token back, or wait until that hand-over has ended: %w", s.Source.Name, inventory.ErrConflict)
		}
		s.Source = &Giver{TokenSHA256: identity.Digest(token)}
		return nil
	})
}

func describeStandby(cfg config.Config, s Site, outcome string) (StandbyResult, error) {
	_, token, fingerprint, err := MakeStandbyFiles(filepath.Dir(cfg.KeyFile))
	return StandbyResult{
		Outcome: outcome, Role: s.Role, Name: s.Name, URL: peerURL(cfg), Fingerprint: fingerprint, TokenFile: token,
	}, err
}

// MakeStandbyFiles makes the certificate and the token of a standby in dir, unless they exist. It returns the paths of both and
// the fingerprint of the certificate's key.
func MakeStandbyFiles(dir string) (certFile, token, fingerprint string, err error) {
	certFile, token = filepath.Join(dir, identity.PeerFile), filepath.Join(dir, tokenFileName)
	cert, err := identity.LoadCertificate(certFile)
	if err == nil {
		_, err = identity.LoadToken(token)
	}
	if err != nil {
		return "", "", "", err
	}
	fingerprint, err = identity.Pin(cert)
	return certFile, token, fingerprint, err
}

// ServerName returns the name of this server among its peers: the configured name, otherwise the name in s, otherwise the host name.
func ServerName(cfg config.Config, s Site) string {
	name, _ := os.Hostname() // the name is only for display
	return cmp.Or(cfg.Site.Name, s.Name, name, "ingot")
}

// peerURL returns the configured URL of the peer API. If there is none, it makes one from the most likely address of this host.
func peerURL(cfg config.Config) string {
	if cfg.Site.URL != "" {
		return strings.TrimSuffix(cfg.Site.URL, "/")
	}

	name, port, err := net.SplitHostPort(cfg.Site.Listen)
	if err != nil {
		return "https://" + cfg.Site.Listen
	}
	if name == "" || name == "0.0.0.0" || name == "::" {
		name = firstAddress(cfg)
	}

	return "https://" + net.JoinHostPort(name, port)
}

func firstAddress(cfg config.Config) string {
	if cfg.Netboot.On() {
		if a, err := hostnet.ProvisioningAddress(cfg.Netboot); err == nil {
			return a.String()
		}
	}

	for _, i := range hostnet.Interfaces() {
		for _, a := range i.Addresses {
			if ip, _, err := net.ParseCIDR(a); err == nil {
				return ip.String()
			}
		}
	}

	return "127.0.0.1"
}
