// Package siterole manages the role of a server among its peers, and moves a site (inventory, Temporal's database, keys and images) from
// one host to another. Its state machine runs outside Temporal, because it stops Temporal.
//
// The role is stored in the role file, which is read before any database is opened, and replaced atomically. Only the active server, with
// the role Active, answers machines.
//
// In a hand-over, the source stops answering before the target may answer. The hand-over is committed as soon as the target has written
// its activation to the disk. Until then the hand-over can be undone; afterwards only another migration moves the site back.
package siterole

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

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// FileName is the name of the role file in the data directory.
const FileName = "site.json"

// format is the version of the role file's format.
const format = 1

// Roles of a server.
const (
	Active      = inventory.RoleActive // the server answers machines
	Standby     = "standby"            // the server waits for a site and answers no machine
	HandingOver = "handing-over"       // a hand-over has begun; only its target knows which of the two servers is active
	Retired     = "retired"            // the site has moved to another server
)

// States of a HandOver.
const (
	UnderWay = "under-way"
	Moved    = "moved"
	Failed   = "failed" // undone; the target will never activate this hand-over
)

// HandOver is the source's record of one attempt to move the site.
type HandOver struct {
	ID    string    `json:"id"`
	Peer  string    `json:"peer"`
	Epoch int64     `json:"epoch"` // site epoch that the source owned before
	State string    `json:"state"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// Prepared is a site that the target has received and verified.
type Prepared struct {
	ID     string    `json:"id"`
	Epoch  int64     `json:"epoch"`  // site epoch that the target will own
	Digest string    `json:"digest"` // digest of the received archive
	At     time.Time `json:"at"`
	// Files are the SHA-256 digests (hex) of the site's files by name. After a crash, they show which files are in place.
	Files map[string]string `json:"files,omitempty"`
}

// Giver is the server that may hand its site over to this server.
type Giver struct {
	// TokenSHA256 is the hex digest of the giver's token.
	TokenSHA256 string `json:"tokenSHA256"`
	// Fingerprint identifies the first key that came with the token; from then on no other key is accepted. "" = not paired yet.
	Fingerprint string `json:"fingerprint,omitempty"`
	Name        string `json:"name,omitempty"`
}

// Site is the content of the role file. If a server has no role file, it is active and has no peers.
type Site struct {
	Format int    `json:"format"`
	Name   string `json:"name,omitempty"`
	Role   string `json:"role"`
	// Epoch is the site epoch that this server owns or owned. 0 = none, or only the inventory stores it.
	Epoch int64 `json:"epoch,omitempty"`
	// Peers lists the servers to which this site may move, or has moved. At each start, this server asks them for their roles before it
	// answers a machine.
	Peers    []inventory.Peer `json:"peers,omitempty"`
	HandOver *HandOver        `json:"handOver,omitempty"` // the last hand-over with this server as its source

	Source    *Giver    `json:"source,omitempty"` // the server that may hand its site over to this one; nil = this server was never a standby
	Prepared  *Prepared `json:"prepared,omitempty"`
	Activated string    `json:"activated,omitempty"` // id of the hand-over that made this server active
	Refused   []string  `json:"refused,omitempty"`   // ids of hand-overs that will never be activated
	// ReKey means that the keys came from the source and must still be replaced.
	ReKey bool `json:"reKey,omitempty"`

	// Successor is the server to which the site of a retired server has moved; nil = unknown.
	Successor *inventory.Peer `json:"successor,omitempty"`
	Why       string          `json:"why,omitempty"` // reason for Role
}

// Peer returns the peer with that name, or inventory.ErrNotFound.
func (s Site) Peer(name string) (inventory.Peer, error) {
	i := slices.IndexFunc(s.Peers, func(p inventory.Peer) bool { return p.Name == name })
	if i < 0 {
		return inventory.Peer{}, fmt.Errorf("peer %q: %w", name, inventory.ErrNotFound)
	}
	return s.Peers[i], nil
}

// require returns nil if the server has the role, and otherwise inventory.ErrConflict.
func (s Site) require(role string) error {
	if s.Role != role {
		return fmt.Errorf("this server is %s, not %s: %w", s.Role, role, inventory.ErrConflict)
	}
	return nil
}

// File is the role file of a data directory. Its methods may be called concurrently.
type File struct {
	path string
	mu   sync.Mutex
	site Site
}

// Open reads the role file of a data directory. If there is none, the server is active and has no peers. Open fails if the
// file cannot be read: it never assumes a role.
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
		return nil, fmt.Errorf("reading this server's role from %q: %w", f.path, err)
	}

	return f, nil
}

func parse(b []byte) (s Site, err error) {
	var v struct{ Format int }
	if err := json.Unmarshal(b, &v); err != nil {
		return s, err
	}
	if v.Format != format {
		return s, fmt.Errorf("the file has format %d, but this program reads only format %d: %w", v.Format, format, inventory.ErrInvalid)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, err
	}
	if !slices.Contains([]string{Active, Standby, HandingOver, Retired}, s.Role) {
		return s, fmt.Errorf("invalid role %q: %w", s.Role, inventory.ErrInvalid)
	}

	return s, nil
}

// Site returns a copy of the role file's content.
func (f *File) Site() Site {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.site.clone()
}

// clone returns a deep copy.
func (s Site) clone() (out Site) {
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &out) // decode into a new Site: otherwise the copy would share pointers with s
	}
	if err != nil {
		panic(err) // every field has a JSON form
	}
	return out
}

// Change applies change to a copy of the content, writes it to the disk and returns it. After an error, Site still returns
// the old content, but the file may already hold the new one.
func (f *File) Change(change func(s *Site) error) (Site, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.site.clone()
	if err := change(&s); err != nil {
		return f.site.clone(), err
	}

	if err := durablefile.ReplaceJSON(f.path, s); err != nil {
		return f.site.clone(), fmt.Errorf("writing this server's role: %w", err)
	}
	f.site = s
	return s.clone(), nil
}
