package durablefile

import "io/fs"

// isPrivate returns true: Windows knows no modes. Its rules for who may use a file come from the folder, and folders of a
// user's profile are closed to other users.
func isPrivate(fs.FileInfo) bool { return true }

// SyncDir does nothing: Windows syncs no directories.
func SyncDir(string) error { return nil }
