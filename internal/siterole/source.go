package siterole

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// SourceSteps are the side effects of a source on its host. Each step can be repeated after a crash.
type SourceSteps interface {
	// Copy makes and verifies copies of both databases and of the keys. It stops Temporal after the copy of Temporal's database.
	// When it returns without an error, both databases are closed.
	Copy(ctx context.Context, id string) (Copy, error)
	// SetAside renames Temporal's files, so that Temporal cannot start with them. PutBack reverts SetAside; it does nothing if the files were
	// not renamed.
	SetAside(id string) error
	PutBack(id string) error
	// Retire destroys the keys and writes the marker m in their place.
	Retire(m Mark) error
}

// Copy is the archive that the source sends to the target. It contains the whole site.
type Copy struct {
	Digest string // SHA-256, hex
	Size   int64
	Open   func() (io.ReadCloser, error)
}

// TargetAPI sends the requests of a source to its target. *Client implements it.
type TargetAPI interface {
	State(ctx context.Context, id string) (State, error)
	Prepare(ctx context.Context, id string, epoch int64, c Copy) (State, error)
	Activate(ctx context.Context, id string) (State, error)
	Refuse(ctx context.Context, id string) (State, error)
}

// Steps of a hand-over in order, each named after the state that it reaches.
const (
	StepSilent   = "silent" // the role file contains the role HandingOver
	StepCopied   = "copied"
	StepPrepared = "prepared"
	StepSetAside = "set-aside"
	StepActive   = "activated" // the target has confirmed its activation
	StepRetired  = "retired"
)

// Source is the server that hands the site over. After a crash, it finds out how the hand-over ended.
type Source struct {
	File  *File
	Steps SourceSteps
	// Dial returns the API of a peer. If Dial fails, the peer counts as unreachable.
	Dial func(p inventory.Peer) (TargetAPI, error)
	Log  *slog.Logger
	Now  func() time.Time
	// Again is the pause before the same request is sent again to a peer; 0 = 2 s.
	Again time.Duration
	// Reached is called after each step, in tests only. If it returns an error, the hand-over is interrupted as by a crash.
	Reached func(step string) error
	// Asked is called when the operator is asked. If it returns an error, the wait for a decision ends. Asked may be nil.
	Asked func() error

	question question
}

// tries is how often a request is sent as long as no response comes.
const tries = 3

// HandOver moves the site to the peer. The caller must first stop all answers, writes and workers of this server. If HandOver returns nil,
// the role in s.File is Retired, or, if the hand-over failed, Active with the reason in Site.HandOver.Why. If it returns
// inventory.ErrConflict and the role is Active, nothing was done. After any other error, this server must not answer machines: at its next
// start, Resume continues if the role is HandingOver, and EnsureRetired if it is Retired.
func (s *Source) HandOver(ctx context.Context, id string, peer inventory.Peer, epoch int64) error {
	_, err := s.File.Change(func(x *Site) error {
		if err := x.require(Active); err != nil {
			return err
		}
		if x.HandOver != nil && x.HandOver.ID == id {
			return fmt.Errorf("hand-over %q was withdrawn: %w", id, inventory.ErrConflict)
		}
		x.Role, x.Epoch = HandingOver, epoch
		x.HandOver = &HandOver{ID: id, Peer: peer.Name, Epoch: epoch, State: UnderWay, Since: s.Now().UTC()}
		return nil
	})
	if err != nil {
		return err
	}

	s.Log.Info("handing the site over: this server stops answering machines", "handover", id, "peer", peer.Name)
	if err := s.reached(StepSilent); err != nil {
		return err
	}

	var c Copy
	for _, step := range []struct {
		what    string
		do      func() error
		reached string
	}{
		{"copying", func() (err error) { c, err = s.Steps.Copy(ctx, id); return err }, StepCopied},
		{"preparing", func() error {
			return s.repeat(ctx, peer, func(api TargetAPI) error {
				_, err := api.Prepare(ctx, id, epoch, c)
				return err
			})
		}, StepPrepared},
		{"setting Temporal's file aside", func() error { return s.Steps.SetAside(id) }, StepSetAside},
	} {
		if err := step.do(); err != nil {
			return s.takeBack(ctx, id, peer, fmt.Errorf("%s: %w", step.what, err))
		}
		if err := s.reached(step.reached); err != nil {
			return err
		}
	}

	return s.activate(ctx, id, peer)
}

func (s *Source) reached(step string) error {
	s.Log.Info("hand-over", "step", step)
	if s.Reached == nil {
		return nil
	}
	return s.Reached(step)
}

// repeat calls ask until the peer responds, at most tries times, and returns the last error.
func (s *Source) repeat(ctx context.Context, peer inventory.Peer, ask func(TargetAPI) error) error {
	for try := 1; ; try++ {
		api, err := s.Dial(peer)
		if err == nil {
			err = ask(api)
		}
		if err == nil || !errors.Is(err, inventory.ErrUnreachable) || try == tries {
			return err
		}
		s.Log.Warn("the target did not answer", "peer", peer.Name, "try", try, "error", err)
		if clock.Sleep(ctx, s.again()) != nil {
			return ctx.Err()
		}
	}
}

// again returns the pause before the same request is sent again to a peer.
func (s *Source) again() time.Duration {
	if s.Again <= 0 {
		return 2 * time.Second
	}
	return s.Again
}

