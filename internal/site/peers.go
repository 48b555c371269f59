package site

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/inventory"
)

// dial returns the API of a peer.
func (h *Host) dial(p Peer) (TargetAPI, error) { return h.client(p) }

func (h *Host) client(p Peer) (*Client, error) {
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
func (h *Host) SiteStatus(ctx context.Context) (api.SiteStatus, error) {
	x := h.file.Site()
	out := api.SiteStatus{
		Name: ServerName(h.cfg, x), Role: x.Role, Epoch: x.Epoch, Activated: x.Activated, Why: x.Why, Peers: []api.Peer{},
	}
	out.Silent, out.Since = h.source.Waiting()
	h.mu.Lock()
	if h.missing != "" {
		out.Silent, out.Since = h.missing, h.since
	}
	h.mu.Unlock()

	for _, p := range x.Peers {
		out.Peers = append(out.Peers, peerView(p))
	}
	if x.Successor != nil {
		p := peerView(*x.Successor)
		out.Successor = &p
	}
	if o := x.HandOver; o != nil {
		out.HandOver = &api.HandOverStatus{ID: o.ID, Peer: o.Peer, State: o.State, Why: o.Why, Since: o.Since}
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

func peerView(p Peer) api.Peer {
	return api.Peer{Name: p.Name, URL: p.URL, Fingerprint: p.Fingerprint, Since: p.Since}
}

// requireActive refuses what only the site may do.
func requireActive(x Site) error {
	if x.Role != Active {
		return fmt.Errorf("this server is %s: %w", x.Role, inventory.ErrConflict)
	}
	return nil
}

// AddPeer pairs with a standby. From then on it is asked before the first packet
// of each start.
func (h *Host) AddPeer(ctx context.Context, p api.NewPeer) (api.Peer, error) {
	x := h.file.Site()
	if err := requireActive(x); err != nil {
		return api.Peer{}, err
	}

	peer := Peer{
		Name: p.Name, URL: strings.TrimSuffix(p.URL, "/"), Fingerprint: p.Fingerprint,
		Since: time.Now().UTC().Truncate(time.Second),
	}
	if old, err := x.Peer(p.Name); err == nil && (old.URL != peer.URL || old.Fingerprint != peer.Fingerprint) {
		return api.Peer{}, fmt.Errorf("there is another peer %q at %s: remove it first (ingot peer remove): %w",
			p.Name, old.URL, inventory.ErrConflict)
	}
	if err := h.pair(ctx, peer, p.Token.Reveal()); err != nil {
		return api.Peer{}, err
	}

	// The token first: a peer without one could never be asked.
	if err := h.tokens.set(p.Name, p.Token.Reveal()); err != nil {
		return api.Peer{}, err
	}

	_, err := h.file.Change(func(x *Site) error {
		if _, err := x.Peer(p.Name); err == nil {
			return nil
		}
		x.Name = ServerName(h.cfg, *x)
		x.Peers = append(x.Peers, peer)
		return nil
	})
	return peerView(peer), err
}

// pair makes this server the source of a standby.
func (h *Host) pair(ctx context.Context, peer Peer, token string) error {
	if err := h.loadCertificate(); err != nil {
		return err
	}

	c, err := NewClient(peer, h.cert, token, nil)
	if err != nil {
		return err
	}

	r, err := c.Pair(ctx, ServerName(h.cfg, h.file.Site()))
	if err != nil {
		return explainStranger(err)
	}
	if r.Role != Standby {
		return fmt.Errorf("%s is %s and owns site epoch %d: only a standby can be a peer: %w",
			peer.Name, r.Role, r.Epoch, inventory.ErrConflict)
	}

	return nil
}

// explainStranger makes the refusal of a peer that does not know this server
// inventory.ErrConflict.
func explainStranger(err error) error {
	if errors.Is(err, ErrStranger) {
		return fmt.Errorf("%w: its token is another, or belongs to another server: %w", err, inventory.ErrConflict)
	}
	return err
}

// RemovePeer forgets a peer.
func (h *Host) RemovePeer(_ context.Context, name string) error {
	_, err := h.file.Change(func(x *Site) error {
		if err := requireActive(*x); err != nil {
			return err
		}
		if _, err := x.Peer(name); err != nil {
			return err
		}
		x.Peers = slices.DeleteFunc(x.Peers, func(p Peer) bool { return p.Name == name })
		return nil
	})
	if err == nil {
		err = h.tokens.set(name, "")
	}

	return err
}

// Decide passes on a decision of the operator; see [api.Site].
func (h *Host) Decide(ctx context.Context, word, peer string) error {
	if h.file.Site().Role == Standby {
		if word == api.WordGiveUp {
			return fmt.Errorf("a standby has nothing to give up: %w", inventory.ErrConflict)
		}
		return h.target.TakeOver("an operator")
	}

	d := TakeOver
	if word == api.WordGiveUp {
		d = GiveUp
	}

	return h.source.Decide(ctx, d, peer)
}
