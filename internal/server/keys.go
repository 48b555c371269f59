package server

import "context"

// rotateKeys replaces the keys of stored secrets and seals them again; it
// returns how many.
func (s *server) rotateKeys(ctx context.Context) (int, error) {
	s.rotating.Lock()
	defer s.rotating.Unlock()
	if err := s.store.KeyCheck(ctx); err != nil {
		return 0, err
	}
	if err := s.keys.Rotate(s.cfg.KeyFile); err != nil {
		return 0, err
	}
	// Begun, it is finished, whether or not the caller waits.
	return s.finishRotation(context.WithoutCancel(ctx))
}

// finishRotation seals with the new keys what the old ones had sealed, and
// only then drops those.
func (s *server) finishRotation(ctx context.Context) (int, error) {
	n, err := s.store.Reseal(ctx)
	if err != nil {
		return n, err
	}
	return n, s.keys.Retire(s.cfg.KeyFile)
}

// resumeRotation finishes a replacement of keys that broke off. If it cannot,
// everything opens as before: the key file holds both.
func (s *server) resumeRotation(ctx context.Context) {
	if !s.keys.Rotating() {
		return
	}
	n, err := s.finishRotation(ctx)
	if err != nil {
		s.log.Error("a replacement of keys that broke off cannot be finished: run ingot secret rotate", "error", err)
		return
	}
	s.log.Info("a replacement of keys that broke off is finished", "secrets", n)
}
