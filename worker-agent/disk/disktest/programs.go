package disktest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Program returns the path of a system program, or "" if it is not installed.
func Program(name string) string {
	for _, p := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if found, err := exec.LookPath(p); err == nil {
			return found
		}
	}
	return ""
}

// Need returns the path of a program that deploy/deps.sh installs. It fails the test if the program is missing.
func Need(t *testing.T, name string) string {
	t.Helper()
	p := Program(name)
	if p == "" {
		t.Fatalf("%s is not installed: run make deps", name)
	}
	return p
}

// Run runs a program and returns its output. It fails the test if the program fails.
func Run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(Need(t, name), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// Judge checks a file with a program of the system; the program's output must contain good. If the program is not installed, Judge
// only logs this, because the test has also checked the file with this repository's own code.
func Judge(t *testing.T, good string, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		t.Logf("%s is not installed, so the result is not checked with it", name)
		return
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), good) {
		t.Errorf("%s %v: %v, want %q\n%s", name, args, err, good, out)
	}
}
