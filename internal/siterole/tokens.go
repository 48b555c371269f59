package siterole

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
)

// peerTokens are the tokens by which this server authenticates to its peers. They are stored next to the key
// file, outside the data directory.
type peerTokens struct {
	path string
	mu   sync.Mutex
	all  map[string]string
}

func readTokens(path string) (*peerTokens, error) {
	t := &peerTokens{path: path, all: map[string]string{}}
	b, err := durablefile.ReadPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil && json.Unmarshal(b, &t.all) != nil {
		err = errors.New("invalid JSON") // the decoder's error could contain a token
	}
	if err != nil {
		return nil, fmt.Errorf("reading the tokens of peers, %q: %w", path, err)
	}

	return t, nil
}

func (t *peerTokens) of(name string) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.all[name]
	return v, ok
}

// set stores the token of a peer; the token "" removes the entry.
func (t *peerTokens) set(name, token string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(t.all)
	if next == nil { // the file contained null
		next = map[string]string{}
	}
	if next[name] = token; token == "" {
		delete(next, name)
	}

	if err := durablefile.ReplaceJSON(t.path, next); err != nil {
		return fmt.Errorf("writing the tokens of peers: %w", err)
	}
	t.all = next
	return nil
}
