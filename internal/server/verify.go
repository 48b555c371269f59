package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// Limits of verifySite.
const (
	clientWithin = 20 * time.Second
	clientEvery  = 500 * time.Millisecond
)

// verifySite checks a site on its new host: is a client answered, by this server
// alone, and do the BMCs answer? It returns what was seen and what the operator should
// look at. An error is one that machines would run into.
func (s *server) verifySite(ctx context.Context) ([]string, error) {
	seen := []string{"no interface is configured here: no machine is answered"}
	if s.netboot.on() {
		var err error
		if seen, err = checkAsClient(ctx, s.netboot.boot.CheckClient); err != nil {
			return nil, err
		}
	}
	notes, err := s.controllers.checkAll(ctx)
	return append(seen, notes...), err
}

// checkAsClient asks as a client does for as long as a missing part may still come up.
// After that the operator has to look: inventory.ErrConflict.
func checkAsClient(ctx context.Context, check func(context.Context) ([]string, error)) ([]string, error) {
	for start := time.Now(); ; {
		seen, err := check(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return seen, err
		case errors.Is(err, inventory.ErrConflict) || errors.Is(err, inventory.ErrInvalid):
			return nil, err
		case time.Since(start) > clientWithin:
			return nil, fmt.Errorf("%w: %w", err, inventory.ErrConflict)
		}
		if clock.Sleep(ctx, clientEvery) != nil {
			return nil, ctx.Err()
		}
	}
}
