package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/bootconfig"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"golang.org/x/sys/unix"
)

// kexec loads a kernel that is installed on the bound disk. After the server has acknowledged the action's result, the agent starts this
// kernel directly, without a restart of the firmware.
//
//	BLOCK_DEVICE, PARTITION, FS_TYPE  where the kernel is, as inject; default: the root file system
//	KERNEL_PATH, INITRD_PATH          absolute; several initrds are separated by blanks. Default: those in the boot loader's
//	                                  configuration; with KERNEL_PATH alone, no initrd
//	CMD_LINE                          of the kernel; default: from the configuration
//	GRUBCFG_PATH                      where GRUB's configuration is; default: the usual places
//
// The configuration is GRUB's grub.cfg, or entries of the Boot Loader Specification. It may be in a separate /boot. If the agent's kernel
// refuses to load another kernel (lockdown, no kexec), the action succeeds, and the machine reboots instead. Output: leaving = kexec or
// reboot, kernel.
func kexec(ctx context.Context, t *Task) (err error) {
	part, err := t.place(ctx, "BLOCK_DEVICE")
	if err != nil {
		return err
	}
	defer part.release(ctx, &err)

	var k kernelFiles
	defer k.close()
	err = filesys.UseMounted(ctx, t.machine.Files, part.Partition, part.fstype, true, func(root filesys.Tree) error {
		err := k.load(ctx, t.env, root)
		if !errors.Is(err, bootconfig.ErrNoConfig) && !errors.Is(err, os.ErrNotExist) || part.named {
			return err
		}
		return separateBoot(ctx, t, part.disk, part.Partition, &k, err)
	})
	if err != nil {
		return fmt.Errorf("finding a kernel on %s: %w", part.Path, err)
	}

	t.output["kernel"] = k.entry.Kernel
	if err := context.Cause(ctx); err != nil {
		return err
	}

	if t.machine.Kernel != nil {
		err = t.machine.Kernel.LoadKernel(k.kernel, k.initrd, k.entry.Options)
	} else {
		err = fmt.Errorf("this agent cannot start a kernel: %w", errors.ErrUnsupported)
	}

	t.output["leaving"] = action.Kexec
	switch {
	case err == nil:
		t.logf("loaded %s: leaving by kexec", k.entry.Kernel)
	case refusedToLoad(err):
		t.output["leaving"] = action.Reboot
		t.logf("warning: %s cannot be loaded, so the agent leaves by reboot: %v", k.entry.Kernel, err)
	default:
		return fmt.Errorf("loading %s: %w", k.entry.Kernel, err)
	}

	t.machine.Loaded(err == nil)
	return nil
}

// refusedToLoad reports whether err means that the agent's kernel cannot start any other kernel by kexec, or only kernels that are signed
// with another key.
func refusedToLoad(err error) bool {
	return slices.ContainsFunc([]error{
		errors.ErrUnsupported, unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EKEYREJECTED, unix.ENOKEY, unix.ENODATA,
		unix.ENOPKG,
		unix.EBADMSG,
	}, func(e error) bool { return errors.Is(err, e) })
}

// separateBoot looks for the configuration and the kernel on the disk's partitions other than root, such as /boot or an ESP. If it finds
// none, it returns the error why, which says why there is none on root.
func separateBoot(ctx context.Context, t *Task, disk action.Disk, root filesys.Partition, k *kernelFiles, why error) error {
	parts, err := t.machine.Files.Partitions(ctx, disk.Path)
	if err != nil {
		return fmt.Errorf("listing the partitions of %s: %w", disk.Path, err)
	}

	for _, p := range parts {
		kind := filesys.TypeOf(p)
		if p.Number == root.Number || !slices.Contains(action.FileSystems, kind) {
			continue
		}
		err := filesys.UseMounted(ctx, t.machine.Files, p, kind, true, func(fs filesys.Tree) error { return k.load(ctx, t.env, fs) })
		if err == nil {
			t.logf("found the kernel on partition %d (%s)", p.Number, kind)
			return nil
		}
		if !errors.Is(err, bootconfig.ErrNoConfig) && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("looking at %s: %w", p.Path, err)
		}
	}

	return why
}

