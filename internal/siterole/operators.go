package siterole

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// ServerName returns the server's name among its peers.
func (h *Host) ServerName() string { return ServerName(h.cfg, h.file.Site()) }

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

// Decide carries out the operator's decision, inventory.TakeOver or inventory.GiveUp: on a standby by
// [Target.TakeOver], otherwise by [Source.Decide].
func (h *Host) Decide(ctx context.Context, decision, peer string) error {
	switch {
	case h.file.Site().Role != Standby:
		return h.source.Decide(ctx, decision, peer)
	case decision == inventory.GiveUp:
		return fmt.Errorf("a standby has no site to give up: %w", inventory.ErrConflict)
	}

	return h.target.TakeOver("an operator")
}
