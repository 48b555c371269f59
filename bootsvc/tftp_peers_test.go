package bootsvc

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tftpProgram returns a command of a TFTP program of Debian that `make deps` has unpacked,
// and skips the test if it is missing.
func tftpProgram(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
	root := filepath.Join(cache, "ingot-lab", "pkg", "tftp", "usr")
	for _, dir := range []string{"bin", "sbin"} {
		if path := filepath.Join(root, dir, name); exists(path) {
			libs, err := filepath.Glob(filepath.Join(root, "lib", "*-linux-gnu"))
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), path, args...)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libs, ":"))
			return cmd
		}
	}
	t.Skip(name + " is missing: make deps")
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
