package e2e

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestNativeActions: what GNU tar put into an archive is on the disk of a QEMU machine afterwards, attribute by attribute,
// and the machine starts the installed kernel without its firmware.
func TestNativeActions(t *testing.T) {
	runInTurn(t, 100, 9)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)

	tree, tarball := t.TempDir(), filepath.Join(t.TempDir(), "tree.tar.gz")
	files := plant(t, tree)
	shell(t, `tar --xattrs --xattrs-include='*' --sparse --format=posix -C "$1" -cf - . | gzip -1 >"$2"`, tree, tarball)
	stored := s.must(ctx, t, "image", "add", "tree", tarball)
	require.Contains(t, stored, "tar archive, ")

	s.template(ctx, t, "actions", fmt.Sprintf(`version: "0.1"
name: actions
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 1200, environment: {DEST_DISK: /dev/vda}}
  - name: unpack
    image: archive2disk
    timeout: 600
    environment: {ARCHIVE_URL: "http://%s/images/tree", DEST_DISK: /dev/vda, DEST_PATH: /opt/tree}
  - name: command
    image: quay.io/tinkerbell/actions/cexec:latest
    timeout: 60
    environment: {BLOCK_DEVICE: /dev/vda2, FS_TYPE: ext4, CHROOT: y, DEFAULT_INTERPRETER: /bin/sh -c, CMD_LINE: "busybox uname -n >/etc/by-cexec && busybox ls /dev/vda2"}
  - name: start
    image: kexec
    timeout: 60
    environment: {BLOCK_DEVICE: /dev/vda, KERNEL_PATH: /boot/vmlinuz, INITRD_PATH: /boot/initrd.gz, CMD_LINE: console=ttyS0 lab.by=kexec}
`, s.Address))

	m, err := s.Add(ctx, lab.Spec{Name: "guest", Firmware: lab.UEFI}, nil)
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "guest", Template: "actions", Image: "mini"})
	require.NoError(t, err)
	s.ended(ctx, t, "guest", inventory.StateSuccess)
	require.Contains(t, s.must(ctx, t, "workflow", "logs", "guest"), "loaded /boot/vmlinuz: leaving by kexec")
	for _, text := range []string{"ommand line: .*lab.by=kexec", "LAB-MINI-BOOTED"} { // the kernel's own line comes first
		_, err = m.WaitSerial(ctx, text)
		require.NoError(t, err)
	}
	require.Equal(t, 1, m.PowerOns())

	require.NoError(t, m.PowerOff(ctx))
	require.NotEmpty(t, readRoot(ctx, t, m, "/etc/by-cexec"))
	for _, name := range files {
		require.Equal(t, onHost(t, filepath.Join(tree, name)), onDisk(ctx, t, m, path.Join("/opt/tree", name)), name)
	}
}

