package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	ejectEvery = 5 * time.Second
	// ejectTime limits one attempt, ejectPause is the pause after a failed one.
	ejectTime, ejectPause = 2 * time.Minute, time.Minute
)

// mediaURL returns the URL of the image for virtual CD drives.
func (s *server) mediaURL() (string, error) {
	if _, err := os.Stat(filepath.Join(s.cfg.Netboot.Loaders, bootsvc.MediaName)); err != nil {
		return "", fmt.Errorf("netboot.loaders has no %s; Debian's package ipxe, from version 1.21, has it: %w: %w", bootsvc.MediaName,
			inventory.ErrUnsupported, err)
	}
	return s.netboot.boot.Base() + "/media/" + bootsvc.MediaName, nil
}

// ejectMedia ejects what runs have inserted into virtual CD drives, as soon as the run is over, until
// ctx ends. It works from the records that the runs wrote before they inserted anything, so it does
// not matter how a run ended.
func (s *server) ejectMedia(ctx context.Context) error {
	tick := time.NewTicker(ejectEvery)
	defer tick.Stop()
	failed := map[inventory.Media]time.Time{}
	for {
		all, err := s.records.store.Media(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Error("ejecting virtual media", "error", err)
		}
		for _, m := range all {
			if time.Since(failed[m]) < ejectPause {
				continue
			}
			delete(failed, m)
			if err := s.eject(ctx, m); err != nil && ctx.Err() == nil {
				s.log.Warn("ejecting virtual media; will be tried again", "machine", m.Machine, "in", ejectPause, "error", err)
				failed[m] = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// errInUse means that a run still needs the medium, or another run has the machine.
var errInUse = errors.New("the medium is in use")

// eject ejects a medium unless its run still holds the machine.
func (s *server) eject(ctx context.Context, m inventory.Media) error {
	store := s.records.store
	over := func(ctx context.Context) error {
		g, err := store.Grant(ctx, m.Machine)
		if err == nil && g.Run != "" {
			err = errInUse
		}
		return err
	}
	if err := over(ctx); err != nil {
		if errors.Is(err, errInUse) {
			return nil
		}
		return err
	}
	machine, err := store.Machine(ctx, m.Machine)
	if err != nil {
		return err
	}
	if machine.BMC.Capabilities().Media { // otherwise its BMC was replaced since
		password, err := s.rotation().Password(ctx, machine)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, ejectTime)
		defer cancel()
		if err := s.bmc.SetMedia(ctx, machine.Controller(), password, "", over); err != nil {
			if errors.Is(err, errInUse) {
				return nil
			}
			return err
		}
	}
	s.log.Info("virtual media ejected", "machine", m.Machine, "run", m.Run)
	return store.DeleteMedia(ctx, m)
}
