// Package keyring keeps the site's secret keys in one file outside the data directory: one random 256-bit key for each purpose.
//
// A missing key is never created again: everything that is encrypted (sealed) with the old key would be lost without an error.
package keyring

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// Purposes of keys. A node gets only the keys of the purposes that it serves.
const (
	BMC      = "bmc"      // BMC passwords
	UserData = "userdata" // user data and vendor data
	Plan     = "plan"     // plans and assignments
	Claim    = "claim"    // HMAC key of claims, capabilities and nonces
)

const (
	version = 1  // version of the file's format; also the first byte of Seal's result
	keySize = 32 // bytes
)

// planSigner is the purpose under which the seed of PlanSigner is stored when a rotation replaces the Plan key. The seed is derived from
// the old Plan key: running agents trust this signer, so it must not change.
const planSigner = "plan-signer"

// A Ring holds keys by purpose. A nil Ring holds none.
type Ring struct {
	mu   sync.RWMutex
	keys map[string][]byte
	old  map[string][][]byte // keys that a rotation has replaced and Retire has not deleted yet
}

// file is the content of the key file.
type file struct {
	Version int               `json:"version"`
	Keys    map[string][]byte `json:"keys"` // base64
	// Old holds the keys that a rotation has replaced and Retire has not deleted yet.
	Old map[string][][]byte `json:"old,omitempty"`
}

// New returns a ring of new random keys, without a file.
func New() *Ring {
	r := &Ring{keys: map[string][]byte{}}
	for _, purpose := range []string{BMC, UserData, Plan, Claim} {
		key := make([]byte, keySize)
		_, _ = rand.Read(key) // never returns an error: it crashes the program instead
		r.keys[purpose] = key
	}
	return r
}

// Create makes a ring of new keys and stores it at path with mode 0600, atomically. If the file exists, Create returns fs.ErrExist and
// does not change the file.
func Create(path string) (*Ring, error) {
	r := New()
	text, err := json.MarshalIndent(file{Version: version, Keys: r.keys}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("creating key file %q: %w", path, err)
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
		err = durablefile.Create(path, append(text, '\n'))
	}
	if err != nil {
		return nil, fmt.Errorf("creating key file %q: %w", path, err)
	}
	return r, nil
}

// Load reads the ring at path. If the file does not exist, the error is both fs.ErrNotExist and inventory.ErrSealed. See
// [durablefile.ReadPrivate] for the file modes that are refused.
func Load(path string) (*Ring, error) {
	r, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("loading key file %q: %w", path, err)
	}
	return r, nil
}

func load(path string) (*Ring, error) {
	text, err := durablefile.ReadPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", inventory.ErrSealed, err)
	}
	if err != nil {
		return nil, err
	}

	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var in file
	if err := dec.Decode(&in); err != nil {
		return nil, errors.New("not a key file of Ingot") // the decoder's message could quote the file
	}
	if in.Version != version {
		return nil, fmt.Errorf("the file has version %d, but this program reads only version %d", in.Version, version)
	}

	for _, purpose := range slices.Sorted(maps.Keys(in.Keys)) {
		if n := len(in.Keys[purpose]); n != keySize {
			return nil, fmt.Errorf("key %q has %d bytes instead of %d", purpose, n, keySize)
		}
	}
	for _, purpose := range slices.Sorted(maps.Keys(in.Old)) {
		for _, key := range in.Old[purpose] {
			if n := len(key); n != keySize {
				return nil, fmt.Errorf("an old key %q has %d bytes instead of %d", purpose, n, keySize)
			}
		}
	}
	return &Ring{keys: in.Keys, old: in.Old}, nil
}

// Outside returns inventory.ErrInvalid if the key file at path is in dataDir or below it: a copy of the data directory
// would contain the keys.
func Outside(path, dataDir string) error {
	p, err := resolve(path)
	if err != nil {
		return fmt.Errorf("checking the path of key file %q: %w", path, err)
	}

	d, err := resolve(dataDir)
	if err != nil {
		return fmt.Errorf("checking the path of key file %q: %w", path, err)
	}

	rel, err := filepath.Rel(d, p)
	if err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
		return fmt.Errorf("key file %q is in the data directory %q: keep it elsewhere, for example at /etc/ingot/keys.json: %w",
			path, dataDir, inventory.ErrInvalid)
	}

	return nil
}

// resolve returns path as an absolute path, in which symbolic links are resolved as far as the path exists.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}

	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		return real, nil
	}
	if !errors.Is(err, fs.ErrNotExist) || path == "/" {
		return "", err
	}

	dir, err := resolve(filepath.Dir(path))
	if err != nil {
		return "", err
	}

	return filepath.Join(dir, filepath.Base(path)), nil
}

