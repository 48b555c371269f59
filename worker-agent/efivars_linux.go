package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// efiGlobal is EFI_GLOBAL_VARIABLE: the vendor of the variables that the
// specification itself defines.
const efiGlobal = "-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// efiAttributes of a variable that lasts: NON_VOLATILE, BOOTSERVICE_ACCESS,
// RUNTIME_ACCESS.
const efiAttributes = "\x07\x00\x00\x00"

// immutable is FS_IMMUTABLE_FL of linux/fs.h.
const immutable = 0x10

// EFIVarFS is efivarfs, mounted at the directory.
type EFIVarFS string

// HostEFI returns the variables of the machine that it runs on, and mounts
// efivarfs where that has not been done; nil when UEFI has not booted it.
func HostEFI() EFIVariables {
	const dir = "/sys/firmware/efi/efivars"
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil && st.Type != unix.EFIVARFS_MAGIC {
		// If that cannot be done, Names says that the list is empty or why not.
		_ = unix.Mount("efivarfs", dir, "efivarfs", unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, "")
	}
	return EFIVarFS(dir)
}

func (d EFIVarFS) file(name string) string { return filepath.Join(string(d), name+efiGlobal) }

// Names implements EFIVariables.
func (d EFIVarFS) Names() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), efiGlobal); ok {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		// Every firmware has some: this is the empty directory beneath.
		return nil, fmt.Errorf("reading %s: it holds no variables: efivarfs is not mounted", string(d))
	}
	return names, nil
}

// Get implements EFIVariables.
func (d EFIVarFS) Get(name string) ([]byte, error) {
	b, err := os.ReadFile(d.file(name))
	if err != nil {
		return nil, err
	}
	if len(b) < len(efiAttributes) {
		return nil, fmt.Errorf("reading %s: %d bytes, fewer than its attributes have", name, len(b))
	}
	return b[len(efiAttributes):], nil
}

// Set implements EFIVariables. The kernel wants all of it in one write.
func (d EFIVarFS) Set(name string, value []byte) error {
	if err := d.unlock(name); err != nil {
		return err
	}
	f, err := os.OpenFile(d.file(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append([]byte(efiAttributes), value...))
	return errors.Join(err, f.Close())
}

// Delete implements EFIVariables.
func (d EFIVarFS) Delete(name string) error {
	if err := d.unlock(name); err != nil {
		return err
	}
	return os.Remove(d.file(name))
}

// unlock takes the immutable flag off a variable: the kernel sets it on those
// that it does not know to be harmless.
func (d EFIVarFS) unlock(name string) error {
	f, err := os.Open(d.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only asked
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&immutable == 0 {
		return nil // a file system without such flags
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^immutable); err != nil {
		return fmt.Errorf("making %s changeable: %w", name, err)
	}
	return nil
}
