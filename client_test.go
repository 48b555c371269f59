package ingot

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxClientSize limits the client-only program, in bytes.
const maxClientSize = 25e6

// TestClientOfEachSystem builds the client-only program for each operating system, and starts the one for this host. A release has
// them for arm64 and amd64.
func TestClientOfEachSystem(t *testing.T) {
	dir := t.TempDir()
	for _, platform := range []string{"linux/amd64", "darwin/arm64", "windows/amd64"} {
		system, processor, _ := strings.Cut(platform, "/")
		program := filepath.Join(dir, system)
		build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./cmd/ingot-client")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building the client for %s: %v\n%s", platform, err, out)
		}
		st, err := os.Stat(program)
		if err != nil {
			t.Fatal(err)
		}
		if st.Size() > maxClientSize {
			t.Errorf("the client for %s has %d bytes; at most %.0f are allowed", platform, st.Size(), maxClientSize)
		}
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "linux"), "version").CombinedOutput()
	if err != nil {
		t.Errorf("ingot version: %v\n%s", err, out)
	}
}
