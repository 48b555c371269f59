package site

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// decided is a decision, with the peer that it is about.
type decided struct {
	decision string // inventory.TakeOver or inventory.GiveUp; "": ask again
	peer     inventory.Peer
}

// question is what a source asks the operator.
type question struct {
	mu     sync.Mutex
	why    string // this server answers nothing; "": nothing is asked
	since  time.Time
	about  []inventory.Peer // that may be the site instead
	answer chan decided
}

// open asks; it reports whether nothing was asked before.
func (q *question) open(why string, now time.Time, about []inventory.Peer) (answer <-chan decided, isNew bool) {
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
func (s *Source) ask(ctx context.Context, why string, about ...inventory.Peer) (decided, error) {
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

// Decide passes on a decision. inventory.GiveUp names the peer that is the site, which may be
// left out where only one can be: otherwise it is inventory.ErrInvalid. It is
// inventory.ErrConflict when nothing is asked.
func (s *Source) Decide(ctx context.Context, decision, peer string) error {
	q := &s.question
	q.mu.Lock()
	answer, about, err := q.answer, inventory.Peer{}, error(nil)
	if decision == inventory.GiveUp && answer != nil {
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
	case answer <- decided{decision, about}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// findPeer is the peer of that name, or the only one there is.
func findPeer(peers []inventory.Peer, name string) (inventory.Peer, error) {
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
		return inventory.Peer{}, fmt.Errorf("say which peer is the site, with --peer: one of %s: %w", all, inventory.ErrInvalid)
	}

	return inventory.Peer{}, fmt.Errorf("peer %q is not in question, %s is: %w", name, all, inventory.ErrInvalid)
}
