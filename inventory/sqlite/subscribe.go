package sqlite

import "github.com/jmoiron/sqlx"

// Subscribe returns a channel that receives a value after this process commits a
// write. Writes that a slow receiver missed are merged into one value; the store
// never blocks. Call cancel when done.
func (s *Store) Subscribe() (ch <-chan struct{}, cancel func()) { return s.subscribe("") }

// Watch is Subscribe for the grant, assignments and events of one machine: with a thousand waiting
// agents, a write wakes only one.
func (s *Store) Watch(machine string) (ch <-chan struct{}, cancel func()) {
	return s.subscribe(machine)
}

func (s *Store) subscribe(machine string) (ch <-chan struct{}, cancel func()) {
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
func (s *Store) touch(tx *sqlx.Tx, machine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.touched[tx] == nil {
		s.touched[tx] = map[string]bool{}
	}
	s.touched[tx][machine] = true
}

// show makes the commit of tx report the machine to followers only, for changes
// that no agent waits for.
func (s *Store) show(tx *sqlx.Tx, machine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.touched[tx] == nil {
		s.touched[tx] = map[string]bool{}
	}
	if _, known := s.touched[tx][machine]; !known {
		s.touched[tx][machine] = false
	}
}

func (s *Store) forgetTouched(tx *sqlx.Tx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.touched, tx)
}

// fire wakes the subscribers after the commit of tx.
func (s *Store) fire(tx *sqlx.Tx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.followers {
		for machine := range s.touched[tx] {
			f.touched[machine] = true
		}
	}

	for c := range s.subs[""] {
		signal(c)
	}
	for machine, wakes := range s.touched[tx] {
		if !wakes {
			continue
		}
		for c := range s.subs[machine] {
			signal(c)
		}
	}
}
