package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/site"
	"github.com/ingotmetal/ingot/inventory"
)

// standbyFiles are what a standby is made of that somebody else starts: its key,
// the token for this server, and its admin token. It lies beside this server's
// keys until the standby was paired with, and the admin token after that.
type standbyFiles struct{ dir, name string }

func (h *host) identity(name string) standbyFiles {
	return standbyFiles{filepath.Join(filepath.Dir(h.cfg.KeyFile), "standby-"+name), name}
}

// Names of the files of an identity, in its directory and in the Secret. The
// last one is not in the Secret.
const (
	idKey   = "site.pem"
	idToken = "standby.token"
	idAdmin = "token"
	idPeer  = "peer.json"
)

// secretName is the Kubernetes Secret of a standby.
const secretName = "ingot-standby"

// peer is where the standby will be; inventory.ErrNotFound when none was made.
func (i standbyFiles) peer() (p site.Peer, token string, err error) {
	b, err := os.ReadFile(filepath.Join(i.dir, idPeer))
	if errors.Is(err, fs.ErrNotExist) {
		return p, "", fmt.Errorf("peer %q: %w", i.name, inventory.ErrNotFound)
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return p, "", fmt.Errorf("reading the identity of %q: %w", i.name, err)
	}
	token, err = identity.LoadToken(filepath.Join(i.dir, idToken))
	return p, token, err
}

// Known tells whether this server can hand over to the peer: it is paired with
// it, or has made its identity.
func (h *host) Known(_ context.Context, name string) (bool, error) {
	if _, err := h.file.Site().Peer(name); err == nil {
		return true, nil
	}
	_, _, err := h.identity(name).peer()
	if errors.Is(err, inventory.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Standby makes the identity of a standby that answers at address (a host, or
// host:port), once, and returns the Kubernetes Secret with it.
func (h *host) Standby(_ context.Context, name, address string) (secret inventory.Secret, err error) {
	i := h.identity(name)
	if _, _, err := net.SplitHostPort(address); err != nil {
		_, port, err := net.SplitHostPort(config.Default().Site.Listen)
		if err != nil {
			return secret, err
		}
		address = net.JoinHostPort(strings.Trim(address, "[]"), port)
	}
	cert, err := identity.LoadCertificate(filepath.Join(i.dir, idKey))
	if err != nil {
		return secret, err
	}
	for _, file := range []string{idToken, idAdmin} {
		if _, err := identity.LoadToken(filepath.Join(i.dir, file)); err != nil {
			return secret, err
		}
	}
	print, err := identity.Pin(cert)
	if err != nil {
		return secret, err
	}
	text, err := json.Marshal(site.Peer{Name: name, URL: "https://" + address, Fingerprint: print})
	if err == nil {
		err = site.Replace(filepath.Join(i.dir, idPeer), append(text, '\n'))
	}
	if err != nil {
		return secret, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: ingot}\ntype: Opaque\ndata:\n", secretName)
	for _, file := range []string{idKey, idToken, idAdmin} {
		text, err := os.ReadFile(filepath.Join(i.dir, file))
		if err != nil {
			return secret, err
		}
		fmt.Fprintf(&b, "  %s: %s\n", file, base64.StdEncoding.EncodeToString(text))
	}
	return inventory.NewSecret(b.String()), nil
}

// Moved tells whether a run of Migrate has made this host the site: the ids of
// its hand-overs begin with the run.
func (h *host) Moved(_ context.Context, run string) (bool, error) {
	return strings.HasPrefix(h.file.Site().Activated, run+"-"), nil
}

// Forget forgets a peer to which nothing was handed over, and its identity.
func (h *host) Forget(ctx context.Context, name string) error {
	if err := h.RemovePeer(ctx, name); err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	return os.RemoveAll(h.identity(name).dir)
}

// paired returns the peer, after pairing with one whose identity was made here.
func (h *host) paired(ctx context.Context, name string) (site.Peer, error) {
	p, err := h.file.Site().Peer(name)
	if !errors.Is(err, inventory.ErrNotFound) {
		return p, err
	}
	p, token, err := h.identity(name).peer()
	if err != nil {
		return p, err
	}
	_, err = h.AddPeer(ctx, api.NewPeer{Peer: peerView(p), Token: inventory.NewSecret(token)})
	return p, err
}
