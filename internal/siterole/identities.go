package siterole

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

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// standbyFiles are the credentials that this server makes for a standby that a Kubernetes cluster starts: the standby's key,
// the token for this server, and the standby's admin token. They are next to this server's keys.
type standbyFiles struct{ dir, name string }

func (p *Peers) standbyFiles(name string) standbyFiles {
	return standbyFiles{besideKeys(p.cfg, "standby-"+name), name}
}

// Files in the directory of a standby, in addition to its key and token. The peer file is not part of the Secret.
const (
	adminFileName = "token"
	peerFileName  = "peer.json"
)

// secretName is the name of the Kubernetes Secret with a standby's files.
const secretName = "ingot-standby"

// peer returns the standby as a peer, and the standby's token for this server. If this server has not made the standby's files, the error
// is inventory.ErrNotFound.
func (f standbyFiles) peer() (p inventory.Peer, token string, err error) {
	b, err := os.ReadFile(filepath.Join(f.dir, peerFileName))
	if errors.Is(err, fs.ErrNotExist) {
		return p, "", fmt.Errorf("peer %q: %w", f.name, inventory.ErrNotFound)
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return p, "", fmt.Errorf("reading the files of standby %q: %w", f.name, err)
	}
	token, err = identity.LoadToken(filepath.Join(f.dir, tokenFileName))
	return p, token, err
}

// Known reports whether this server is paired with the peer or has made the files that it needs to pair with the peer.
func (p *Peers) Known(_ context.Context, name string) (bool, error) {
	if _, err := p.file.Site().Peer(name); err == nil {
		return true, nil
	}
	_, _, err := p.standbyFiles(name).peer()
	if errors.Is(err, inventory.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Standby returns the Kubernetes Secret with the files of the standby at address (host, or host:port). If there are no such files yet, it
// makes them.
func (p *Peers) Standby(_ context.Context, name, address string) (secret inventory.Secret, err error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		_, port, err := net.SplitHostPort(config.Default().Site.Listen)
		if err != nil {
			return secret, err
		}
		address = net.JoinHostPort(strings.Trim(address, "[]"), port)
	}

	f := p.standbyFiles(name)
	_, _, fingerprint, err := MakeStandbyFiles(f.dir)
	if err != nil {
		return secret, err
	}
	if _, err := identity.LoadToken(filepath.Join(f.dir, adminFileName)); err != nil {
		return secret, err
	}

	peer := inventory.Peer{Name: name, URL: "https://" + address, Fingerprint: fingerprint}
	if err := durablefile.ReplaceJSON(filepath.Join(f.dir, peerFileName), peer); err != nil {
		return secret, err
	}

	return f.secret()
}

// secret returns the Kubernetes Secret of the standby, as YAML.
func (f standbyFiles) secret() (inventory.Secret, error) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Secret\n")
	fmt.Fprintf(&b, "metadata: {name: %s, namespace: ingot}\ntype: Opaque\ndata:\n", secretName)
	for _, file := range []string{identity.PeerFile, tokenFileName, adminFileName} {
		text, err := durablefile.ReadPrivate(filepath.Join(f.dir, file))
		if err != nil {
			return inventory.Secret{}, err
		}
		fmt.Fprintf(&b, "  %s: %s\n", file, base64.StdEncoding.EncodeToString(text))
	}

	return inventory.NewSecret(b.String()), nil
}

// Moved reports whether the given run of Migrate has made this host the active server. The id of each hand-over of a run begins
// with the run's id.
func (p *Peers) Moved(_ context.Context, run string) (bool, error) {
	return strings.HasPrefix(p.file.Site().Activated, run+"-"), nil
}

// Forget removes a peer to which the site was not handed over, and the files that this server has made for it.
func (p *Peers) Forget(ctx context.Context, name string) error {
	if err := p.RemovePeer(ctx, name); err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	return os.RemoveAll(p.standbyFiles(name).dir)
}

// paired returns the peer with that name. If this server has so far only made the peer's files, paired first pairs with the peer.
func (p *Peers) paired(ctx context.Context, name string) (inventory.Peer, error) {
	peer, err := p.file.Site().Peer(name)
	if !errors.Is(err, inventory.ErrNotFound) {
		return peer, err
	}

	peer, token, err := p.standbyFiles(name).peer()
	if err != nil {
		return peer, err
	}
	return p.AddPeer(ctx, peer, inventory.NewSecret(token))
}
