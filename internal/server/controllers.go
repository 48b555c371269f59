package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// controllers operate the BMCs of the machines, with the passwords and keys in the inventory.
type controllers struct {
	driver    *bmc.Driver
	store     *sqlite.Store
	forgotten sync.Map // by BMC address, the time.Time at which an operator had the BMC's key deleted
}

func (s *server) newControllers() (*controllers, error) {
	networks, err := config.Prefixes(s.cfg.BMC.Networks)
	if err != nil {
		return nil, err
	}

	commands := map[string]bmc.Command{}
	for name, c := range s.cfg.Power.Commands {
		commands[name] = bmc.Command{On: c.On, Off: c.Off, Status: c.Status, Timeout: c.Timeout}
	}

	var authorities *x509.CertPool
	if file := s.cfg.BMC.CAFile; file != "" {
		if authorities, err = identity.Authorities(file); err != nil {
			return nil, fmt.Errorf("bmc.ca_file: %w", err)
		}
	}

	driver := bmc.New(bmc.Config{
		Authorities: authorities, Keys: s.records.store.BMCKeys, Refusals: s.records.store.BMCRefusals, DigestKey: s.secrets.ring.BMCDigestKey(),
		Observe: s.observeBMC, Log: s.log.With("part", "bmc"), Networks: networks, Commands: commands, WakeFrom: s.netboot.address,
		Home: filepath.Join(s.cfg.DataDir, "ipmitool"), LockFile: filepath.Join(s.cfg.DataDir, "bmc.lock"),
	})
	return &controllers{driver: driver, store: s.records.store}, nil
}

// observeBMC counts an operation on a BMC and records its span.
func (s *server) observeBMC(ctx context.Context, o bmc.Operation) {
	s.metrics.ObserveBMC(o)
	if s.tracing != nil {
		s.tracing.BMC(ctx, o)
	}
}

// check logs in to the BMC of a machine and reads its state. If retry is set, it also tries credentials that the BMC has refused before
// and that are therefore not used at the moment.
func (c *controllers) check(ctx context.Context, m inventory.Machine, retry bool) (inventory.BMCReport, error) {
	if m.BMC.Manual() {
		return inventory.BMCReport{}, fmt.Errorf("machine %q has no BMC: %w", m.Name, inventory.ErrUnsupported)
	}
	if retry {
		if err := c.driver.AllowRetry(ctx, m.Controller()); err != nil {
			return inventory.BMCReport{}, err
		}
	}

	password, err := c.rotation().Password(ctx, m)
	if err != nil {
		return inventory.BMCReport{}, err
	}
	if can := m.BMC.Capabilities(); can.SelfTest || can.Inspects {
		return c.driver.Check(ctx, m.Controller(), password)
	}
	power, err := c.driver.State(ctx, m.Controller(), password)
	return inventory.BMCReport{Power: power}, err
}

// rotation returns the Rotation, which changes passwords of BMCs and determines the current password.
func (c *controllers) rotation() *activities.Rotation {
	return &activities.Rotation{Store: c.store.BMCPasswords, BMC: c.driver}
}

// passwords returns the passwords that BMCs accept, also during an unfinished rotation.
type passwords struct {
	machines sqlite.Machines
	rotation *activities.Rotation
}

// BMCPassword implements activities.Passwords.
func (m passwords) BMCPassword(ctx context.Context, name string) (inventory.Secret, error) {
	machine, err := m.machines.Machine(ctx, name)
	if err != nil {
		return inventory.Secret{}, err
	}
	return m.rotation.Password(ctx, machine)
}

// forgetKey deletes the stored key of the BMC at address. If that key has prevented the ejection of a medium, the ejection is
// retried at once.
func (c *controllers) forgetKey(ctx context.Context, address string) error {
	err := c.store.BMCKeys.ForgetBMCKey(ctx, address)
	if err == nil {
		c.forgotten.Store(address, time.Now())
	}
	return err
}

const (
	bmcsAtOnce = 8
	bmcWithin  = 30 * time.Second
	maxNotes   = 10
)

// checkAll checks all BMCs. It returns a note for each BMC that fails, but at most maxNotes, and then the number of further ones.
func (c *controllers) checkAll(ctx context.Context) ([]string, error) {
	ms, err := c.store.Machines.Machines(ctx)
	if err != nil {
		return nil, err
	}

	var mu sync.Mutex
	var notes []string
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(bmcsAtOnce)
	for _, m := range ms {
		if m.BMC.Manual() {
			continue
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, bmcWithin)
			defer cancel()
			if _, err := c.check(ctx, m, false); err != nil {
				mu.Lock()
				defer mu.Unlock()
				notes = append(notes, fmt.Sprintf("the BMC of %s does not answer here: %v", m.Name, err))
			}
			return nil
		})
	}

	if err := g.Wait(); err != nil {
		return nil, err
	}

	slices.Sort(notes)
	if more := len(notes) - maxNotes; more > 0 {
		notes = append(notes[:maxNotes], fmt.Sprintf("and %d more", more))
	}

	return notes, nil
}
