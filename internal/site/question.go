package site

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// A Decision is the operator's answer when a server cannot find out alone whether it
// is the site.
type Decision int

// Decisions.
const (
	TakeOver Decision = iota + 1 // the other host is off: this server is the site
	GiveUp                       // the other server is the site: this one is retired
)

// decided is a decision, with the peer that it is about.
type decided struct {
	decision Decision
	peer     Peer
}

// question is what a source asks the operator.
type question struct {
	mu     sync.Mutex
	why    string // this server answers nothing; "": nothing is asked
	since  time.Time
	about  []Peer // that may be the site instead
	answer chan decided
}

// open asks; it reports whether nothing was asked before.
func (q *question) open(why string, now time.Time, about []Peer) (answer <-chan decided, isNew bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	isNew = q.why == ""
	if isNew {
		q.since = now
	}
	q.why, q.about = why, about
	if q.answer == nil {
		q.answer = make(chan decided)
	}

	return q.answer, isNew
}

func (q *question) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.why, q.about, q.answer = "", nil, nil
}

// ask waits until the peers are to be asked again, or for a decision about one of
// them. The zero decision means to ask again.
func (s *Source) ask(ctx context.Context, why string, about ...Peer) (decided, error) {
	answer, isNew := s.question.open(why, s.Now(), about)
	if isNew {
		s.Log.Error("this server answers no machine until its peer answers, or an operator decides: ingot handover status",
			"why", why)
	}

	select {
	case <-time.After(s.again()):
		return decided{}, nil
	case d := <-answer:
		s.question.close()
		return d, nil
	case <-ctx.Done():
		return decided{}, ctx.Err()
	}
}

// Waiting returns why this server answers no machine, and since when; "" when the
// operator has nothing to decide.
func (s *Source) Waiting() (why string, since time.Time) {
	s.question.mu.Lock()
	defer s.question.mu.Unlock()
	return s.question.why, s.question.since
}

// Decide passes on a decision. GiveUp names the peer that is the site, which may be
// left out where only one can be: otherwise it is inventory.ErrInvalid. It is
// inventory.ErrConflict when nothing is asked.
func (s *Source) Decide(ctx context.Context, d Decision, peer string) error {
	q := &s.question
	q.mu.Lock()
	answer, about, err := q.answer, Peer{}, error(nil)
	if d == GiveUp && answer != nil {
		about, err = findPeer(q.about, peer)
	}
	q.mu.Unlock()
	switch {
	case answer == nil:
		return fmt.Errorf("nothing is to be decided: %w", inventory.ErrConflict)
	case err != nil:
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case answer <- decided{d, about}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// findPeer is the peer of that name, or the only one there is.
func findPeer(peers []Peer, name string) (Peer, error) {
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

	all := strings.Join(names, ", ")
	if name == "" {
		return Peer{}, fmt.Errorf("say which peer is the site, with --peer: one of %s: %w", all, inventory.ErrInvalid)
	}

	return Peer{}, fmt.Errorf("peer %q is not in question, %s is: %w", name, all, inventory.ErrInvalid)
}
