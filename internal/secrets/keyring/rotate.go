package keyring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// Sealing are the purposes whose keys seal stored values. The key of claims is
// excluded: claims that machines hold now are derived from it.
func Sealing() []string { return []string{BMC, UserData, Plan} }

// Rotate replaces the keys of Sealing by fresh ones, in the file at path and
// then in r. The old keys are kept next to them, so that Open goes on
// opening what they sealed; Retire drops them. A rotation that was begun and
// not retired is taken up as it is.
//
// At any moment the file holds every key that anything is sealed with. A file
// that lacks a key of r is inventory.ErrSealed, and both stay as they are.
func (r *Ring) Rotate(path string) error {
	stored, err := Load(path)
	if err != nil {
		return fmt.Errorf("replacing keys: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range Sealing() {
		if key := r.keys[p]; key != nil && !slices.ContainsFunc(stored.candidates(p), func(k []byte) bool { return bytes.Equal(k, key) }) {
			return fmt.Errorf("replacing keys: %w", notLoaded(path, p))
		}
	}
	if len(stored.old) == 0 {
		fresh := New()
		stored.old = map[string][][]byte{}
		if signer := stored.PlanSigner(); signer != nil {
			stored.keys[planSigner] = signer.Seed()
		}
		for _, p := range Sealing() {
			if key := stored.keys[p]; key != nil {
				stored.old[p] = [][]byte{key}
				stored.keys[p] = fresh.keys[p]
			}
		}
		if err := stored.store(path); err != nil {
			return fmt.Errorf("replacing keys: %w", err)
		}
	}

	// The purposes of r alone: a node holds no others.
	for p := range r.keys {
		if key := stored.keys[p]; key != nil {
			r.keys[p] = key
		}
	}
	if seed := stored.keys[planSigner]; seed != nil && r.keys[Plan] != nil {
		r.keys[planSigner] = seed
	}
	r.old = map[string][][]byte{}
	for p, keys := range stored.old {
		if r.keys[p] != nil {
			r.old[p] = keys
		}
	}

	return nil
}

// Rotating reports whether keys of before are still kept.
func (r *Ring) Rotating() bool {
	if r == nil {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.old) > 0
}

// Retire drops the keys of before, from the file at path and from r. Whatever
// they sealed must have been sealed again. A file whose present keys are not
// those of r is inventory.ErrSealed, and both stay as they are.
func (r *Ring) Retire(path string) error {
	stored, err := Load(path)
	if err != nil {
		return fmt.Errorf("dropping replaced keys: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range Sealing() {
		// One among the old keys would be dropped.
		if key := r.keys[p]; key != nil && !bytes.Equal(stored.keys[p], key) {
			return fmt.Errorf("dropping replaced keys: %w", notLoaded(path, p))
		}
	}
	stored.old = nil
	if err := stored.store(path); err != nil {
		return fmt.Errorf("dropping replaced keys: %w", err)
	}
	r.old = nil
	return nil
}

// notLoaded is the error of a key file that replaced the one that was loaded: with it,
// nothing that is sealed could be opened.
func notLoaded(path, purpose string) error {
	return fmt.Errorf("the key file %q is not the one that this server has loaded (key %q differs): "+
		"put the present one back, which the last rotation wrote: %w", path, purpose, inventory.ErrSealed)
}

// store puts r in the place of the file at path, whole or not at all.
func (r *Ring) store(path string) error {
	text, err := json.MarshalIndent(file{Version: version, Keys: r.keys, Old: r.old}, "", "  ")
	if err != nil {
		return err
	}

	// What a crash left of an earlier attempt holds keys, too.
	left, err := durablefile.Leftovers(path)
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			return err
		}
	}

	return durablefile.Replace(path, append(text, '\n'))
}
