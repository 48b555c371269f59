package siterole

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// Mark is the content of the marker file that replaces the key file of a retired server. As long as the marker is there, no
// copy of the data directory can make this host the active server again.
type Mark struct {
	Retired struct {
		To inventory.Peer `json:"to"` // zero = the new host is unknown
		ID string         `json:"id"` // id of the hand-over
		At time.Time      `json:"at"`
	} `json:"retired"`
}

// ReadMark reads the marker at keyFile. It returns false if the file does not exist or is not a marker (but holds keys, for example).
func ReadMark(keyFile string) (Mark, bool, error) {
	b, err := durablefile.ReadPrivate(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Mark{}, false, nil
	}
	if err != nil {
		return Mark{}, false, fmt.Errorf("looking for the marker of a retired site at the path of the keys: %w", err)
	}
	var m Mark
	if json.Unmarshal(b, &m) != nil || m.Retired.ID == "" && m.Retired.To.Name == "" {
		return Mark{}, false, nil // the file holds keys or is invalid: the function that loads the keys reports the latter
	}

	return m, true, nil
}

// DestroyKeys overwrites the keys in keyFile and replaces the file by the marker m. It also overwrites and removes
// temporary key files that a crash has left next to it. It is idempotent.
func DestroyKeys(keyFile string, m Mark) error {
	left, err := durablefile.Leftovers(keyFile)
	if err != nil {
		return err
	}

	for _, file := range append(left, keyFile) {
		_, marked, err := ReadMark(file)
		if err != nil {
			return err
		}
		if !marked {
			if err := overwrite(file); err != nil {
				return fmt.Errorf("destroying the keys in %q: %w", file, err)
			}
		}
		if file != keyFile {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}

	return durablefile.ReplaceJSON(keyFile, m)
}

// overwrite fills the file with zeros in place. The disk may still keep the old blocks.
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
