package siterole

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// decided is the operator's decision, and the peer to which the decision applies.
type decided struct {
	decision string // inventory.TakeOver or inventory.GiveUp; "" = none yet: ask the peers again
	peer     inventory.Peer
}

// question is what a source asks the operator: which server is the active one?
type question struct {
	mu     sync.Mutex
	why    string // why this server answers no machine; "" = no open question
	since  time.Time
	about  []inventory.Peer // peers that may be the active server
	answer chan decided
	closed chan struct{} // closed when the question is closed
}

// open opens the question, or updates the question that is open. isNew reports whether no question was open before.
func (q *question) open(why string, now time.Time, about []inventory.Peer) (answer <-chan decided, isNew bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	isNew = q.why == ""
	if isNew {
		q.since = now
	}
	q.why, q.about = why, about
	if q.answer == nil {
		q.answer, q.closed = make(chan decided), make(chan struct{})
	}

	return q.answer, isNew
}

func (q *question) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.answer != nil {
		close(q.closed)
	}
	q.why, q.about, q.answer = "", nil, nil
}

// ask puts the question to the operator and waits for a decision. If there is none after s.again(), it returns the zero decision, so that
// the caller asks the peers again. The question remains open.
func (s *Source) ask(ctx context.Context, why string, about ...inventory.Peer) (decided, error) {
	answer, isNew := s.question.open(why, s.Now(), about)
	if isNew {
		s.Log.Error("this server answers no machine until its peer answers or an operator decides; see ingot handover status",
			"why", why)
		if s.Asked != nil {
			if err := s.Asked(); err != nil {
				return decided{}, err
			}
		}
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

// Waiting returns why this server answers no machine, and since when. why is "" if no question is open.
func (s *Source) Waiting() (why string, since time.Time) {
	s.question.mu.Lock()
	defer s.question.mu.Unlock()
	return s.question.why, s.question.since
}

// Decide answers the open question. The decision inventory.GiveUp declares that another server is the active one. The argument peer is the
// name of that server; if the question is about one peer only, peer may be "". Decide returns inventory.ErrConflict if no question is open,
// and inventory.ErrInvalid if the question is not about the peer.
func (s *Source) Decide(ctx context.Context, decision, peer string) error {
	q := &s.question
	q.mu.Lock()
	answer, closed, about, err := q.answer, q.closed, inventory.Peer{}, error(nil)
	if decision == inventory.GiveUp && answer != nil {
		about, err = findPeer(q.about, peer)
	}
	q.mu.Unlock()
	switch {
	case answer == nil:
		return fmt.Errorf("no question is open: %w", inventory.ErrConflict)
	case err != nil:
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case answer <- decided{decision, about}:
		return nil
	case <-closed:
		return fmt.Errorf("the question was answered before this answer arrived: %w", inventory.ErrConflict)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// findPeer returns the peer with that name. If name is "" and there is only one peer, it returns that peer.
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
		return inventory.Peer{}, fmt.Errorf("give --peer with the peer that runs the site; must be one of %s: %w", all, inventory.ErrInvalid)
	}

	return inventory.Peer{}, fmt.Errorf("the question is not about peer %q; must be one of %s: %w", name, all, inventory.ErrInvalid)
}
