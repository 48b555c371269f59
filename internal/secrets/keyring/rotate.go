package keyring

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// Sealing returns the purposes whose keys seal stored values. Claim is not one of them: its key seals nothing, but the claims that
// machines currently hold are derived from it.
func Sealing() []string { return []string{BMC, UserData, Plan} }

// Rotate makes a new key for each purpose that Sealing returns. It stores the new keys in the file at path, and then uses them in r. Until
// Retire deletes the old keys, Open still accepts them. If the file already holds an unfinished rotation, Rotate loads the keys of that
// rotation and makes no new ones.
//
// At any moment, the file holds every key with which a value is sealed. If the file lacks a key with which r seals, Rotate returns
// inventory.ErrSealed and changes neither the file nor r.
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

	// Only for the purposes of r: a node must not get other keys.
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

// Rotating reports whether replaced keys are still kept.
func (r *Ring) Rotating() bool {
	if r == nil {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.old) > 0
}

// Retire deletes the replaced keys from the file at path and from r. The caller must first seal all values with the current keys. If the
// current keys in the file are not the ones of r, Retire returns inventory.ErrSealed and changes neither the file nor r.
func (r *Ring) Retire(path string) error {
	stored, err := Load(path)
	if err != nil {
		return fmt.Errorf("dropping replaced keys: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range Sealing() {
		// If the file lists a current key of r among the old keys, deleting the old keys would lose it.
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

// notLoaded returns the error for a key file that was exchanged after this server loaded it. If that file were used, keys with which
// stored values are sealed would be lost.
func notLoaded(path, purpose string) error {
	return fmt.Errorf("the key file %q has changed since this server loaded it (key %q differs): "+
		"restore the file that the last rotation wrote: %w", path, purpose, inventory.ErrSealed)
}

// store atomically replaces the file at path by a file with the keys of r.
func (r *Ring) store(path string) error {
	// Temporary files that a crash has left contain keys, too.
	left, err := durablefile.Leftovers(path)
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			return err
		}
	}

	return durablefile.ReplaceJSON(path, file{Version: version, Keys: r.keys, Old: r.old})
}