// kernelFiles are the kernel that has to be started, and its initrd. The files are copies in memory, so they can be read after the file
// system was unmounted.
type kernelFiles struct {
	entry          bootconfig.Entry
	kernel, initrd *os.File
}

func (k *kernelFiles) close() {
	for _, f := range []*os.File{k.kernel, k.initrd} {
		if f != nil {
			_ = f.Close() // a file in memory: closing it cannot lose data
		}
	}
}

// maxKernel is the maximum size in bytes of a kernel, and of all initrds together. Both are read into memory.
const maxKernel = 1 << 30

// load copies the kernel and the initrds into memory. They are those that env names, or otherwise those that the system on root would boot.
func (k *kernelFiles) load(ctx context.Context, env map[string]string, root filesys.Tree) error {
	e := bootconfig.Entry{Kernel: env["KERNEL_PATH"], Initrds: strings.Fields(env["INITRD_PATH"]), Options: env["CMD_LINE"]}
	if e.Kernel == "" || e.Options == "" {
		found, where, err := bootconfig.Read(root.ReadFile, root.List, env["GRUBCFG_PATH"])
		if err != nil && (e.Kernel == "" || !errors.Is(err, bootconfig.ErrNoConfig)) {
			return err
		}
		if err != nil {
			return fmt.Errorf("finding a command line for %s (CMD_LINE is not set): %w", e.Kernel, err)
		}

		if e.Kernel == "" {
			e.Kernel = found.Kernel
			if len(e.Initrds) == 0 {
				e.Initrds = found.Initrds
			}
		}
		e.Options = cmp.Or(e.Options, found.Options)

		e.Title = where
	}
	if strings.ContainsAny(e.Options, "\x00\n") {
		return errors.New("invalid CMD_LINE; must be a single line")
	}

	k.entry = e
	var err error
	if k.kernel, err = copyFiles(ctx, root, "kernel", e.Kernel); err != nil || len(e.Initrds) == 0 {
		return err
	}

	if k.initrd, err = copyFiles(ctx, root, "initrd", e.Initrds...); err != nil {
		_ = k.kernel.Close() // a file in memory: closing it cannot lose data
		k.kernel = nil
	}
	return err
}

// copyFiles copies the files called names into one file in memory, one after the other. If there are several, each begins at a multiple of
// 4 bytes, as the kernel requires for initrds.
func copyFiles(ctx context.Context, root filesys.Tree, what string, names ...string) (*os.File, error) {
	fd, err := unix.MemfdCreate(what, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("creating a file in memory for the %s: %w", what, err)
	}

	out := os.NewFile(uintptr(fd), what)
	var total int64
	for _, name := range names {
		var n int64
		n, err = copyFile(ctx, out, root, name, maxKernel-total)
		total += n
		if pad := -total & 3; err == nil && pad > 0 && len(names) > 1 {
			_, err = out.Write(make([]byte, pad))
			total += pad
		}
		if err != nil {
			_ = out.Close() // a file in memory: closing it cannot lose data
			return nil, err
		}
	}

	// Open the file again for reading only: the kernel refuses to load a file that is open for writing.
	in, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", out.Fd()))
	_ = out.Close() // a file in memory: closing it cannot lose data
	return in, err
}

func copyFile(ctx context.Context, out io.Writer, root filesys.Tree, name string, limit int64) (int64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}

	f, err := root.OpenFile(path.Join("/", name))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // opened only for reading
	n, err := io.Copy(out, io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return n, fmt.Errorf("reading %s: %w", name, err)
	case n == 0:
		return n, fmt.Errorf("reading %s: the file is empty", name)
	case n > limit:
		return n, fmt.Errorf("reading %s: the file is longer than %d bytes", name, limit)
	}
	return n, nil
}

// Kexecer is an optional interface of a Host. A Host that has it can start a kernel without a restart of the firmware.
type Kexecer interface {
	// LoadKernel loads the kernel that Kexec will start. initrd may be nil. After LoadKernel, the caller may close both files.
	LoadKernel(kernel, initrd *os.File, commandLine string) error
	// Kexec starts the loaded kernel. On a real machine, it does not return.
	Kexec() error
}
