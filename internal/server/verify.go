package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// Time limit and pause of checkAsClient.
const (
	clientWithin = 20 * time.Second
	clientEvery  = 500 * time.Millisecond
)

// verifySite checks a site on its new host: machines must get DHCP answers, from this server only, and BMCs should answer. It
// returns its findings and the BMCs that fail. It returns an error if machines do not get correct answers.
func (s *server) verifySite(ctx context.Context) ([]string, error) {
	seen := []string{"no interface is configured on this server: it answers no machine"}
	if s.netboot.on() {
		var err error
		if seen, err = checkAsClient(ctx, s.netboot.boot.CheckClient); err != nil {
			return nil, err
		}
	}
	notes, err := s.controllers.checkAll(ctx)
	return append(seen, notes...), err
}

// checkAsClient repeats check for up to clientWithin, because a part of the server may still be starting. If check still fails then, the
// error is an inventory.ErrConflict: the operator must look at the cause.
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
