package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// secrets are the keys, the admin token and the certificate for agents.
type secrets struct {
	ring     *keyring.Ring // nil: the key file is missing
	rotating *sync.Mutex   // held while keys are replaced
	claim    []byte        // claims of machines are derived from it
	token    string
	agentTLS tls.Certificate
}

func loadSecrets(cfg config.Config) (out secrets, err error) {
	out.rotating = &sync.Mutex{}
	if out.ring, err = keyring.Load(cfg.KeyFile); err != nil && !errors.Is(err, inventory.ErrSealed) {
		return out, err
	}
	if out.claim = out.ring.Key(keyring.Claim); out.claim == nil {
		// Without the key file nothing can be armed, so no claim derived from this
		// key leaves the server.
		out.claim = make([]byte, 32)
		_, _ = rand.Read(out.claim) // never returns an error: it ends the program instead
	}

	if out.token, err = readAdminToken(cfg); err != nil {
		return out, err
	}
	out.agentTLS, err = identity.LoadCertificate(filepath.Join(filepath.Dir(cfg.KeyFile), identity.AgentFile))
	return out, err
}

func readAdminToken(cfg config.Config) (string, error) {
	token, err := identity.ReadToken(cfg.TokenFile)
	switch {
	case errors.Is(err, inventory.ErrInvalid):
		return "", fmt.Errorf("reading the admin token: %w (remove the file; ingot init makes a new one)", err)
	case err != nil:
		return "", fmt.Errorf("reading the admin token: %w (ingot init makes one)", err)
	}

	return token, nil
}

// RotateKeys replaces the keys of stored secrets and seals the secrets again; it
// returns how many.
func (s *server) RotateKeys(ctx context.Context) (int, error) {
	s.secrets.rotating.Lock()
	defer s.secrets.rotating.Unlock()
	if err := s.records.store.Keys.KeyCheck(ctx); err != nil {
		return 0, err
	}
	if err := s.secrets.ring.Rotate(s.cfg.KeyFile); err != nil {
		return 0, err
	}
	// Once begun, it is finished even if the caller goes away.
	return s.finishRotation(context.WithoutCancel(ctx))
}

// finishRotation seals with the new keys what the old ones had sealed, and only then
// drops the old ones.
func (s *server) finishRotation(ctx context.Context) (int, error) {
	n, err := s.records.store.Keys.Reseal(ctx)
	if err != nil {
		return n, err
	}
	return n, s.secrets.ring.Retire(s.cfg.KeyFile)
}

// resumeRotation finishes an interrupted replacement of keys. If that fails, all
// secrets can still be opened: the key file holds the old keys and the new ones.
func (s *server) resumeRotation(ctx context.Context) {
	if !s.secrets.ring.Rotating() {
		return
	}
	n, err := s.finishRotation(ctx)
	if err != nil {
		s.log.Error("an interrupted replacement of keys cannot be finished: run ingot secret rotate", "error", err)
		return
	}
	s.log.Info("an interrupted replacement of keys is finished", "secrets", n)
}
