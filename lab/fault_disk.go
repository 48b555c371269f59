package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// RefuseWrites makes writes to one 512-byte sector of a disk fail, starting at the machine's next
// power-on; reads still work. It is for QEMU machines, whose disk then goes through QEMU's
// blkdebug.
func (m *Machine) RefuseWrites(serial string, sector int64) (Undo, error) {
	if m.sim != nil {
		return nil, fmt.Errorf("wearing out disk %q of %q: simulated machines have none that refuse", serial, m.spec.Name)
	}
	var rules string
	for _, kind := range []string{"write", "write-zeroes", "discard"} {
		rules += fmt.Sprintf("[inject-error]\nevent = \"none\"\niotype = \"%s\"\nerrno = \"5\"\nsector = \"%d\"\n\n", kind, sector)
	}
	if err := os.WriteFile(m.rules(serial), []byte(rules), 0o600); err != nil {
		return nil, err
	}
	return m.lab.undoable(fmt.Sprintf("sector %d of disk %s of %s refuses to be written", sector, serial, m.spec.Name), func() error {
		if err := os.Remove(m.rules(serial)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func (m *Machine) rules(serial string) string { return m.path("disk-" + serial + ".blkdebug") }

// worn returns the disk's file, with blkdebug if a sector is broken.
func (m *Machine) worn(serial string) string {
	if _, err := os.Stat(m.rules(serial)); errors.Is(err, fs.ErrNotExist) {
		return m.DiskPathOf(serial)
	}
	return "blkdebug:" + m.rules(serial) + ":" + m.DiskPathOf(serial)
}
