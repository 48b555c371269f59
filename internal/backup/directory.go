package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
)

// A Directory holds the backups that a server stores by itself. The names of their files contain the id of the site, so
// that two sites may share a directory: a Directory never lists or deletes a file of another site, or one that an
// operator has put there.
type Directory struct {
	Path string
	Site string // id of the site
}

// A Stored is a backup in a Directory. It was read back and verified before it got its name.
type Stored struct {
	Path    string
	Created time.Time
	Size    int64 // bytes
}

const (
	idTime       = "20060102T150405Z" // the start of a backup's id
	storedSuffix = ".tar"
)

func (d Directory) prefix() string { return "ingot-" + d.Site + "-" }

// List returns the backups of the site, from the oldest to the newest. It leaves out what was made after now: the clock was
// wrong then, and such a backup would be the newest one for years.
func (d Directory) List(now time.Time) ([]Stored, error) {
	entries, err := os.ReadDir(d.Path) // sorted by name, and therefore by time
	if err != nil {
		return nil, err
	}

	var out []Stored
	for _, e := range entries {
		id, ours := strings.CutPrefix(e.Name(), d.prefix())
		id, complete := strings.CutSuffix(id, storedSuffix)
		if !ours || !complete || !e.Type().IsRegular() {
			continue
		}
		at, _, _ := strings.Cut(id, "-")
		created, err := time.Parse(idTime, at)
		if err != nil || created.After(now) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it was deleted since
		}
		out = append(out, Stored{filepath.Join(d.Path, e.Name()), created, info.Size()})
	}

	return out, nil
}

// Save writes the archive of draft into the directory and reads it back, in a temporary directory below scratch. After an
// error, nothing of it remains. The files of the draft are removed, because the verification needs their space: draft
// cannot be used again. If less than minFree bytes would remain free, the error is inventory.ErrFull.
func (d Directory) Save(ctx context.Context, draft *Draft, scratch string, minFree int64) (s Stored, err error) {
	need := minFree
	for _, p := range draft.Parts {
		need += p.Size
	}
	if err := requireFree(d.Path, need); err != nil {
		return s, err
	}

	part := filepath.Join(d.Path, d.prefix()+"unfinished") // one name, so that a killed server leaves one at most
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	defer func() {
		if err != nil {
			if e := os.Remove(part); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}()
	if s.Size, err = d.write(draft, part); err != nil {
		return s, err
	}
	if err := draft.removeCopies(); err != nil {
		return s, err
	}
	if _, err := Verify(ctx, part, scratch); err != nil {
		return s, fmt.Errorf("reading back the backup: %w", err)
	}

	s.Created, s.Path = draft.Created, filepath.Join(d.Path, d.prefix()+draft.ID+storedSuffix)
	if err := os.Rename(part, s.Path); err != nil {
		return s, err
	}
	return s, durablefile.SyncDir(d.Path)
}

func (d Directory) write(draft *Draft, path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := draft.WriteTo(f)
	if err == nil {
		err = f.Sync()
	}
	return n, errors.Join(err, f.Close())
}

// Prune deletes all listed backups of the site except the newest one of each of the last days (in UTC) that have a backup. It
// returns the paths of the deleted ones.
func (d Directory) Prune(now time.Time, days int) (deleted []string, err error) {
	all, err := d.List(now)
	if err != nil {
		return nil, err
	}

	day, kept := "", 0
	for i := len(all) - 1; i >= 0; i-- {
		if x := all[i].Created.Format(time.DateOnly); x != day && kept < days {
			day = x
			kept++
			continue
		}
		if err := os.Remove(all[i].Path); err != nil {
			return deleted, err
		}
		deleted = append(deleted, all[i].Path)
	}

	return deleted, nil
}
