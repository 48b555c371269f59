//go:build !windows

package cli

import "os"

// readsEscapes returns true: each terminal reads escape sequences.
func readsEscapes(*os.File) bool { return true }
