package container

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// StartName is the name under which the agent starts itself to become the container runtime; see Start.
const StartName = "container-start"

const (
	rootfs    = "rootfs"     // the image, in the container's directory
	startFile = "start.json" // the start, likewise
	pidFile   = "run/pid"    // id of the container's first process, likewise
)

// volumeDir returns where volume i of a container is in the runtime's root.
func volumeDir(i int) string { return fmt.Sprintf("/volumes/%d", i) }

// A start is what Start mounts.
type start struct {
	Binds       []bind `json:"binds"`
	HostNetwork bool   `json:"hostNetwork"`
}

// A bind is a directory or file of the agent's system, and where it is in the runtime's root.
type bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
}

// Start replaces the process, which is in a mount namespace of its own, by the container runtime. It makes dir, the container's directory
// and a mount point, the root. The agent's own root is the initramfs, and the kernel cannot pivot away from that: a container runtime could
// only chroot there, and a process that may chroot can leave a chroot. All mounts of Start end with the container. Start returns only after
// an error.
func Start(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, startFile))
	if err != nil {
		return err
	}
	var s start
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separating the mounts: %w", err)
	}
	for _, m := range s.Binds {
		if err := m.mount(dir); err != nil {
			return fmt.Errorf("mounting %s: %w", m.Source, err)
		}
	}
	if !s.HostNetwork {
		if err := isolateNetwork(); err != nil {
			return fmt.Errorf("making a network of its own: %w", err)
		}
	}

	if err := unix.Chdir(dir); err != nil {
		return err
	}
	if err := unix.Mount(dir, "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	const crun = "/bin/crun"
	args := []string{crun, "--root=/run", "--cgroup-manager=disabled", "run", "--detach", "--pid-file=/" + pidFile, "--bundle=/", "ingot"}
	return fmt.Errorf("starting %s: %w", crun, unix.Exec(crun, args, []string{"PATH=/bin"}))
}

func (m bind) mount(dir string) error {
	target := filepath.Join(dir, m.Target)
	st, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if st.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if !m.ReadOnly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}

// isolateNetwork gives the process a network of its own, which has only a loopback interface.
func isolateNetwork() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }() // nothing was sent
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request)
}
