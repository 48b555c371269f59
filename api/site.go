package api

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// A Peer is another server that may become this site, or has become it.
type Peer struct {
	Name        string    `json:"name"`
	URL         string    `json:"url"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	Since       time.Time `json:"since,omitzero"`
}

// NewPeer is a peer with the token that it has made for this server.
type NewPeer struct {
	Peer
	Token inventory.Secret `json:"token"`
}

// SiteStatus says what this server is among its peers.
type SiteStatus struct {
	Name  string `json:"name,omitempty"`
	Role  string `json:"role"` // active | standby | handing-over | retired
	Epoch int64  `json:"epoch,omitempty"`
	// Silent is why this server answers no machine although it knows of no other
	// site; then the operator may decide.
	Silent    string    `json:"silent,omitempty"`
	Since     time.Time `json:"since,omitzero"` // of Silent
	Successor *Peer     `json:"successor,omitempty"`
	Peers     []Peer    `json:"peers"`
	// HandOver is the last hand-over whose source was this server.
	HandOver *HandOverStatus `json:"handOver,omitempty"`
	// Prepared is the hand-over that is ready here, Activated the one by which the
	// site came here.
	Prepared  string `json:"prepared,omitempty"`
	Activated string `json:"activated,omitempty"`
	// Intake says why new runs are refused.
	Intake string `json:"intake,omitempty"`
	Why    string `json:"why,omitempty"`
}

// HandOverStatus is a hand-over as its source knows it.
type HandOverStatus struct {
	ID    string    `json:"id"`
	Peer  string    `json:"peer"`
	State string    `json:"state"` // under-way | moved | failed
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// Decisions about a server that cannot know whether it is the site.
const (
	WordTakeOver = "take-over" // the other host is off: this server is the site
	WordGiveUp   = "give-up"   // the other server is the site: this one retires
)

// A Site is the server's own state machine among its peers.
type Site interface {
	SiteStatus(ctx context.Context) (SiteStatus, error)
	// AddPeer pairs with a standby and remembers it.
	AddPeer(ctx context.Context, p NewPeer) (Peer, error)
	RemovePeer(ctx context.Context, name string) error
	// Decide passes on the operator's decision; inventory.ErrConflict when there is
	// nothing to decide. With WordGiveUp, peer is the server that is the site; ""
	// where only one can be.
	Decide(ctx context.Context, word, peer string) error
}

// sites shows and changes this server among its peers.
type sites struct {
	site       Site // nil: it has no peers
	operations *operations
	log        *slog.Logger
}

func (s *sites) routes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "GET", Path: "/v1/site", Handler: httpapi.Get(s.get)},
		{Method: "POST", Path: "/v1/site/decide", Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, s.decide)},
		{Method: "GET", Path: "/v1/peers", Handler: httpapi.Get(s.listPeers)},
		{Method: "POST", Path: "/v1/peers", Handler: httpapi.Handle(http.StatusCreated, httpapi.JSON, s.addPeer)},
		{Method: "DELETE", Path: "/v1/peers/:name", Handler: httpapi.Delete(s.removePeer)},
		{Method: "POST", Path: "/v1/migrate", Handler: accept(s.startMigrate)},
	}
}

// peers returns the server's own state machine, or an error where there is none.
func (s *sites) peers() (Site, error) {
	if s.site == nil {
		return nil, fmt.Errorf("this server has no peers: %w", inventory.ErrUnavailable)
	}
	return s.site, nil
}

func (s *sites) get(ctx context.Context, _ httpapi.Empty) (SiteStatus, error) {
	x, err := s.peers()
	if err != nil {
		return SiteStatus{}, err
	}
	return x.SiteStatus(ctx)
}

type decideSite struct {
	Word string `json:"word"`
	Peer string `json:"peer"`
}

// Validate checks the decision.
func (q *decideSite) Validate() error {
	if q.Word == WordTakeOver || q.Word == WordGiveUp {
		return nil
	}
	return inventory.Invalid("word", "write take-over or give-up", "invalid decision %q", q.Word)
}

func (s *sites) decide(ctx context.Context, q decideSite) (SiteStatus, error) {
	x, err := s.peers()
	if err == nil {
		err = x.Decide(ctx, q.Word, q.Peer)
	}
	if err != nil {
		return SiteStatus{}, err
	}
	s.log.Warn("the operator has decided about this server", "word", q.Word, "by", httpapi.Actor(ctx))

	return x.SiteStatus(ctx)
}

func (s *sites) listPeers(ctx context.Context, q httpapi.Empty) (httpapi.List[Peer], error) {
	st, err := s.get(ctx, q)
	return httpapi.NewList(st.Peers), err
}

// peerName is a name that fits into files and command lines.
var peerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// peerNameRule describes peerName.
const peerNameRule = "use lower-case letters, digits and -"

// fingerprintForm is the digest of a key.
var fingerprintForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Validate checks name, fingerprint and token.
func (p *NewPeer) Validate() error {
	var problems inventory.Problems
	if !peerName.MatchString(p.Name) {
		problems.Add("name", peerNameRule, "invalid name of a peer %q", p.Name)
	}
	if !fingerprintForm.MatchString(p.Fingerprint) {
		problems.Add("fingerprint", "copy it from what ingot standby printed",
			"invalid fingerprint %q, must be sha256:<64 hex digits>", p.Fingerprint)
	}
	if p.Token.IsZero() {
		problems.Add("token", "send the token that ingot standby made", "is missing")
	}
	return problems.Err()
}

func (s *sites) addPeer(ctx context.Context, q NewPeer) (Peer, error) {
	x, err := s.peers()
	if err != nil {
		return Peer{}, err
	}
	added, err := x.AddPeer(ctx, q)
	if err != nil {
		return Peer{}, err
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
	s.log.Warn("a peer was removed: it is not asked any more", "peer", q.Name, "by", httpapi.Actor(ctx))

	return nil
}

// startMigrate begins to move the site to a peer.
func (s *sites) startMigrate(ctx context.Context, in workflows.MigrateInput) (Started, error) {
	in.Name = cmp.Or(in.Name, in.Target)
	if !peerName.MatchString(in.Name) {
		return Started{}, inventory.Invalid("name", peerNameRule, "invalid name of a migration %q", in.Name)
	}
	st, err := s.get(ctx, httpapi.Empty{})
	if err != nil {
		return Started{}, err
	}
	if !slices.ContainsFunc(st.Peers, func(p Peer) bool { return p.Name == in.Target }) {
		return Started{}, hint(inventory.Invalid("target", "name a peer", "there is no peer %q", in.Target), "ingot peer list")
	}

	return s.operations.start(ctx, engine.Start{
		ID: workflows.MigrateID(in.Name), Type: workflows.MigrateType, Input: in,
	}, in.Name)
}