// plant makes a tree with everything that an archive of a system may have, and returns the names of its files.
func plant(t *testing.T, dir string) []string {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, mode os.FileMode, contents string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(at(name)), 0o755))
		require.NoError(t, os.WriteFile(at(name), []byte(contents), 0o600))
		require.NoError(t, os.Chmod(at(name), mode))
	}
	long := "usr/" + strings.Repeat("a-long-folder/", 12) + "file"
	write("bin/setuid", 0o755|os.ModeSetuid, "#!/bin/sh\n")
	write("bin/capable", 0o755|os.ModeSetgid, "x")
	write("etc/owned", 0o640, "secret\n")
	write("etc/ümläut file", 0o604, "")
	write(long, 0o644, "deep")
	require.NoError(t, os.Link(at("etc/owned"), at("etc/twin")))
	require.NoError(t, os.Symlink("/etc/passwd", at("etc/absolute")))
	require.NoError(t, os.Symlink("../bin/setuid", at("etc/relative")))
	require.NoError(t, unix.Mkfifo(at("pipe"), 0o620))
	require.NoError(t, unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	write("sparse", 0o600, "")
	require.NoError(t, os.Truncate(at("sparse"), 64<<20))
	f, err := os.OpenFile(at("sparse"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("end", 1000)), 63<<20)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	require.NoError(t, os.Lchown(at("etc/owned"), 1234, 2345))
	require.NoError(t, os.Lchown(at("etc/relative"), 70000, 80000))
	require.NoError(t, unix.Setxattr(at("etc/owned"), "user.color", []byte("blue"), 0))
	// cap_net_raw=ep, VFS_CAP_REVISION_2 (capability.h)
	require.NoError(t, unix.Setxattr(at("bin/capable"), "security.capability",
		[]byte{1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	require.NoError(t, os.Chtimes(at("etc/owned"), time.Time{}, time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)))
	return []string{
		"bin/setuid", "bin/capable", "etc/owned", "etc/twin", "etc/ümläut file", long, "etc/absolute", "etc/relative",
		"pipe", "null", "sparse",
	}
}

// attributes are those of a file that an archive keeps. Blocks are what it takes on its disk, in MiB, rounded up.
type attributes struct {
	Mode, User, Group, Links uint32
	Size, Modified, Blocks   int64
	Device                   uint64
	Link                     string
	Extended                 map[string]string
}

// onHost returns the attributes of a file of this host.
func onHost(t *testing.T, file string) attributes {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(file, &st))
	a := attributes{
		Mode: st.Mode, User: st.Uid, Group: st.Gid, Links: uint32(st.Nlink), Size: st.Size, Modified: st.Mtim.Sec,
		Blocks: (st.Blocks*512 + 1<<20 - 1) >> 20, Extended: map[string]string{},
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		link, err := os.Readlink(file)
		require.NoError(t, err)
		a.Link, a.Blocks = link, 0
	case unix.S_IFCHR:
		a.Device = uint64(unix.Major(st.Rdev))<<8 | uint64(unix.Minor(st.Rdev))
	}
	for _, name := range []string{"user.color", "security.capability"} {
		value := make([]byte, 64)
		if n, err := unix.Lgetxattr(file, name, value); err == nil {
			a.Extended[name] = fmt.Sprintf("%x", value[:n])
		}
	}
	return a
}

var (
	statInode = regexp.MustCompile(`Inode: \d+\s+Type: (\S+)(?: \S+)?\s+Mode:\s+(\d+)`)
	statOwner = regexp.MustCompile(`User:\s+(\d+)\s+Group:\s+(\d+)`)
	statSize  = regexp.MustCompile(`Size: (\d+)`)
	statLinks = regexp.MustCompile(`Links: (\d+)\s+Blockcount: (\d+)`)
	statTime  = regexp.MustCompile(`mtime: 0x([0-9a-f]+)`)
	statLink  = regexp.MustCompile(`link dest: "(.*)"`)
	statNode  = regexp.MustCompile(`Device major/minor number: ([0-9]+):([0-9]+)`)
)

// onDisk returns the attributes of a file of a machine's root file system, as debugfs shows them. The machine is off.
func onDisk(ctx context.Context, t *testing.T, m *lab.Machine, file string) attributes {
	t.Helper()
	text := debugfs(ctx, t, m, fmt.Sprintf("stat %q", file))
	find := func(re *regexp.Regexp, n int) string {
		found := re.FindStringSubmatch(text)
		if found == nil {
			return "0"
		}
		return found[n]
	}
	number := func(re *regexp.Regexp, n, base int) int64 {
		v, err := strconv.ParseInt(find(re, n), base, 64)
		require.NoError(t, err, text)
		return v
	}

	kinds := map[string]uint32{
		"regular": unix.S_IFREG, "symlink": unix.S_IFLNK, "FIFO": unix.S_IFIFO, "character": unix.S_IFCHR,
	}
	kind, known := kinds[find(statInode, 1)]
	require.True(t, known, text)
	a := attributes{
		Mode: kind | uint32(number(statInode, 2, 8)), User: uint32(number(statOwner, 1, 10)), Group: uint32(number(statOwner, 2, 10)),
		Links: uint32(number(statLinks, 1, 10)), Size: number(statSize, 1, 10), Modified: number(statTime, 1, 16),
		Blocks: (number(statLinks, 2, 10)*512 + 1<<20 - 1) >> 20, Extended: map[string]string{},
	}
	switch kind {
	case unix.S_IFLNK:
		a.Link, a.Blocks = find(statLink, 1), 0
	case unix.S_IFCHR:
		a.Device = uint64(number(statNode, 1, 10))<<8 | uint64(number(statNode, 2, 10))
	}
	if !strings.Contains(text, "Extended attributes:") {
		return a
	}
	for _, name := range []string{"user.color", "security.capability"} {
		if strings.Contains(text, name) {
			value := filepath.Join(t.TempDir(), "value")
			debugfs(ctx, t, m, fmt.Sprintf("ea_get -f %s %q %s", value, file, name))
			a.Extended[name] = fmt.Sprintf("%x", mustRead(t, value))
		}
	}
	return a
}

// debugfs runs a command of debugfs(8) on a machine's root file system, partition 2.
func debugfs(ctx context.Context, t *testing.T, m *lab.Machine, command string) string {
	t.Helper()
	start, err := exec.CommandContext(ctx, "partx", "-rgo", "START", "-n", "2", m.DiskPath()).Output()
	require.NoError(t, err)
	sector, err := strconv.ParseInt(strings.TrimSpace(string(start)), 10, 64)
	require.NoError(t, err)
	out, err := exec.CommandContext(ctx, "debugfs", "-R", command, fmt.Sprintf("%s?offset=%d", m.DiskPath(), sector*512)).Output()
	require.NoError(t, err)
	return string(out)
}

// TestSyslinux: an image whose boot loader is gone boots by BIOS after the action syslinux.
func TestSyslinux(t *testing.T) {
	runInTurn(t, 60, 9)
	ctx := needLab(t)
	raw := filepath.Join(t.TempDir(), "bare.raw")
	shell(t, `cp --sparse=always "$1" "$2"
		dd if=/dev/zero of="$2" bs=440 count=1 conv=notrunc status=none
		sgdisk -A 1:clear:2 "$2" >/dev/null
		start=$(partx -rgo START -n 1 "$2")
		export MTOOLS_SKIP_CHECK=1
		mattrib -r -s -h -i "$2@@$((start * 512))" ::/ldlinux.sys
		mdel -i "$2@@$((start * 512))" ::/ldlinux.sys`, mini(ctx, t).Raw, raw)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "bare", raw)
	s.template(ctx, t, "syslinux", `version: "0.1"
name: syslinux
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 1200, environment: {DEST_DISK: /dev/sda}}
  - name: boot
    image: quay.io/tinkerbell/actions/syslinux:v1.0.0
    timeout: 120
    environment: {DEST_DISK: /dev/sda, DEST_PARTITION: /dev/sda1, SYSLINUX_VERSION: "3.86"}
`)
	m, err := s.Add(ctx, lab.Spec{Name: "guest", Firmware: lab.BIOS}, nil)
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "guest", Template: "syslinux", Image: "bare"})
	require.NoError(t, err)
	s.ended(ctx, t, "guest", inventory.StateSuccess)
	line, err := m.WaitSerial(ctx, "LAB-MINI-BOOTED")
	require.NoError(t, err)
	require.Contains(t, line, "fw=bios")
}

