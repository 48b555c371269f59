package sqlite

import (
	"maps"
	"slices"
)

// Changes notifies subscribers of the writes of this process.
type Changes struct{ *db }

// Subscribe returns a channel that receives a value after this process commits a write. If the receiver is slow, several writes
// cause one value; the store never waits for the receiver. Call cancel when done.
func (s Changes) Subscribe() (ch <-chan struct{}, cancel func()) { return s.subscribe("") }

// Watch is Subscribe for the grant, assignments and events of one machine. A write for a machine thus wakes only its own agent,
// even if a thousand agents wait.
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

// touch makes the commit of tx wake the machine's watchers and report the machine to followers.
func (tx *transaction) touch(machine string) { tx.touched[machine] = true }

// show makes the commit of tx report the machine to followers only, for changes
// that no agent waits for.
func (tx *transaction) show(machine string) {
	if !tx.touched[machine] {
		tx.touched[machine] = false
	}
}

// fire wakes the subscribers after a commit and reports the touched machines to the followers.
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

// touchedOperations is the key in touched for records of operations. No machine can have this name.
const touchedOperations = "operations/"

// A follower collects the touched machines until they are fetched.
type follower struct{ touched map[string]bool }

// Follow returns the function take. take returns the machines that this process has changed since the last call of take, and whether
// it has written a record of an operation since. Call cancel when done.
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
