package actions

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"golang.org/x/sys/unix"
)

// fakeKernel records what it was asked to start.
type fakeKernel struct {
	refuse                  error
	kernel, initrd, cmdline string
}

func (h *fakeKernel) LoadKernel(kernel, initrd *os.File, commandLine string) error {
	if h.refuse != nil {
		return h.refuse
	}
	h.kernel, h.initrd, h.cmdline = "", "none", commandLine
	b, err := io.ReadAll(kernel)
	h.kernel = string(b)
	if err == nil && initrd != nil {
		b, err = io.ReadAll(initrd)
		h.initrd = string(b)
	}
	// The kernel refuses a file that is open for writing.
	if _, e := kernel.Write([]byte("x")); e == nil {
		err = errors.Join(err, unix.ETXTBSY)
	}
	return err
}

func (h *fakeKernel) Kexec() error { return nil }

// kexecRoot creates a root file system with two kernels.
func kexecRoot(t *testing.T, files map[string]string) (Machine, *action.Disk) {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"etc/os-release": "", "boot/vmlinuz-6.1.0": "kernel six", "boot/vmlinuz-5.10.0": "kernel five",
		"boot/initrd.img-6.1.0": "initrd six", "boot/intel-ucode.img": "ucode",
	}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		if text == "absent" {
			continue
		}
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/boot/vmlinuz-6.1.0", filepath.Join(root, "vmlinuz")); err != nil {
		t.Fatal(err)
	}
	part := filesystest.ExtPartition(t, 1, 8192)
	disks, disk, _ := disktest.OldDisk(t, 8*blockdev.MiB)
	return Machine{
		Disks: disks,
		Files: &filesystest.FakeFiles{Parts: []filesys.Partition{part}, Dirs: map[string]string{part.Path: root}},
	}, disk
}

