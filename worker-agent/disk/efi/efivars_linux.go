package efi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// efiGlobal is EFI_GLOBAL_VARIABLE, the vendor GUID of the variables that the UEFI specification
// defines.
const efiGlobal = "-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// efiAttributes are the attributes of a persistent variable: NON_VOLATILE, BOOTSERVICE_ACCESS and RUNTIME_ACCESS.
const efiAttributes = "\x07\x00\x00\x00"

// immutable is FS_IMMUTABLE_FL of linux/fs.h.
const immutable = 0x10

// VarFS is the directory on which efivarfs is mounted.
type VarFS string

// HostVariables returns the variables of this machine, or nil if it was not booted by UEFI. It mounts efivarfs if needed.
func HostVariables() Variables {
	const dir = "/sys/firmware/efi/efivars"
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil && st.Type != unix.EFIVARFS_MAGIC {
		// If the mount fails, Names returns an error.
		_ = unix.Mount("efivarfs", dir, "efivarfs", unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, "")
	}
	return VarFS(dir)
}

func (d VarFS) file(name string) string { return filepath.Join(string(d), name+efiGlobal) }

// Names implements Variables.
func (d VarFS) Names() ([]string, error) {
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
		// Every firmware has variables: an empty directory means that efivarfs is not mounted.
		return nil, fmt.Errorf("reading %s: the directory contains no variables, so efivarfs is not mounted", string(d))
	}
	return names, nil
}

// Get implements Variables.
func (d VarFS) Get(name string) ([]byte, error) {
	b, err := os.ReadFile(d.file(name))
	if err != nil {
		return nil, err
	}
	if len(b) < len(efiAttributes) {
		return nil, fmt.Errorf("reading %s: the variable has only %d bytes, too few for its attributes", name, len(b))
	}
	return b[len(efiAttributes):], nil
}

// Set implements Variables. The kernel requires attributes and value in a single write.
func (d VarFS) Set(name string, value []byte) error {
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

// Delete implements Variables.
func (d VarFS) Delete(name string) error {
	if err := d.unlock(name); err != nil {
		return err
	}
	return os.Remove(d.file(name))
}

// unlock removes the immutable flag of a variable. The kernel sets this flag on a variable unless it knows that deleting the
// variable is safe.
func (d VarFS) unlock(name string) error {
	f, err := os.Open(d.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // used only for ioctl
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&immutable == 0 {
		return nil // the file system has no such flags
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^immutable); err != nil {
		return fmt.Errorf("removing the immutable flag of %s: %w", name, err)
	}
	return nil
}

// Variables are the firmware's global variables (UEFI specification 2.10, §3.3). Their names omit the vendor's GUID.
type Variables interface {
	// Names returns the names of all variables, or fs.ErrNotExist if the machine was not booted by UEFI.
	Names() ([]string, error)
	// Get returns the value of a variable, or fs.ErrNotExist if there is no such variable.
	Get(name string) ([]byte, error)
	// Set writes a non-volatile variable with boot and runtime access.
	Set(name string, value []byte) error
	Delete(name string) error
}
