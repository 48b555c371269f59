package sqlite

import (
	"maps"
	"slices"
)

// Changes notifies subscribers when this process writes to the database.
type Changes struct{ *db }

// Subscribe returns a channel that receives a value after each write that this process commits. The store never waits for the receiver: if
// the receiver is slow, it gets one value for several writes. Call cancel when done.
func (s Changes) Subscribe() (ch <-chan struct{}, cancel func()) { return s.subscribe("") }

// Watch is like Subscribe, but only for changes of one machine's grant, assignments and events. So a write for a machine wakes only the
// agent of this machine, even if a thousand agents wait.
func (s Changes) Watch(machine string) (ch <-chan struct{}, cancel func()) {
	return s.subscribe(machine)
}

func (s *db) subscribe(machine string) (ch <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs[machine] == nil {
		s.subs[machine] = map[chan struct{}]bool{}
	}
	s.subs[machine][c] = true
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subs[machine], c)
		if len(s.subs[machine]) == 0 {
			delete(s.subs, machine)
		}
	}
}

// touch records that tx changes the machine. After the commit, the subscribers that watch the machine are woken, and followers learn that
// the machine has changed.
func (tx *transaction) touch(machine string) { tx.touched[machine] = true }

// show records that tx changes the machine in a way for which no agent waits. After the commit, followers learn that the machine has
// changed, but subscribers that watch the machine are not woken.
func (tx *transaction) show(machine string) {
	if !tx.touched[machine] {
		tx.touched[machine] = false
	}
}

// fire is called after a commit. It wakes the subscribers, and records the touched machines for the followers.
func (s *db) fire(touched map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.followers {
		for machine := range touched {
			f.touched[machine] = true
		}
	}

	for c := range s.subs[""] {
		signal(c)
	}
	for machine, wakes := range touched {
		if !wakes {
			continue
		}
		for c := range s.subs[machine] {
			signal(c)
		}
	}
}

// touchedOperations takes the place of a machine's name in touched, and means that a record of an operation was written. No machine can
// have this name.
const touchedOperations = "operations/"

// A follower collects the names of changed machines until they are fetched (see Follow).
type follower struct{ touched map[string]bool }

// Follow returns the function take. take returns the machines that this process has changed since the previous call of take. operations is
// true if a record of an operation was also written since then. Call cancel when done.
func (s Changes) Follow() (take func() (machines []string, operations bool), cancel func()) {
	f := &follower{touched: map[string]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers[f] = true

	take = func() ([]string, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		operations := f.touched[touchedOperations]
		delete(f.touched, touchedOperations)
		machines := slices.Sorted(maps.Keys(f.touched))
		clear(f.touched)
		return machines, operations
	}
	return take, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, f)
	}
}
