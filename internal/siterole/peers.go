package siterole

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// dial returns the API of a peer.
func (h *Host) dial(p inventory.Peer) (TargetAPI, error) { return h.client(p) }

func (h *Host) client(p inventory.Peer) (*Client, error) {
	if err := h.loadCertificate(); err != nil {
		return nil, err
	}
	token, ok := h.tokens.of(p.Name)
	if !ok {
		return nil, fmt.Errorf("the token of peer %q is not in %s: %w", p.Name, h.tokens.path, inventory.ErrUnreachable)
	}
	return NewClient(p, h.cert, token, nil)
}

// SiteStatus describes this server among its peers for operators.
func (h *Host) SiteStatus(ctx context.Context) (inventory.SiteStatus, error) {
	x := h.file.Site()
	out := inventory.SiteStatus{
		Name: ServerName(h.cfg, x), Role: x.Role, Epoch: x.Epoch, Activated: x.Activated, Why: x.Why,
		Peers: append([]inventory.Peer{}, x.Peers...), Successor: x.Successor,
	}
	out.Silent, out.Since = h.source.Waiting()
	h.mu.Lock()
	if h.missing != "" {
		out.Silent, out.Since = h.missing, h.since
	}
	h.mu.Unlock()

	if o := x.HandOver; o != nil {
		out.HandOver = &inventory.HandOverStatus{ID: o.ID, Peer: o.Peer, State: o.State, Why: o.Why, Since: o.Since}
	}
	if x.Prepared != nil {
		out.Prepared = x.Prepared.ID
	}

	s := h.instance()
	if s == nil {
		return out, nil
	}
	var err error
	if out.Epoch, err = s.Store().SiteEpoch(ctx); err != nil {
		return out, err
	}
	out.Intake, err = s.Store().Intake(ctx)
	return out, err
}

// AddPeer pairs with a standby. From then on, this server asks it at each start before
// the first packet.
func (h *Host) AddPeer(ctx context.Context, p inventory.Peer, token inventory.Secret) (inventory.Peer, error) {
	x := h.file.Site()
	if err := x.require(Active); err != nil {
		return p, err
	}

	p.URL, p.Since = strings.TrimSuffix(p.URL, "/"), time.Now().UTC().Truncate(time.Second)
	if old, err := x.Peer(p.Name); err == nil && (old.URL != p.URL || old.Fingerprint != p.Fingerprint) {
		return p, fmt.Errorf("there is another peer %q at %s: remove it first (ingot peer remove): %w",
			p.Name, old.URL, inventory.ErrConflict)
	}
	if err := h.pair(ctx, p, token.Reveal()); err != nil {
		return p, err
	}

	// Store the token first: a peer without a token cannot be asked.
	if err := h.tokens.set(p.Name, token.Reveal()); err != nil {
		return p, err
	}

	_, err := h.file.Change(func(x *Site) error {
		if _, err := x.Peer(p.Name); err == nil {
			return nil
		}
		x.Name = ServerName(h.cfg, *x)
		x.Peers = append(x.Peers, p)
		return nil
	})
	return p, err
}

// pair makes this server the source of a standby.
func (h *Host) pair(ctx context.Context, peer inventory.Peer, token string) error {
	if err := h.loadCertificate(); err != nil {
		return err
	}

	c, err := NewClient(peer, h.cert, token, nil)
	if err != nil {
		return err
	}

	r, err := c.Pair(ctx, h.Name())
	if err != nil {
		return explainStranger(err)
	}
	if r.Role != Standby {
		return fmt.Errorf("%s is %s and owns site epoch %d: only a standby can be a peer: %w",
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
func (h *Host) RemovePeer(_ context.Context, name string) error {
	_, err := h.file.Change(func(x *Site) error {
		if err := x.require(Active); err != nil {
			return err
		}
		if _, err := x.Peer(name); err != nil {
			return err
		}
		x.Peers = slices.DeleteFunc(x.Peers, func(p inventory.Peer) bool { return p.Name == name })
		return nil
	})
	if err == nil {
		err = h.tokens.set(name, "")
	}

	return err
}

// Decide carries out a decision of the operator: inventory.TakeOver or
// inventory.GiveUp. See [Source.Decide].
func (h *Host) Decide(ctx context.Context, decision, peer string) error {
	switch {
	case h.file.Site().Role != Standby:
		return h.source.Decide(ctx, decision, peer)
	case decision == inventory.GiveUp:
		return fmt.Errorf("a standby has nothing to give up: %w", inventory.ErrConflict)
	}

	return h.target.TakeOver("an operator")
}
