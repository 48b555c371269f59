package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// SourceDeeds are what a source does with its own site. Each may be asked for
// again after a crash at any of its moments.
type SourceDeeds interface {
	// Copy makes and proves copies of both databases and of the keys, Temporal's
	// as its child's last deed. Nothing has them open any more when it returns.
	Copy(ctx context.Context, id string) (Copy, error)
	// SetAside renames Temporal's file, so that no server runs on it; PutBack
	// undoes that, and does nothing when there is nothing to undo.
	SetAside(id string) error
	PutBack(id string) error
	// Retire destroys the keys and leaves the mark in their place.
	Retire(m Mark) error
}

// A Copy is a site as it is sent.
type Copy struct {
	Digest string // SHA-256, hex
	Size   int64
	Open   func() (io.ReadCloser, error)
}

// TargetAPI is what a source asks of its target; *Client is one.
type TargetAPI interface {
	State(ctx context.Context, id string) (State, error)
	Prepare(ctx context.Context, id string, epoch int64, digest string, size int64, r io.Reader) (State, error)
	Activate(ctx context.Context, id string) (State, error)
	Refuse(ctx context.Context, id string) (State, error)
}

// Steps of the source, in their order; each is named after what is done by then.
const (
	StepSilent   = "silent" // handing-over is on the disk
	StepCopied   = "copied"
	StepPrepared = "prepared"
	StepSetAside = "set-aside"
	StepActive   = "activated" // the target said so
	StepRetired  = "retired"
)

// A Word is what a person says of a source or target that cannot tell by itself.
type Word int

// Words.
const (
	TakeOver Word = iota + 1 // the other host is off: this server is the site
	GiveUp                   // the other server is the site: this one is retired
)

// A Source hands a site over, and finds out after a crash how that ended.
type Source struct {
	File  *File
	Deeds SourceDeeds
	// Dial returns the API of a peer; an error is as if it were unreachable.
	Dial func(p Peer) (TargetAPI, error)
	Log  *slog.Logger
	Now  func() time.Time
	// Again is the pause before a peer is asked again, 2 s.
	Again time.Duration
	// Reached is told of each step; an error of it stops the machine there, as
	// a crash would. Nil in all but tests.
	Reached func(step string) error

	mu      sync.Mutex
	waiting string // why nothing is answered
	since   time.Time
	asked   []Peer      // that may be the site instead, while there is a question
	word    chan spoken // of a person, while there is a question
}

// spoken is a person's word, with the peer that it is about.
type spoken struct {
	word Word
	peer Peer
}

// tries is how often a request whose answer did not come is sent again.
const tries = 3

