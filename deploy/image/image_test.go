package main

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/lab"
)

// made is a folder as make build leaves it, and a host: with a small program
// in place of the server and of ipmitool, and what that loads.
func made(t *testing.T) source {
	t.Helper()
	const small = "/usr/bin/true"
	program, err := os.ReadFile(small)
	require.NoError(t, err)
	s := source{Bin: t.TempDir(), Root: t.TempDir(), Name: "ingot:latest", Version: "v1"}
	files := map[string]string{}
	for name, text := range map[string]string{
		"ingot": string(program), "ipxe/undionly.kpxe": "undi", "ipxe/snponly.efi": "snp", "ipxe/ipxe.efi": "ipxe", "ipxe/ipxe.iso": "iso",
		"ipxe/shimx64.efi": "shim", "ipxe/grubx64.efi": "grub",
		"agentos/vmlinuz": "kernel", "agentos/initramfs": strings.Repeat("initramfs", 5000), "agentos/runtime.tar.zst": "crun",
	} {
		files[filepath.Join(s.Bin, name)] = text
	}
	for name, text := range map[string]string{
		"usr/bin/ipmitool": string(program), "usr/share/misc/enterprise-numbers.txt": "0 Reserved\n",
		"etc/ssl/certs/ca-certificates.crt": "certificates\n",
	} {
		files[filepath.Join(s.Root, name)] = text
	}
	here := &closure{root: "/", found: map[string]string{}}
	require.NoError(t, here.add(small))
	for at, file := range here.found {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		files[filepath.Join(s.Root, at)] = string(b)
	}
	for file, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o700)) // not the mode that it gets
	}
	return s
}

// TestSameBytes: two builds of the same files are the same image, and one
// byte makes it another (security S45).
func TestSameBytes(t *testing.T) {
	s := made(t)
	one, err := build(s, t.TempDir())
	require.NoError(t, err)
	later := filepath.Join(s.Bin, "agentos/vmlinuz")
	require.NoError(t, os.Chtimes(later, epoch.AddDate(60, 0, 0), epoch.AddDate(60, 0, 0)))
	two, err := build(s, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, one.Digest, two.Digest)
	a, err := os.ReadFile(one.File)
	require.NoError(t, err)
	b, err := os.ReadFile(two.File)
	require.NoError(t, err)
	require.True(t, bytes.Equal(a, b))
	require.NoError(t, os.WriteFile(later, []byte("kerneL"), 0o644))
	three, err := build(s, t.TempDir())
	require.NoError(t, err)
	require.NotEqual(t, one.Digest, three.Digest)
}

// TestUnpack: what is in the image is enough for what it runs, with the modes
// that it needs; and an image with a changed byte is refused.
func TestUnpack(t *testing.T) {
	out := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, run(made(t), out, nil))
	to := filepath.Join(t.TempDir(), "root")
	require.NoError(t, lab.UnpackImage(out, to))
	for name, mode := range map[string]fs.FileMode{
		"usr/bin/ingot": 0o755, "usr/bin/ipmitool": 0o755, "usr/lib/ipxe/snponly.efi": 0o644, "usr/share/ingot/initramfs": 0o644,
		"etc/ssl/certs/ca-certificates.crt": 0o644, "etc/ingot": 0o750 | fs.ModeDir, "var/lib/ingot": 0o750 | fs.ModeDir,
		"tmp": 0o777 | fs.ModeSticky | fs.ModeDir,
	} {
		st, err := os.Stat(filepath.Join(to, name))
		require.NoError(t, err)
		require.Equal(t, mode, st.Mode(), name)
	}
	if os.Geteuid() == 0 {
		var value [20]byte
		n, err := unix.Getxattr(filepath.Join(to, "usr/bin/ingot"), lab.CapabilityAttribute, value[:])
		require.NoError(t, err)
		require.Equal(t, fileCapabilities, string(value[:n]))
		require.Equal(t, uint32(1<<unix.CAP_NET_BIND_SERVICE|1<<unix.CAP_NET_RAW), binary.LittleEndian.Uint32(value[4:]))
	}
	c := &closure{root: to, found: map[string]string{}}
	require.NoError(t, c.add(filepath.Join(to, "usr/bin/ipmitool")))
	require.NotEmpty(t, c.found)
	for at, file := range c.found {
		require.FileExists(t, filepath.Join(to, at))
		require.True(t, strings.HasPrefix(file, to))
	}
	require.ErrorContains(t, lab.UnpackImage(out, to), "not empty")

	b, err := os.ReadFile(out)
	require.NoError(t, err)
	at := bytes.Index(b, []byte("\x1f\x8b\x08")) // a layer
	require.Positive(t, at)
	b[at+2000] ^= 1
	require.NoError(t, os.WriteFile(out, b, 0o644))
	require.Error(t, lab.UnpackImage(out, filepath.Join(t.TempDir(), "root")))
}

func TestWhatIsMissing(t *testing.T) {
	s := made(t)
	require.NoError(t, os.Remove(filepath.Join(s.Bin, "agentos/vmlinuz")))
	_, err := build(s, t.TempDir())
	require.ErrorContains(t, err, "make build")
	s.Root = t.TempDir() // a host without libraries
	_, err = build(s, t.TempDir())
	require.ErrorContains(t, err, "library lib")
}