func TestKexec(t *testing.T) {
	t.Parallel()
	bls := map[string]string{
		"boot/loader/entries/abc-6.9.1.conf":  "title Fedora\nversion 6.9.1\nlinux /boot/vmlinuz-5.10.0\ninitrd /boot/intel-ucode.img $tuned_initrd\noptions $kernelopts ro\n",
		"boot/loader/entries/abc-6.10.1.conf": "title\tFedora\nversion\t6.10.1\nlinux\t/boot/vmlinuz-6.1.0\ninitrd\t/boot/initrd.img-6.1.0\noptions\troot=UUID=2 ro\noptions rhgb\n",
		"boot/grub2/grub.cfg":                 "set default=\"${saved_entry}\"\ninsmod blscfg\nblscfg\n",
	}
	with := func(m map[string]string, name, text string) map[string]string {
		out := maps.Clone(m)
		out[name] = text
		return out
	}
	grub := map[string]string{"boot/grub/grub.cfg": disktest.DebianGrub}
	const joined = "ucode\x00\x00\x00initrd six\x00\x00"
	for name, c := range map[string]struct {
		files                   map[string]string
		env                     map[string]string
		kernel, initrd, cmdline string
		fail                    string
	}{
		"the default entry": {files: grub, kernel: "kernel six", initrd: joined, cmdline: "root=UUID=1 ro quiet \"dyndbg=file a.c +p\""},
		"the entry next time": {
			files: with(grub, "boot/grub/grubenv",
				"# GRUB Environment Block\nnext_entry=gnulinux-advanced-1>gnulinux-5.10.0-advanced-1\n####"), kernel: "kernel five", initrd: "none",
			cmdline: "root=UUID=1 ro",
		},
		"a submenu's first": {
			files: with(grub, "boot/grub/grubenv", "next_entry=1\n"), kernel: "kernel six", initrd: "initrd six",
			cmdline: "root=UUID=1 ro advanced",
		},
		"another configuration": {
			files: map[string]string{"x/grub.cfg": "menuentry a {\nlinux ($root)/boot/vmlinuz-5.10.0 one\n}"},
			env:   map[string]string{"GRUBCFG_PATH": "x/grub.cfg"}, kernel: "kernel five", initrd: "none", cmdline: "one",
		},
		"all given": {
			env:    map[string]string{"KERNEL_PATH": "/vmlinuz", "INITRD_PATH": "/boot/initrd.img-6.1.0", "CMD_LINE": "a b"},
			kernel: "kernel six", initrd: "initrd six", cmdline: "a b",
		},
		"no initrd": {
			files: grub, env: map[string]string{"KERNEL_PATH": "/boot/vmlinuz-5.10.0"}, kernel: "kernel five",
			initrd: "none", cmdline: "root=UUID=1 ro quiet \"dyndbg=file a.c +p\"",
		},
		"own command line": {
			files: grub, env: map[string]string{"CMD_LINE": "single"}, kernel: "kernel six", initrd: joined,
			cmdline: "single",
		},
		"loader entries, newest": {files: bls, kernel: "kernel six", initrd: "initrd six", cmdline: "root=UUID=2 ro rhgb"},
		"loader entries, saved": {
			files:  with(bls, "boot/grub2/grubenv", "saved_entry=abc-6.9.1\nkernelopts=root=UUID=3 x\n"),
			kernel: "kernel five", initrd: "ucode", cmdline: "root=UUID=3 x ro",
		},
		"loader.conf": {files: with(with(bls, "boot/grub2/grub.cfg", "absent"), "boot/loader/loader.conf",
			"timeout 3\ndefault abc-6.9*\n"), kernel: "kernel five", initrd: "ucode", cmdline: "ro"},
		"no configuration": {fail: "neither grub.cfg nor loader"},
		"no command line":  {env: map[string]string{"KERNEL_PATH": "/vmlinuz"}, fail: "CMD_LINE is not set"},
		"no such kernel":   {env: map[string]string{"KERNEL_PATH": "/nowhere", "CMD_LINE": "x"}, fail: "no such file"},
		"an empty kernel":  {env: map[string]string{"KERNEL_PATH": "/etc/os-release", "CMD_LINE": "x"}, fail: "the file is empty"},
		"a directory":      {env: map[string]string{"KERNEL_PATH": "/boot", "CMD_LINE": "x"}, fail: "not a regular file"},
		"no such initrd": {
			env:  map[string]string{"KERNEL_PATH": "/vmlinuz", "INITRD_PATH": "/nowhere", "CMD_LINE": "x"},
			fail: "no such file",
		},
		"two lines": {env: map[string]string{"KERNEL_PATH": "/vmlinuz", "CMD_LINE": "x\ny"}, fail: "must be one line"},
		"nothing for Linux": {
			files: map[string]string{"boot/grub/grub.cfg": "menuentry 'Windows' {\nchainloader +1\n}"},
			fail:  `"Windows" does not start a Linux`,
		},
		"an empty menu": {files: map[string]string{"boot/grub/grub.cfg": "set default=0\n"}, fail: "no menu entry"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, disk := kexecRoot(t, c.files)
			host := &fakeKernel{}
			cfg.Kernel = host
			out, log, err := try(t, cfg, action.Kexec, disk, c.env)
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) || out["leaving"] != "" {
					t.Errorf("%v, want %q", err, c.fail)
				}
				return
			}
			if err != nil || out["leaving"] != "kexec" {
				t.Fatalf("%v %v\n%s", out, err, log)
			}
			if host.kernel != c.kernel || host.initrd != c.initrd || host.cmdline != c.cmdline {
				t.Errorf("%q %q %q", host.kernel, host.initrd, host.cmdline)
			}
			if strings.Contains(log, "root=") {
				t.Error("the log shows a command line")
			}
		})
	}
}

// /boot may be a separate file system; paths in its configuration then start there.
func TestKexecWithASeparateBoot(t *testing.T) {
	t.Parallel()
	cfg, disk := kexecRoot(t, nil)
	boot := t.TempDir()
	for name, text := range map[string]string{
		"grub/grub.cfg": "menuentry a {\nlinux /vmlinuz-6.5 root=x\ninitrd /initrd-6.5\n}",
		"vmlinuz-6.5":   "k", "initrd-6.5": "i",
	} {
		file := filepath.Join(boot, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	files := cfg.Files.(*filesystest.FakeFiles)
	part := filesystest.ExtPartition(t, 2, 4096)
	files.Parts = append(files.Parts, part)
	files.Dirs[part.Path] = boot
	host := &fakeKernel{}
	cfg.Kernel = host
	out, log, err := try(t, cfg, action.Kexec, disk, nil)
	if err != nil || host.kernel != "k" || host.initrd != "i" || host.cmdline != "root=x" {
		t.Errorf("%v %v %q %q\n%s", out, err, host.kernel, host.initrd, log)
	}
	if out, _, err := try(t, cfg, action.Kexec, disk, map[string]string{"BLOCK_DEVICE": "/dev/alias1"}); err == nil {
		t.Errorf("partition 1 was named, and 2 was taken: %v", out)
	}
}