// A Sealer encrypts and decrypts stored values; see [Ring.Seal] and [Ring.Open].
type Sealer interface {
	Seal(purpose, binding string, plain []byte) ([]byte, error)
	Open(purpose, binding string, sealed []byte) ([]byte, error)
}

// Sealer returns the ring as a Sealer, or a nil interface for a nil ring.
func (r *Ring) Sealer() Sealer {
	if r == nil {
		return nil
	}
	return r
}

// Only returns a ring with only the keys of the given purposes, for a node that must not hold the others.
func (r *Ring) Only(purposes ...string) *Ring {
	out := &Ring{keys: map[string][]byte{}, old: map[string][][]byte{}}
	if slices.Contains(purposes, Plan) {
		purposes = append(slices.Clone(purposes), planSigner)
	}

	for _, p := range purposes {
		if keys := r.candidates(p); len(keys) > 0 {
			out.keys[p] = keys[0]
			if len(keys) > 1 {
				out.old[p] = keys[1:]
			}
		}
	}

	return out
}

// candidates returns the keys with which a value of the purpose may be sealed, the current one first.
func (r *Ring) candidates(purpose string) [][]byte {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.keys[purpose] == nil {
		return nil
	}
	return append([][]byte{r.keys[purpose]}, slices.Clone(r.old[purpose])...)
}

// Key returns the current key of the purpose, or nil if the ring has none.
func (r *Ring) Key(purpose string) []byte {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.keys[purpose]
}

// PlanSigner returns the key that signs the orders to agents, or nil if the ring has no Plan key. So a server that can open plans can
// also sign orders, and a node that only boots machines can do neither. The key is derived from the Plan key, so that key files of
// earlier versions have one, too.
func (r *Ring) PlanSigner() ed25519.PrivateKey {
	if seed := r.Key(planSigner); seed != nil {
		return ed25519.NewKeyFromSeed(seed)
	}

	key := r.Key(Plan)
	if key == nil {
		return nil
	}

	return ed25519.NewKeyFromSeed(derive(key, "ingot: ed25519 seed of the plan signer, 1"))
}

// derive returns a key of 32 bytes for another use, which does not reveal key.
func derive(key []byte, use string) []byte {
	m := hmac.New(sha256.New, key)
	_, _ = m.Write([]byte(use)) // a hash never returns an error
	return m.Sum(nil)
}

// BackupKeys returns the keys that authenticate backups of the site, the current one first. Each is derived from a Plan key in the ring,
// so only a key file that can open the plans in a backup can also verify that backup.
func (r *Ring) BackupKeys() (out [][]byte) {
	for _, key := range r.candidates(Plan) {
		out = append(out, derive(key, "ingot: backup manifest, 1"))
	}
	return out
}

// BMCDigestKey returns the key for digests of BMC credentials. It is derived from the BMC key; it is nil if the ring has no BMC key.
func (r *Ring) BMCDigestKey() []byte {
	key := r.Key(BMC)
	if key == nil {
		return nil
	}
	return derive(key, "ingot: digest of BMC credentials, 1")
}

// Seal encrypts plain with the key of the purpose. Open returns plain only if it is called with the same purpose and binding. If the ring
// has no key of the purpose, Seal returns inventory.ErrSealed.
func (r *Ring) Seal(purpose, binding string, plain []byte) ([]byte, error) {
	key := r.Key(purpose)
	if key == nil {
		return nil, fmt.Errorf("sealing for %q: %w", purpose, inventory.ErrSealed)
	}

	gcm, err := gcmOf(key)
	if err != nil {
		return nil, fmt.Errorf("sealing for %q: %w", purpose, err)
	}

	out := make([]byte, 1+gcm.NonceSize(), 1+gcm.NonceSize()+len(plain)+gcm.Overhead())
	out[0] = version
	_, _ = rand.Read(out[1:]) // never returns an error: it crashes the program instead
	return gcm.Seal(out, out[1:], plain, additional(purpose, binding)), nil
}

// Open decrypts the result of Seal. It returns inventory.ErrSealed if the key is missing or wrong, if Seal was called with another
// binding, or if the ciphertext was changed; it cannot distinguish these cases.
func (r *Ring) Open(purpose, binding string, sealed []byte) ([]byte, error) {
	for _, key := range r.candidates(purpose) {
		gcm, err := gcmOf(key)
		if err != nil {
			return nil, fmt.Errorf("opening for %q: %w", purpose, err)
		}
		n := 1 + gcm.NonceSize()
		if len(sealed) < n || sealed[0] != version {
			break
		}
		plain, err := gcm.Open(nil, sealed[1:n], sealed[n:], additional(purpose, binding))
		if err == nil {
			return plain, nil
		}
	}

	return nil, fmt.Errorf("opening for %q: %w", purpose, inventory.ErrSealed)
}

func additional(purpose, binding string) []byte { return []byte(purpose + "\x00" + binding) }

func gcmOf(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
