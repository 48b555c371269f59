package server

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// containerRuntime is the archive with the container runtime, which agents fetch.
type containerRuntime struct {
	path string

	mu      sync.Mutex
	size    int64
	changed time.Time
	sha256  string // of the file of this size and time; "" = not computed yet
}

// sum returns the SHA-256 of the archive. It reads the file again only after the file was changed.
func (r *containerRuntime) sum() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.Open(r.path)
	if err != nil {
		return "", fmt.Errorf("no machine can run a container: opening the container runtime: %w (ingot doctor shows where to put it): %w", err,
			inventory.ErrInvalid)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if r.sha256 != "" && st.Size() == r.size && st.ModTime().Equal(r.changed) {
		return r.sha256, nil
	}

	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("reading the container runtime: %w", err)
	}
	r.size, r.changed, r.sha256 = st.Size(), st.ModTime(), hex.EncodeToString(sum.Sum(nil))
	return r.sha256, nil
}