// TestSlurp: the disk that qemuimg2disk wrote on a QEMU machine is sent to another host, bit by bit.
func TestSlurp(t *testing.T) {
	runInTurn(t, 60, 9)
	ctx := needLab(t)
	const size = 256 << 20
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Top: "images: {upload_hosts: [" + lab.DirectGateway + "]}\n"})
	require.NoError(t, err)
	s.keep(t)
	s.must(ctx, t, "image", "add", "mini", mini(ctx, t).Zst)

	l, err := s.Listen(ctx, lab.Router, lab.DirectGateway+":0")
	require.NoError(t, err)
	received := make(chan string, 1)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		form, err := r.MultipartReader()
		if err == nil {
			var file *multipart.Part
			if file, err = form.NextPart(); err == nil && file.FormName() == "BootyImage" {
				var content io.Reader
				if content, err = gzip.NewReader(file); err == nil {
					h := sha256.New()
					var n int64
					n, err = io.Copy(h, content)
					received <- fmt.Sprintf("%s %d %x", file.FileName(), n, h.Sum(nil))
				}
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})}
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	go func() { _ = server.Serve(l) }() // ends with Close

	s.template(ctx, t, "slurp", fmt.Sprintf(`version: "0.1"
name: slurp
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: qemuimg2disk, timeout: 1200, environment: {DEST_DISK: /dev/vda}}
  - name: send
    image: quay.io/tinkerbell/actions/slurp:v1.0.0
    timeout: 600
    environment: {SOURCE_DISK: /dev/vda, DEST_URL: "http://%s/image", IMG_NAME: guest.img.gz, COMPRESSED: "true"}
  - {name: "off", image: poweroff, timeout: 60}
`, l.Addr()))
	m, err := s.Add(ctx, lab.Spec{Name: "guest", Firmware: lab.UEFI, DiskSize: size}, nil)
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "guest", Template: "slurp", Image: "mini"})
	require.NoError(t, err)
	s.ended(ctx, t, "guest", inventory.StateSuccess)
	require.NoError(t, m.WaitPower(ctx, lab.Off))

	digest, err := DigestOf(m.DiskPath(), size)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("guest.img.gz %d %s", size, digest), <-received)
}
