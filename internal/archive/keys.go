package archive

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"

	"golang.org/x/crypto/argon2"

	"github.com/ingotmetal/ingot/inventory"
)

// MinPassphrase is how long a passphrase must be, bytes.
const MinPassphrase = 12

// A Wrap is how the keys are encrypted: AES-256-GCM under a key that Argon2id
// (RFC 9106) makes of a passphrase.
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
var ErrPassphrase = refuse("the passphrase is not the one of this backup")

// Wrapped encrypts files, by name, for the backup id.
func Wrapped(passphrase inventory.Secret, id string, files map[string][]byte) (Wrap, []byte, error) {
	if len(passphrase.Reveal()) < MinPassphrase {
		return Wrap{}, nil, refuse("the passphrase is shorter than %d characters", MinPassphrase)
	}

	text, err := json.Marshal(files)
	if err != nil {
		return Wrap{}, nil, err
	}

	// The second recommended parameters of RFC 9106, section 4.
	w := Wrap{KDF: argon2id, Time: 3, MemoryKiB: 64 << 10, Threads: 4, Salt: make([]byte, 16), Nonce: make([]byte, 12)}
	_, _ = rand.Read(w.Salt) // never returns an error: it ends the program instead
	_, _ = rand.Read(w.Nonce)
	gcm, err := w.gcm(passphrase)
	if err != nil {
		return Wrap{}, nil, err
	}

	return w, gcm.Seal(nil, w.Nonce, text, []byte(id)), nil
}

// Unwrap decrypts the result of Wrapped for the same id; ErrPassphrase if it cannot.
func (w Wrap) Unwrap(passphrase inventory.Secret, id string, sealed []byte) (map[string][]byte, error) {
	// The archive is untrusted, so it must not choose how much memory is used.
	within := w.Time >= 1 && w.Time <= 16 && w.MemoryKiB >= 8<<10 && w.MemoryKiB <= 1<<20 && w.Threads >= 1 && w.Threads <= 16
	if w.KDF != argon2id || !within || len(w.Salt) < 16 || len(w.Nonce) != 12 {
		return nil, damaged("its keys are wrapped in an unknown way")
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
		return nil, errors.New("reading the keys of the backup: they are not what this program writes")
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
