package api

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// NewPeer is the request to add a peer. Token is the token that the peer created for this server.
type NewPeer struct {
	inventory.Peer
	Token inventory.Secret `json:"token"`
}

// A Site reads and changes this server's role among its peers, for example active or standby.
type Site interface {
	SiteStatus(ctx context.Context) (inventory.SiteStatus, error)
	// AddPeer pairs this server with a standby and stores the standby as a peer. token is the token that the standby
	// created.
	AddPeer(ctx context.Context, p inventory.Peer, token inventory.Secret) (inventory.Peer, error)
	RemovePeer(ctx context.Context, name string) error
	// Decide carries out the operator's decision, inventory.TakeOver or inventory.GiveUp. It returns
	// inventory.ErrConflict if no question is open. For GiveUp, peer names the server that is active instead of this
	// one; peer may be "" if the question is about one peer only.
	Decide(ctx context.Context, decision, peer string) error
}

// sites handles the routes about the role of this server and about its peers.
type sites struct {
	site       Site // nil: this server cannot have peers
	operations *operations
	log        *slog.Logger
}

func (s *sites) routes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "GET", Path: "/v1/site", Needs: inventory.RoleRead, Handler: httpapi.Get(s.get)},
		{Method: "POST", Path: "/v1/site/decide", Needs: inventory.RoleAdmin, Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, s.decide)},
		{Method: "GET", Path: "/v1/peers", Needs: inventory.RoleAdmin, Handler: httpapi.Get(s.listPeers)},
		{Method: "POST", Path: "/v1/peers", Needs: inventory.RoleAdmin, Handler: httpapi.Handle(http.StatusCreated, httpapi.JSON, s.addPeer)},
		{Method: "DELETE", Path: "/v1/peers/:name", Needs: inventory.RoleAdmin, Handler: httpapi.Delete(s.removePeer)},
		{Method: "POST", Path: "/v1/migrate", Needs: inventory.RoleAdmin, Handler: accept(s.startMigrate)},
	}
}

// peers returns s.site, or inventory.ErrUnavailable if this server cannot have peers.
func (s *sites) peers() (Site, error) {
	if s.site == nil {
		return nil, fmt.Errorf("this server cannot have peers: %w", inventory.ErrUnavailable)
	}
	return s.site, nil
}

func (s *sites) get(ctx context.Context, _ httpapi.Empty) (inventory.SiteStatus, error) {
	x, err := s.peers()
	if err != nil {
		return inventory.SiteStatus{}, err
	}
	st, err := x.SiteStatus(ctx)
	return showPeers(ctx, st), err
}

// showPeers returns st, without the peers unless the caller is an administrator.
func showPeers(ctx context.Context, st inventory.SiteStatus) inventory.SiteStatus {
	if !callerOf(ctx).Role.Allows(inventory.RoleAdmin) {
		st.Peers = nil
	}
	return st
}

type decideSite struct {
	Word string `json:"word"`
	Peer string `json:"peer"`
}

// Validate returns an error unless Word is a known decision.
func (q *decideSite) Validate() error {
	if q.Word == inventory.TakeOver || q.Word == inventory.GiveUp {
		return nil
	}
	return inventory.Invalid("word", "write take-over or give-up", "invalid decision %q", q.Word)
}

func (s *sites) decide(ctx context.Context, q decideSite) (inventory.SiteStatus, error) {
	x, err := s.peers()
	if err == nil {
		err = x.Decide(ctx, q.Word, q.Peer)
	}
	if err != nil {
		return inventory.SiteStatus{}, err
	}
	s.log.Warn("the operator has decided whether this server is active", "word", q.Word, "by", httpapi.Actor(ctx))

	return x.SiteStatus(ctx)
}

func (s *sites) listPeers(ctx context.Context, q httpapi.Empty) (httpapi.List[inventory.Peer], error) {
	st, err := s.get(ctx, q)
	return httpapi.NewList(st.Peers), err
}

// peerName is the pattern for names of peers and migrations, which are used in file names and command lines.
var peerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// peerNameRule tells the user how to correct a name that does not match the pattern peerName.
const peerNameRule = "use lower-case letters, digits and -"

// fingerprintForm is the pattern for the SHA-256 fingerprint of a peer's key.
var fingerprintForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Validate checks name, fingerprint and token.
func (p *NewPeer) Validate() error {
	var problems inventory.Problems
	if !peerName.MatchString(p.Name) {
		problems.Add("name", peerNameRule, "invalid name of a peer %q", p.Name)
	}
	if !fingerprintForm.MatchString(p.Fingerprint) {
		problems.Add("fingerprint", "copy the fingerprint that ingot standby printed",
			"invalid fingerprint %q; must be sha256:<64 hex digits>", p.Fingerprint)
	}
	if p.Token.IsZero() {
		problems.Add("token", "send the token that ingot standby printed", "is missing")
	}
	return problems.Err()
}

func (s *sites) addPeer(ctx context.Context, q NewPeer) (inventory.Peer, error) {
	x, err := s.peers()
	if err != nil {
		return inventory.Peer{}, err
	}
	added, err := x.AddPeer(ctx, q.Peer, q.Token)
	if err != nil {
		return inventory.Peer{}, err
	}
	s.log.Info("a peer was added", "peer", added.Name, "url", added.URL, "by", httpapi.Actor(ctx))

	return added, nil
}

func (s *sites) removePeer(ctx context.Context, q byName) error {
	x, err := s.peers()
	if err == nil {
		err = x.RemovePeer(ctx, q.Name)
	}
	if err != nil {
		return err
	}
	s.log.Warn("a peer was removed", "peer", q.Name, "by", httpapi.Actor(ctx))

	return nil
}

// startMigrate starts a migration: the workflow that makes a peer the active server instead of this one.
func (s *sites) startMigrate(ctx context.Context, in contract.MigrateInput) (apitypes.Started, error) {
	in.Name = cmp.Or(in.Name, in.Target)
	if !peerName.MatchString(in.Name) {
		return apitypes.Started{}, inventory.Invalid("name", peerNameRule, "invalid name of a migration %q", in.Name)
	}
	st, err := s.get(ctx, httpapi.Empty{})
	if err != nil {
		return apitypes.Started{}, err
	}
	if !slices.ContainsFunc(st.Peers, func(p inventory.Peer) bool { return p.Name == in.Target }) {
		return apitypes.Started{}, hint(inventory.Invalid("target", "name a peer", "there is no peer %q", in.Target), "ingot peer list")
	}

	in.By = httpapi.Actor(ctx)
	return s.operations.start(ctx, engine.Start{
		ID: contract.MigrateID(in.Name), Type: inventory.TypeMigrate, Input: in,
	}, in.Name)
}
