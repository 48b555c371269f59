// Package site is what a server is among its peers, and the move of a site from one
// host to another. Its state machine runs outside Temporal, because it stops
// Temporal.
//
// The role of a server is in one file, which is read before any database is opened
// and replaced as a whole. The source stops answering before the target may answer.
// The site has moved when the target has written its activation to the disk. Before
// that moment a hand-over can be undone; after it only another migration moves the
// site back.
package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/durable"
	"github.com/ingotmetal/ingot/inventory"
)

// FileName is the name of the file in the data directory.
const FileName = "site.json"

// format is the version of the file.
const format = 1

// Roles of a server.
const (
	Active      = "active"       // it is the site
	Standby     = "standby"      // it waits for a site, and answers no machine
	HandingOver = "handing-over" // it was the site; only the target knows whether it still is
	Retired     = "retired"      // the site has moved away
)

// States of a HandOver.
const (
	UnderWay = "under-way"
	Moved    = "moved"
	Failed   = "failed" // it was taken back, and the target will never activate it
)

// A HandOver is one attempt to move, as its source knows it.
type HandOver struct {
	ID    string    `json:"id"`
	Peer  string    `json:"peer"`
	Epoch int64     `json:"epoch"` // site epoch that the source owned
	State string    `json:"state"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// A Prepared is a site that its target has received and proven.
type Prepared struct {
	ID     string    `json:"id"`
	Epoch  int64     `json:"epoch"`  // that the target will own
	Digest string    `json:"digest"` // of the archive that was sent
	At     time.Time `json:"at"`
	// Files are the parts, by name, with the SHA-256 (hex) of each. After a crash
	// it tells a part that is in its place already from one that is missing.
	Files map[string]string `json:"files,omitempty"`
}

// A Giver is the server that may hand its site to this one.
type Giver struct {
	// TokenSHA256 is the hex digest of the token that was made for it.
	TokenSHA256 string `json:"tokenSHA256"`
	// Fingerprint is that of the first key that came with the token. From then on
	// only that key is accepted.
	Fingerprint string `json:"fingerprint,omitempty"`
	Name        string `json:"name,omitempty"`
}

// A Site is what a server is. A server without the file is active and has no peers.
type Site struct {
	Format int    `json:"format"`
	Name   string `json:"name,omitempty"`
	Role   string `json:"role"`
	// Epoch is the site epoch that this server owns or owned; 0: none, or the
	// one of its inventory.
	Epoch int64 `json:"epoch,omitempty"`
	// Peers are asked before the first packet.
	Peers    []inventory.Peer `json:"peers,omitempty"`
	HandOver *HandOver        `json:"handOver,omitempty"` // as a source; the last one

	Source    *Giver    `json:"source,omitempty"` // as a target
	Prepared  *Prepared `json:"prepared,omitempty"`
	Activated string    `json:"activated,omitempty"` // id of the hand-over that made this server the site
	Refused   []string  `json:"refused,omitempty"`   // ids of hand-overs that will never be activated
	// ReKey: the keys came from the source and must be replaced.
	ReKey bool `json:"reKey,omitempty"`

	// Successor is where a retired site has moved.
	Successor *inventory.Peer `json:"successor,omitempty"`
	Why       string          `json:"why,omitempty"` // how it came to its role
}

// Peer returns the peer of that name; inventory.ErrNotFound.
func (s Site) Peer(name string) (inventory.Peer, error) {
	i := slices.IndexFunc(s.Peers, func(p inventory.Peer) bool { return p.Name == name })
	if i < 0 {
		return inventory.Peer{}, fmt.Errorf("peer %q: %w", name, inventory.ErrNotFound)
	}
	return s.Peers[i], nil
}

// require refuses what only a server in that role may do: inventory.ErrConflict.
func (s Site) require(role string) error {
	if s.Role != role {
		return fmt.Errorf("this server is %s, not %s: %w", s.Role, role, inventory.ErrConflict)
	}
	return nil
}

// A File is the Site of a data directory. Its methods may be used at the same
// time.
type File struct {
	path string
	mu   sync.Mutex
	site Site
}

// Open reads the file of a data directory. Without a file, the server is an active
// site. A file that cannot be read is an error: no role is assumed.
func Open(dataDir string) (*File, error) {
	f := &File{path: filepath.Join(dataDir, FileName), site: Site{Format: format, Role: Active}}
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		f.site, err = parse(b)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what this server is, %q: %w", f.path, err)
	}

	return f, nil
}

func parse(b []byte) (s Site, err error) {
	var v struct{ Format int }
	if err := json.Unmarshal(b, &v); err != nil {
		return s, err
	}
	if v.Format != format {
		return s, fmt.Errorf("its format is %d and this program knows %d: %w", v.Format, format, inventory.ErrInvalid)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, err
	}
	if !slices.Contains([]string{Active, Standby, HandingOver, Retired}, s.Role) {
		return s, fmt.Errorf("invalid role %q: %w", s.Role, inventory.ErrInvalid)
	}

	return s, nil
}

// Site returns what the file says.
func (f *File) Site() Site {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.site.clone()
}

// clone returns a deep copy.
func (s Site) clone() (out Site) {
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &out) // into s it would write through its pointers
	}
	if err != nil {
		panic(err) // every field has a JSON form
	}
	return out
}

// Change applies change and writes the result. When it returns nil, the result is on
// the disk; after an error the file holds the old site or the new one.
func (f *File) Change(change func(s *Site) error) (Site, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.site.clone()
	if err := change(&s); err != nil {
		return f.site.clone(), err
	}

	if err := durable.ReplaceJSON(f.path, s); err != nil {
		return f.site.clone(), fmt.Errorf("writing what this server is: %w", err)
	}
	f.site = s
	return s.clone(), nil
}
