//go:build !windows

package durablefile

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// isPrivate reports whether only the owner may use a file, or root has given the file to this process.
func isPrivate(st fs.FileInfo) bool {
	return st.Mode().Perm()&0o077 == 0 || isGivenByRoot(st, os.Geteuid(), processGroups())
}

// isGivenByRoot reports whether a file belongs to root, is read-only for one of these groups, and is closed to
// others. It returns false if this process runs as root, because root needs no group to read a file. With an
// access control list, the group bits of the mode are the list's mask (acl(5)), and the file's group is root's.
func isGivenByRoot(st fs.FileInfo, euid int, groups []int) bool {
	owner, ok := st.Sys().(*syscall.Stat_t)
	return ok && euid != 0 && owner.Uid == 0 && st.Mode().Perm()&0o037 == 0 &&
		(owner.Gid == 0 || slices.Contains(groups, int(owner.Gid)))
}

func processGroups() []int {
	groups, err := os.Getgroups()
	if err != nil {
		groups = nil // without them, only the process's main group counts
	}
	return append(groups, os.Getegid())
}

// SyncDir syncs the directory entries of dir to the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
