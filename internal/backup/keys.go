package backup

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// MinPassphrase is the minimum length of a passphrase in bytes.
const MinPassphrase = 12

// ReadPassphrase returns the first line of a file that only its owner may read; see [durablefile.ReadPrivate]. If the line is
// too short, the error is inventory.ErrInvalid.
func ReadPassphrase(file string) (inventory.Secret, error) {
	b, err := durablefile.ReadPrivate(file)
	if err != nil {
		return inventory.Secret{}, fmt.Errorf("reading the passphrase: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	p := inventory.NewSecret(strings.TrimSuffix(line, "\r"))
	return p, CheckPassphrase(p)
}

// CheckPassphrase returns inventory.ErrInvalid if p is shorter than MinPassphrase.
func CheckPassphrase(p inventory.Secret) error {
	if len(p.Reveal()) < MinPassphrase {
		return refuse("the passphrase is shorter than %d characters", MinPassphrase)
	}
	return nil
}

// A Wrap describes how the keys are encrypted: AES-256-GCM under a key that Argon2id (RFC 9106) derives from a passphrase.
type Wrap struct {
	KDF       string `json:"kdf"`
	Time      uint32 `json:"time"`
	MemoryKiB uint32 `json:"memoryKiB"`
	Threads   uint8  `json:"threads"`
	Salt      []byte `json:"salt"`
	Nonce     []byte `json:"nonce"`
}

const argon2id = "argon2id"

// ErrPassphrase means that the passphrase does not open the keys.
var ErrPassphrase = refuse("wrong passphrase for this backup")

// Wrapped encrypts files (contents by name) for the backup id. It returns the parameters of the encryption and the
// encrypted files.
func Wrapped(passphrase inventory.Secret, id string, files map[string][]byte) (Wrap, []byte, error) {
	if err := CheckPassphrase(passphrase); err != nil {
		return Wrap{}, nil, err
	}

	text, err := json.Marshal(files)
	if err != nil {
		return Wrap{}, nil, err
	}

	// The parameters that RFC 9106, section 4, recommends for hosts with less memory.
	w := Wrap{KDF: argon2id, Time: 3, MemoryKiB: 64 << 10, Threads: 4, Salt: make([]byte, 16), Nonce: make([]byte, 12)}
	_, _ = rand.Read(w.Salt) // rand.Read never returns an error: it crashes the program instead
	_, _ = rand.Read(w.Nonce)
	gcm, err := w.gcm(passphrase)
	if err != nil {
		return Wrap{}, nil, err
	}

	return w, gcm.Seal(nil, w.Nonce, text, []byte(id)), nil
}

// Limits for the parameters of Argon2id: an untrusted archive must not determine how much memory and time are used.
const (
	minMemoryKiB = 8 << 10
	maxMemoryKiB = 256 << 10
	maxTime      = 4
	maxThreads   = 4
)

// check refuses parameters that this program never writes, before a key is derived with them.
func (w Wrap) check() error {
	if w.MemoryKiB > maxMemoryKiB || w.Time > maxTime || w.Threads > maxThreads {
		return refuse("decrypting the keys of the backup takes %d MiB of memory, %d passes and %d threads; at most %d MiB, %d and %d are allowed",
			w.MemoryKiB>>10, w.Time, w.Threads, maxMemoryKiB>>10, maxTime, maxThreads)
	}
	if w.KDF != argon2id || w.MemoryKiB < minMemoryKiB || w.Time < 1 || w.Threads < 1 || len(w.Salt) < 16 || len(w.Nonce) != 12 {
		return damaged("the keys are encrypted in an unknown way")
	}
	return nil
}

// Unwrap decrypts the result of Wrapped. It returns ErrPassphrase if the passphrase or the id differs from those in
// the call of Wrapped.
func (w Wrap) Unwrap(passphrase inventory.Secret, id string, sealed []byte) (map[string][]byte, error) {
	if err := w.check(); err != nil {
		return nil, err
	}

	gcm, err := w.gcm(passphrase)
	if err != nil {
		return nil, err
	}

	text, err := gcm.Open(nil, w.Nonce, sealed, []byte(id))
	if err != nil {
		return nil, ErrPassphrase
	}
	var files map[string][]byte
	if err := json.Unmarshal(text, &files); err != nil {
		return nil, errors.New("reading the keys of the backup: unexpected content after decryption")
	}

	return files, nil
}

func (w Wrap) gcm(passphrase inventory.Secret) (cipher.AEAD, error) {
	block, err := aes.NewCipher(argon2.IDKey([]byte(passphrase.Reveal()), w.Salt, w.Time, w.MemoryKiB, w.Threads, 32))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
