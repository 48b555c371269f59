package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// secrets are the keys, the admin token and the certificate of the agent API.
type secrets struct {
	keyFile  string
	ring     *keyring.Ring // nil = the key file is missing
	rotating sync.Mutex    // held while keys are replaced, and while a backup copies them
	claim    []byte        // key from which the claims of machines are derived
	token    string
	agentTLS tls.Certificate
}

func loadSecrets(cfg config.Config) (_ *secrets, err error) {
	out := &secrets{keyFile: cfg.KeyFile}
	if out.ring, err = keyring.Load(cfg.KeyFile); err != nil && !errors.Is(err, inventory.ErrSealed) {
		return nil, err
	}
	if out.claim = out.ring.Key(keyring.Claim); out.claim == nil {
		// Without the key file no machine can be armed. So claims derived from this random key never leave the server.
		out.claim = make([]byte, 32)
		_, _ = rand.Read(out.claim) // never returns an error: it crashes the program instead
	}

	if out.token, err = readAdminToken(cfg); err != nil {
		return nil, err
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

// rotate replaces the keys, seals the secrets in the store (sealed) with the new keys, and returns the number of secrets.
func (s *secrets) rotate(ctx context.Context, sealed sqlite.Keys) (int, error) {
	s.rotating.Lock()
	defer s.rotating.Unlock()
	if err := sealed.KeyCheck(ctx); err != nil {
		return 0, err
	}
	if err := s.ring.Rotate(s.keyFile); err != nil {
		return 0, err
	}
	// Once begun, the rotation is finished even if the caller's ctx ends.
	return s.finishRotation(context.WithoutCancel(ctx), sealed)
}

// finishRotation seals all secrets with the new keys, and only then deletes the old keys. It returns the number of secrets.
func (s *secrets) finishRotation(ctx context.Context, sealed sqlite.Keys) (int, error) {
	n, err := sealed.Reseal(ctx)
	if err != nil {
		return n, err
	}
	return n, s.ring.Retire(s.keyFile)
}

// resumeRotation finishes an interrupted rotation of keys. If that fails, all secrets can still be opened, because the key
// file holds both the old and the new keys.
func (s *secrets) resumeRotation(ctx context.Context, sealed sqlite.Keys, log *slog.Logger) {
	if !s.ring.Rotating() {
		return
	}
	n, err := s.finishRotation(ctx, sealed)
	if err != nil {
		log.Error("cannot finish an interrupted rotation of keys: run ingot secret rotate", "error", err)
		return
	}
	log.Info("finished an interrupted rotation of keys", "secrets", n)
}