// HandOver moves the site to the peer. Whoever calls it has silenced this
// server: nothing answers, nothing writes, no worker runs. When it returns nil
// the file says what this server is now: Retired, or Active again with the
// reason in HandOver.Why. An error that is not ctx's is one of this host; the
// server is silent then, and Resume finds out.
func (s *Source) HandOver(ctx context.Context, id string, peer Peer, epoch int64) error {
	_, err := s.File.Change(func(x *Site) error {
		if x.Role != Active {
			return fmt.Errorf("this server is %s: %w", x.Role, inventory.ErrConflict)
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
	s.Log.Info("handing over: this server answers nobody from here on", "handover", id, "peer", peer.Name)
	if err := s.reached(StepSilent); err != nil {
		return err
	}
	c, err := s.Deeds.Copy(ctx, id)
	if err != nil {
		return s.takeBack(ctx, id, peer, fmt.Errorf("copying: %w", err))
	}
	if err := s.reached(StepCopied); err != nil {
		return err
	}
	if err := s.prepare(ctx, id, peer, epoch, c); err != nil {
		return s.takeBack(ctx, id, peer, fmt.Errorf("preparing: %w", err))
	}
	if err := s.reached(StepPrepared); err != nil {
		return err
	}
	if err := s.Deeds.SetAside(id); err != nil {
		return s.takeBack(ctx, id, peer, fmt.Errorf("setting Temporal's file aside: %w", err))
	}
	if err := s.reached(StepSetAside); err != nil {
		return err
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

func (s *Source) prepare(ctx context.Context, id string, peer Peer, epoch int64, c Copy) error {
	return s.repeat(ctx, peer, func(api TargetAPI) error {
		r, err := c.Open()
		if err != nil {
			return err
		}
		_, err = api.Prepare(ctx, id, epoch, c.Digest, c.Size, r)
		_ = r.Close() // only read
		return err
	})
}

// repeat asks up to tries times, as long as no answer comes.
func (s *Source) repeat(ctx context.Context, peer Peer, ask func(TargetAPI) error) error {
	for try := 1; ; try++ {
		api, err := s.Dial(peer)
		if err == nil {
			err = ask(api)
		}
		if err == nil || !errors.Is(err, inventory.ErrUnreachable) || try == tries {
			return err
		}
		s.Log.Warn("the target gave no answer", "peer", peer.Name, "try", try, "error", err)
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
}

func (s *Source) pause(ctx context.Context) error {
	again := s.Again
	if again <= 0 {
		again = 2 * time.Second
	}
	select {
	case <-time.After(again):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// activate asks for the commit. An answer that does not come leaves open
// whether it happened: the target is asked until it tells, or a person does.
func (s *Source) activate(ctx context.Context, id string, peer Peer) error {
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

func (s *Source) retire(id string, to Peer, why string) error {
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
	var m Mark
	m.Retired.To, m.Retired.URL, m.Retired.Fingerprint = to.Name, to.URL, to.Fingerprint
	m.Retired.ID, m.Retired.At = id, s.Now().UTC()
	if err := s.Deeds.Retire(m); err != nil {
		return fmt.Errorf("retiring: %w", err)
	}
	s.Log.Info("this server is retired", "successor", to.Name, "why", why)
	return s.reached(StepRetired)
}

// EnsureRetired finishes what a crash may have left of a retirement.
func (s *Source) EnsureRetired() error {
	x := s.File.Site()
	var m Mark
	if x.Successor != nil {
		m.Retired.To, m.Retired.URL, m.Retired.Fingerprint = x.Successor.Name, x.Successor.URL, x.Successor.Fingerprint
	}
	m.Retired.ID, m.Retired.At = "unknown", s.Now().UTC()
	if x.HandOver != nil {
		m.Retired.ID = x.HandOver.ID
	}
	return s.Deeds.Retire(m)
}

// takeBack ends a hand-over that failed: first the target refuses it for ever.
func (s *Source) takeBack(ctx context.Context, id string, peer Peer, why error) error {
	if ctx.Err() != nil {
		return ctx.Err() // this server is told to stop; Resume goes on
	}
	s.Log.Error("the hand-over failed and is taken back", "handover", id, "error", why)
	return s.resolve(ctx, id, peer, why)
}

// Resume finds out how a hand-over ended that this server was in the midst of.
func (s *Source) Resume(ctx context.Context) error {
	x := s.File.Site()
	if x.Role != HandingOver || x.HandOver == nil {
		return fmt.Errorf("this server is %s: %w", x.Role, inventory.ErrConflict)
	}
	peer, err := x.Peer(x.HandOver.Peer)
	if err != nil {
		return err
	}
	return s.resolve(ctx, x.HandOver.ID, peer, errors.New("the server ended in its midst"))
}

// resolve asks the target until it says what became of the hand-over.
func (s *Source) resolve(ctx context.Context, id string, peer Peer, why error) error {
	for {
		over, err := s.refuse(ctx, id, peer)
		switch {
		case err == nil && over:
			s.quiet("")
			return s.retire(id, peer, "handed over to "+peer.Name)
		case err == nil:
			s.quiet("")
			return s.goOn(id, why.Error(), nil)
		}
		w, err := s.ask(ctx, fmt.Sprintf("hand-over %s to %s: whether it happened is known to %s alone, which does not tell: %v", id, peer.Name, peer.Name, err), peer)
		switch {
		case err != nil:
			return err
		case w.word == TakeOver:
			return s.goOn(id, "taken back by a person, by whose word "+peer.Name+" is off", &peer)
		case w.word == GiveUp:
			return s.retire(id, peer, "given up by a person, by whose word "+peer.Name+" is the site")
		}
	}
}

// refuse tells whether the hand-over is over, after the target has made sure
// that it either happened or never will.
func (s *Source) refuse(ctx context.Context, id string, peer Peer) (over bool, err error) {
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
			return false, errors.New("its answer is neither yes nor no")
		}
		return false, nil
	}
	if again, e := api.State(ctx, id); e == nil && again.Activated == id {
		return true, nil
	}
	return false, err
}

// goOn makes this server the site again, in a site epoch that no target of
// this hand-over can own. A peer that is off by a person's word is forgotten:
// it would be asked at the next start.
func (s *Source) goOn(id, why string, forget *Peer) error {
	if err := s.Deeds.PutBack(id); err != nil {
		return fmt.Errorf("putting Temporal's file back: %w", err)
	}
	x, err := s.File.Change(func(x *Site) error {
		x.Role, x.Epoch = Active, x.HandOver.Epoch+2
		x.HandOver.State, x.HandOver.Why = Failed, why
		if forget != nil {
			x.Peers = without(x.Peers, forget.Name)
			x.Why = why
		}
		return nil
	})
	if err == nil {
		s.Log.Warn("this server goes on as the site", "handover", id, "epoch", x.Epoch, "why", why)
	}
	return err
}

func without(all []Peer, name string) (out []Peer) {
	for _, p := range all {
		if p.Name != name {
			out = append(out, p)
		}
	}
	return out
}

// Guard returns when this server may answer: every known peer has said that it
// is not the site, or a person has. When one of them is, this server is retired
// and the file says so.
func (s *Source) Guard(ctx context.Context) error {
	for {
		x := s.File.Site()
		if x.Role != Active {
			return nil
		}
		trouble, which, done, err := s.askPeers(ctx, x)
		if err != nil || done {
			s.quiet("")
			return err
		}
		w, err := s.ask(ctx, trouble, which...)
		switch {
		case err != nil:
			return err
		case w.word == TakeOver:
			_, err := s.File.Change(func(x *Site) error {
				x.Peers, x.Why = nil, "taken over by a person, by whose word every peer is off"
				return nil
			})
			return err
		case w.word == GiveUp:
			return s.retire("unknown", w.peer, "given up by a person, by whose word "+w.peer.Name+" is the site")
		}
	}
}

// askPeers asks all of them: one that says that it is the site settles it,
// whoever else does not answer. which are the peers of the trouble: the ones of
// which a person may say that they are the site.
func (s *Source) askPeers(ctx context.Context, x Site) (trouble string, which []Peer, done bool, err error) {
	var prepared *Peer
	var doubts []string
	for _, p := range x.Peers {
		var st State
		api, err := s.Dial(p)
		if err == nil {
			st, err = api.State(ctx, "")
		}
		switch {
		case ctx.Err() != nil:
			return "", nil, false, ctx.Err()
		case err != nil:
			doubts, which = append(doubts, fmt.Sprintf("peer %s may be the site by now, and does not tell: %v", p.Name, err)), append(which, p)
		case st.Role == Standby && st.Prepared == "":
		case st.Role == Standby:
			trouble, prepared = fmt.Sprintf("hand-over %s to %s is under way, and this server knows nothing of it: is this a copy of the site?", st.Prepared, p.Name), &p
		case st.Role == Retired && st.Successor != nil:
			return "", nil, true, s.retire(st.Activated, *st.Successor, fmt.Sprintf("%s was the site and has moved to %s", p.Name, st.Successor.Name))
		default:
			return "", nil, true, s.retire(st.Activated, p, fmt.Sprintf("%s is the site, in site epoch %d", p.Name, st.Epoch))
		}
	}
	if prepared != nil {
		// Who takes over says of the others, too, that they are off.
		return strings.Join(append([]string{trouble}, doubts...), "; "), []Peer{*prepared}, false, nil
	}
	return strings.Join(doubts, "; "), which, len(doubts) == 0, nil
}

// ask waits for a moment, or for a person's word about one of the peers; the
// zero word is the moment.
func (s *Source) ask(ctx context.Context, why string, peers ...Peer) (spoken, error) {
	word := s.quiet(why, peers...)
	again := s.Again
	if again <= 0 {
		again = 2 * time.Second
	}
	select {
	case <-time.After(again):
		return spoken{}, nil
	case w := <-word:
		s.quiet("")
		return w, nil
	case <-ctx.Done():
		return spoken{}, ctx.Err()
	}
}

// quiet remembers why nothing is answered; "" is over.
func (s *Source) quiet(why string, peers ...Peer) <-chan spoken {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = peers
	if why == "" {
		s.waiting, s.word = "", nil
		return nil
	}
	if s.waiting == "" {
		s.since = s.Now()
		s.Log.Error("this server answers nobody until a person decides, or its peer answers: ingot handover status", "why", why)
	}
	s.waiting = why
	if s.word == nil {
		s.word = make(chan spoken)
	}
	return s.word
}

// Waiting tells why this server answers nobody and since when; "" when there
// is nothing for a person to decide.
func (s *Source) Waiting() (why string, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting, s.since
}

// Say passes on a person's word. With GiveUp it is about the peer that is the
// site, which may be left out where only one can be: otherwise it is
// inventory.ErrInvalid. inventory.ErrConflict when nothing is asked.
func (s *Source) Say(ctx context.Context, w Word, peer string) error {
	s.mu.Lock()
	word, about, err := s.word, Peer{}, error(nil)
	if w == GiveUp && word != nil {
		about, err = oneOf(s.asked, peer)
	}
	s.mu.Unlock()
	switch {
	case word == nil:
		return fmt.Errorf("nothing is to be decided: %w", inventory.ErrConflict)
	case err != nil:
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case word <- spoken{w, about}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// oneOf is the peer of that name, or the only one there is.
func oneOf(peers []Peer, name string) (Peer, error) {
	if name == "" && len(peers) == 1 {
		return peers[0], nil
	}
	var names []string
	for _, p := range peers {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	if name == "" {
		return Peer{}, fmt.Errorf("say which peer is the site, with --peer: one of %s: %w", strings.Join(names, ", "), inventory.ErrInvalid)
	}
	return Peer{}, fmt.Errorf("peer %q is not in question, %s is: %w", name, strings.Join(names, ", "), inventory.ErrInvalid)
}
