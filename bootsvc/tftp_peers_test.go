package bootsvc

import (
	"bytes"
	"cmp"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/inventory"
)

// peerProgram returns a command of a Debian package that `make deps` has unpacked into a tree of that name, or that is
// installed. Without it a benchmark fails, because it would measure nothing, and another test is skipped.
func peerProgram(t *testing.T, tree, name string, args ...string) *exec.Cmd {
	t.Helper()
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
	root := filepath.Join(cache, "ingot-lab", "pkg", tree, "usr")
	for _, usr := range []string{root, "/usr"} {
		for _, dir := range []string{"bin", "sbin"} {
			path := filepath.Join(usr, dir, name)
			if !exists(path) {
				continue
			}
			cmd := exec.CommandContext(t.Context(), path, args...)
			if usr == root {
				libs, err := filepath.Glob(filepath.Join(root, "lib", "*-linux-gnu"))
				if err != nil {
					t.Fatal(err)
				}
				cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libs, ":"))
			}
			return cmd
		}
	}
	if *bench {
		t.Fatalf("%s is missing: make deps", name)
	}
	t.Skip(name + " is missing: make deps")
	return nil
}

// tftpProgram returns a command of a TFTP program of Debian.
func tftpProgram(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	return peerProgram(t, "tftp", name, args...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestTFTPClients: the TFTP clients of Debian and curl fetch a file as it is, with the
// options that they know and without.
func TestTFTPClients(t *testing.T) {
	machines := &fakeMachines{
		machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr("127.0.0.1") })},
	}
	dir := t.TempDir()
	content := bytes.Repeat([]byte("A loader\r\nof many blocks\n\r\x00"), 40000)
	if err := os.WriteFile(filepath.Join(dir, "loader.efi"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := newServer(t, machines, func(c *Config) { c.LoaderDir = dir })
	machines.setGrant(armed("node1"))
	host, port, err := net.SplitHostPort(startTFTP(t, s))
	if err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]func(t *testing.T, to string) *exec.Cmd{
		"atftp, window 8": func(t *testing.T, to string) *exec.Cmd {
			return tftpProgram(t, "atftp", "--option", "windowsize 8", "--option", "blksize 1468", "--get", "-r", "loader.efi", "-l", to, host, port)
		},
		"atftp, window 64 and timeout": func(t *testing.T, to string) *exec.Cmd {
			return tftpProgram(t, "atftp", "--option", "windowsize 64", "--option", "tsize 0", "--option", "timeout 3", "--get", "-r", "loader.efi", "-l", to, host, port)
		},
		"atftp, no option": func(t *testing.T, to string) *exec.Cmd {
			return tftpProgram(t, "atftp", "--get", "-r", "loader.efi", "-l", to, host, port)
		},
		"tftp-hpa": func(t *testing.T, to string) *exec.Cmd {
			return tftpProgram(t, "tftp", "-m", "binary", host, port, "-c", "get", "loader.efi", to)
		},
		"tftp-hpa, netascii": func(t *testing.T, to string) *exec.Cmd {
			return tftpProgram(t, "tftp", "-m", "ascii", host, port, "-c", "get", "loader.efi", to)
		},
		"curl": func(t *testing.T, to string) *exec.Cmd {
			if _, err := exec.LookPath("curl"); err != nil {
				t.Skip("curl is missing: make deps")
			}
			return exec.CommandContext(t.Context(), "curl", "-sS", "-o", to, "--tftp-blksize", "1468", "tftp://"+net.JoinHostPort(host, port)+"/loader.efi")
		},
		"curl, no option": func(t *testing.T, to string) *exec.Cmd {
			if _, err := exec.LookPath("curl"); err != nil {
				t.Skip("curl is missing: make deps")
			}
			return exec.CommandContext(t.Context(), "curl", "-sS", "-o", to, "--tftp-no-options", "tftp://"+net.JoinHostPort(host, port)+"/loader.efi")
		},
	} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "file")
			if out, err := client(t, to).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}
