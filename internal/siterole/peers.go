package siterole

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// Peers manages the servers that the site can move to. They are listed in the role file; their tokens are next to the key file.
type Peers struct {
	cfg    config.Config
	file   *File
	tokens *peerTokens
	cert   tls.Certificate // presented to peers; set by loadCertificate
}

// loadCertificate loads the certificate that this server presents to peers. It creates the certificate if there is none.
func (p *Peers) loadCertificate() error {
	if p.cert.Certificate != nil {
		return nil
	}
	var err error
	p.cert, err = identity.LoadCertificate(CertificateFile(p.cfg))
	return err
}

// dial returns the API of a peer.
func (p *Peers) dial(peer inventory.Peer) (TargetAPI, error) { return p.client(peer) }

func (p *Peers) client(peer inventory.Peer) (*Client, error) {
	if err := p.loadCertificate(); err != nil {
		return nil, err
	}
	token, ok := p.tokens.of(peer.Name)
	if !ok {
		return nil, fmt.Errorf("the token of peer %q is not in %s: %w", peer.Name, p.tokens.path, inventory.ErrUnreachable)
	}
	return NewClient(peer, p.cert, token)
}

// AddPeer pairs with a standby. From then on, this server asks the standby for its role at each start, before it answers
// a machine.
func (p *Peers) AddPeer(ctx context.Context, peer inventory.Peer, token inventory.Secret) (inventory.Peer, error) {
	x := p.file.Site()
	if err := x.require(Active); err != nil {
		return peer, err
	}

	peer.URL, peer.Since = strings.TrimSuffix(peer.URL, "/"), time.Now().UTC().Truncate(time.Second)
	if old, err := x.Peer(peer.Name); err == nil && (old.URL != peer.URL || old.Fingerprint != peer.Fingerprint) {
		return peer, fmt.Errorf("another peer has the name %q, at %s: remove that peer first (ingot peer remove): %w",
			peer.Name, old.URL, inventory.ErrConflict)
	}
	if err := p.pair(ctx, peer, token.Reveal()); err != nil {
		return peer, err
	}

	// Store the token first: a peer whose token is missing could not be asked.
	if err := p.tokens.set(peer.Name, token.Reveal()); err != nil {
		return peer, err
	}

	_, err := p.file.Change(func(x *Site) error {
		if _, err := x.Peer(peer.Name); err == nil {
			return nil
		}
		x.Name = ServerName(p.cfg, *x)
		x.Peers = append(x.Peers, peer)
		return nil
	})
	return peer, err
}

// pair makes this server the source of a standby.
func (p *Peers) pair(ctx context.Context, peer inventory.Peer, token string) error {
	if err := p.loadCertificate(); err != nil {
		return err
	}

	c, err := NewClient(peer, p.cert, token)
	if err != nil {
		return err
	}

	r, err := c.Pair(ctx, ServerName(p.cfg, p.file.Site()))
	if err != nil {
		return explainStranger(err)
	}
	if r.Role != Standby {
		return fmt.Errorf("%s is %s in site epoch %d, but only a standby can be added as a peer: %w",
			peer.Name, r.Role, r.Epoch, inventory.ErrConflict)
	}

	return nil
}

// explainStranger turns an ErrStranger into an inventory.ErrConflict with the cause.
func explainStranger(err error) error {
	if errors.Is(err, ErrStranger) {
		return fmt.Errorf("%w: the token is wrong, or belongs to another server: %w", err, inventory.ErrConflict)
	}
	return err
}

// RemovePeer removes a peer and its token.
func (p *Peers) RemovePeer(_ context.Context, name string) error {
	_, err := p.file.Change(func(x *Site) error {
		if err := x.require(Active); err != nil {
			return err
		}
		if _, err := x.Peer(name); err != nil {
			return err
		}
		x.Peers = slices.DeleteFunc(x.Peers, func(x inventory.Peer) bool { return x.Name == name })
		return nil
	})
	if err == nil {
		err = p.tokens.set(name, "")
	}

	return err
}