// activate asks the target to activate the site. If no response comes, the target may or may not have activated it; takeBack then asks
// until the target responds or the operator decides.
func (s *Source) activate(ctx context.Context, id string, peer inventory.Peer) error {
	err := s.repeat(ctx, peer, func(api TargetAPI) error {
		_, err := api.Activate(ctx, id)
		return err
	})
	if err != nil {
		return s.takeBack(ctx, id, peer, fmt.Errorf("activating: %w", err))
	}
	if err := s.reached(StepActive); err != nil {
		return err
	}

	return s.retire(id, peer, "handed over to "+peer.Name)
}

func (s *Source) retire(id string, to inventory.Peer, why string) error {
	_, err := s.File.Change(func(x *Site) error {
		x.Role, x.Successor, x.Why = Retired, &to, why
		if x.HandOver != nil && x.HandOver.ID == id {
			x.HandOver.State = Moved
		}
		return nil
	})
	if err != nil {
		return err
	}

	if err := s.Steps.Retire(s.markOf(id, to)); err != nil {
		return fmt.Errorf("retiring: %w", err)
	}
	s.Log.Info("this server is retired", "successor", to.Name, "why", why)
	return s.reached(StepRetired)
}

// EnsureRetired completes a retirement that a crash may have interrupted.
func (s *Source) EnsureRetired() error {
	x := s.File.Site()
	id := unknownHandOver
	if x.HandOver != nil {
		id = x.HandOver.ID
	}
	var to inventory.Peer
	if x.Successor != nil {
		to = *x.Successor
	}
	return s.Steps.Retire(s.markOf(id, to))
}

// unknownHandOver takes the place of the hand-over's id if this server has no record of the hand-over.
const unknownHandOver = "unknown"

// markOf returns the marker of a server whose site has moved to the given peer.
func (s *Source) markOf(id string, to inventory.Peer) (m Mark) {
	m.Retired.To, m.Retired.ID, m.Retired.At = to, id, s.Now().UTC()
	return m
}

// takeBack ends a hand-over that failed with the error why. If the target has activated the site nevertheless, this server retires.
// Otherwise the target refuses this hand-over permanently, and this server becomes active again.
func (s *Source) takeBack(ctx context.Context, id string, peer inventory.Peer, why error) error {
	if ctx.Err() != nil {
		return ctx.Err() // this process ends; Resume continues at the next start
	}
	s.Log.Error("the hand-over failed; taking the site back", "handover", id, "error", why)
	return s.resolve(ctx, id, peer, why)
}

// Resume finds out how an interrupted hand-over ended, and completes or reverts it.
func (s *Source) Resume(ctx context.Context) error {
	x := s.File.Site()
	if x.Role != HandingOver || x.HandOver == nil {
		return fmt.Errorf("this server is %s: %w", x.Role, inventory.ErrConflict)
	}
	peer, err := x.Peer(x.HandOver.Peer)
	if err != nil {
		return err
	}
	return s.resolve(ctx, x.HandOver.ID, peer, errors.New("this server stopped during the hand-over"))
}

// resolve asks the target how the hand-over ended, until the target responds or the operator decides. Then this server retires or becomes
// active again; why is recorded as the reason that the hand-over failed.
func (s *Source) resolve(ctx context.Context, id string, peer inventory.Peer, why error) error {
	for {
		over, err := s.refuse(ctx, id, peer)
		if err == nil {
			s.question.close()
			if over {
				return s.retire(id, peer, "handed over to "+peer.Name)
			}
			return s.goOn(id, why.Error(), nil)
		}

		d, err := s.ask(ctx, fmt.Sprintf(
			"hand-over %s to %s: only %s knows whether it was completed, but does not answer: %v", id, peer.Name, peer.Name, err), peer)
		switch {
		case err != nil:
			return err
		case d.decision == inventory.TakeOver:
			return s.goOn(id, "taken back by an operator, who said that "+peer.Name+" is off", &peer)
		case d.decision == inventory.GiveUp:
			return s.retire(id, peer, "given up by an operator, who said that "+peer.Name+" runs the site")
		}
	}
}

// refuse reports whether the target has activated the site of this hand-over. If not, it makes the target refuse the hand-over permanently.
// An error means that neither is certain.
func (s *Source) refuse(ctx context.Context, id string, peer inventory.Peer) (over bool, err error) {
	api, err := s.Dial(peer)
	if err != nil {
		return false, err
	}

	st, err := api.State(ctx, id)
	switch {
	case err != nil:
		return false, err
	case st.Activated == id:
		return true, nil
	}

	if st, err = api.Refuse(ctx, id); err == nil {
		if !st.Refused {
			return false, errors.New("the peer neither refused nor activated the hand-over")
		}
		return false, nil
	}
	if again, e := api.State(ctx, id); e == nil && again.Activated == id {
		return true, nil
	}

	return false, err
}

// goOn makes this server active again, with a site epoch that no target of this hand-over can own. If forget is not nil, that peer is
// removed: the operator has said that the peer is off, and this server would ask it at its next start.
func (s *Source) goOn(id, why string, forget *inventory.Peer) error {
	if err := s.Steps.PutBack(id); err != nil {
		return fmt.Errorf("putting Temporal's file back: %w", err)
	}

	x, err := s.File.Change(func(x *Site) error {
		x.Role, x.Epoch = Active, x.HandOver.Epoch+2
		x.HandOver.State, x.HandOver.Why = Failed, why
		if forget != nil {
			x.Peers = slices.DeleteFunc(x.Peers, func(p inventory.Peer) bool { return p.Name == forget.Name })
			x.Why = why
		}
		return nil
	})
	if err == nil {
		s.Log.Warn("this server continues to run the site", "handover", id, "epoch", x.Epoch, "why", why)
	}

	return err
}
