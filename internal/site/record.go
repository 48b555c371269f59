// Package site moves a site from one host to another. It is the small
// state machine of "ingot serve" on both sides, outside Temporal, because
// whoever stops Temporal cannot be run by it.
//
// What a server is (its role) stands in one file, which is read before any
// database is opened and changed only whole and durably. The source falls
// silent before the target may speak, and one durable record of the target,
// activate, is the moment in which the site has moved: before it there is a
// way back, after it there is only a migration back.
package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// FileName is the name of the file in the data directory.
const FileName = "site.json"

// format is the version of the file.
const format = 1

// Roles of a server.
const (
	Active      = "active"       // it is the site
	Standby     = "standby"      // it waits for a site, and answers nobody
	HandingOver = "handing-over" // it was the site; whether it still is, the target knows
	Retired     = "retired"      // the site has moved away
)

// A Peer is another server that may become this site, or has become it.
type Peer struct {
	Name        string    `json:"name"`
	URL         string    `json:"url"`         // https://host:port of its peer API
	Fingerprint string    `json:"fingerprint"` // sha256:<hex> of its key
	Since       time.Time `json:"since,omitzero"`
}

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

// A Prepared is a site that lies ready at its target.
type Prepared struct {
	ID     string    `json:"id"`
	Epoch  int64     `json:"epoch"`  // that the target will own
	Digest string    `json:"digest"` // of what was sent
	At     time.Time `json:"at"`
	// Files are the parts that lie ready, by name, with the SHA-256 (hex) of
	// each: what is in its place already is told from what is missing by that.
	Files map[string]string `json:"files,omitempty"`
}

// A Giver is the server that may hand its site to this one.
type Giver struct {
	// TokenSHA256 is the hex digest of the token that was made for it.
	TokenSHA256 string `json:"tokenSHA256"`
	// Fingerprint is that of the first key that came with the token; none other
	// is heard from then on.
	Fingerprint string `json:"fingerprint,omitempty"`
	Name        string `json:"name,omitempty"`
}

// A Site is what a server is. The zero Site is that of a server without the
// file: active, and nobody else's business.
type Site struct {
	Format int    `json:"format"`
	Name   string `json:"name,omitempty"`
	Role   string `json:"role"`
	// Epoch is the site epoch that this server owns or owned; 0: none, or the
	// one of its inventory.
	Epoch int64 `json:"epoch,omitempty"`
	// Peers are asked before the first packet.
	Peers    []Peer    `json:"peers,omitempty"`
	HandOver *HandOver `json:"handOver,omitempty"` // as a source; the last one

	Source    *Giver    `json:"source,omitempty"` // as a target
	Prepared  *Prepared `json:"prepared,omitempty"`
	Activated string    `json:"activated,omitempty"` // id of the hand-over that made this server the site
	Refused   []string  `json:"refused,omitempty"`   // ids that never will
	// ReKey: the keys came from the source and are still to be replaced.
	ReKey bool `json:"reKey,omitempty"`

	// Successor is where a retired site has moved.
	Successor *Peer  `json:"successor,omitempty"`
	Why       string `json:"why,omitempty"` // a person's word, or how it came to its role
}

// Peer returns the peer of that name; inventory.ErrNotFound.
func (s Site) Peer(name string) (Peer, error) {
	i := slices.IndexFunc(s.Peers, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return Peer{}, fmt.Errorf("peer %q: %w", name, inventory.ErrNotFound)
	}
	return s.Peers[i], nil
}

// A File is the Site of a data directory. Its methods may be used at the same
// time.
type File struct {
	path string
	mu   sync.Mutex
	site Site
}

// Open reads the file of a data directory. One that is not there is an active
// site. One that cannot be read is an error: nobody guesses what it said.
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
		return s, fmt.Errorf("role %q is none: %w", s.Role, inventory.ErrInvalid)
	}
	return s, nil
}

// Site returns what the file says.
func (f *File) Site() Site {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.site.clone()
}

// clone shares nothing that change could write to.
func (s Site) clone() (out Site) {
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &out) // into s it would write to what its pointers point to
	}
	if err != nil {
		panic(err) // it is made of what JSON knows
	}
	return out
}

// Change writes what change makes of the site. When it returns nil that is on
// the disk; after an error the file says what it said, or already the new.
func (f *File) Change(change func(s *Site) error) (Site, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.site.clone()
	if err := change(&s); err != nil {
		return f.site.clone(), err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = Replace(f.path, append(text, '\n'))
	}
	if err != nil {
		return f.site.clone(), fmt.Errorf("writing what this server is: %w", err)
	}
	f.site = s
	return s.clone(), nil
}

// Replace puts a file in the place of another, whole or not at all, and on the
// disk. Both are for the owner alone.
func Replace(path string, text []byte) error {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return SyncDir(dir)
}

// SyncDir makes sure that the names in dir are on the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// A Mark stands where the key file was: the site has moved away, and no copy
// of its data directory makes this host the site again.
type Mark struct {
	Retired struct {
		To          string    `json:"to"`
		URL         string    `json:"url,omitempty"`
		Fingerprint string    `json:"fingerprint,omitempty"` // of the key of the server there
		ID          string    `json:"id"`
		At          time.Time `json:"at"`
	} `json:"retired"`
}

// ReadMark returns the mark at the place of the key file; false when there is
// none, which includes that there is no file at all.
func ReadMark(keyFile string) (Mark, bool, error) {
	b, err := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Mark{}, false, nil
	}
	if err != nil {
		return Mark{}, false, fmt.Errorf("looking for a mark at the place of the keys: %w", err)
	}
	var m Mark
	if json.Unmarshal(b, &m) != nil || m.Retired.ID == "" && m.Retired.To == "" {
		return Mark{}, false, nil // whoever loads keys says what is wrong with it
	}
	return m, true, nil
}

// DestroyKeys overwrites the key file and puts the mark in its place, and
// removes what a crash has left of keys beside it. It may be called again.
func DestroyKeys(keyFile string, m Mark) error {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(keyFile), ".key-*"))
	if err != nil {
		return err
	}
	for _, file := range append(left, keyFile) {
		if _, marked, err := ReadMark(file); err != nil || marked {
			if err != nil {
				return err
			}
			continue
		}
		if err := overwrite(file); err != nil {
			return fmt.Errorf("destroying the keys in %q: %w", file, err)
		}
		if file != keyFile {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return Replace(keyFile, append(text, '\n'))
}

// overwrite is what a program can do about what a disk remembers.
func overwrite(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil {
		_, err = f.WriteString(strings.Repeat("\x00", int(st.Size())))
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
