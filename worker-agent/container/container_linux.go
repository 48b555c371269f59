// Package container runs container images as actions: it unpacks an image into memory, confines its processes with the container runtime
// crun, and ends all of them.
package container

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

const (
	reserve    = 64 << 20  // memory that an image leaves free, in bytes
	agentShare = 128 << 20 // memory that a container leaves to the agent, in bytes, if there is so much
	grace      = 10 * time.Second
)

// A Runner runs containers on this machine, one at a time.
type Runner struct {
	// Dir is a directory in memory, which only the runner uses.
	Dir string
	// Children is locked while a container runs; see filesys.HostFilesystems.
	Children sync.Locker
}

// A Container is one run of a container image.
type Container struct {
	Action   action.Action // Action.Container is set; see action.Action.CheckContainer
	Hostname string
	Runtime  string // URL of the archive with the container runtime
	// FindDisk returns the kernel's name of the disk that the container may use, such as sda; nil = none. It is called right before the
	// container starts. Names are further paths of this disk.
	FindDisk func() (name string, err error)
	Names    []string
	Volumes  []Volume

	Opener fetch.Opener
	Log    func(format string, args ...any)
	// Track is called when the container's progress has another meaning. total is the whole in bytes, 0 if it is unknown; done returns how
	// much of it is done.
	Track func(message string, total int64, done func() int64)
}

// A Volume is a directory of the agent's system that the container sees at Target. If Device is set, Source is one of the devices that each
// container has in /dev.
type Volume struct {
	Source   string
	Device   bool
	Target   string
	ReadOnly bool
}

// errOutOfMemory means that the kernel has killed the container because it needed more memory than it may use.
var errOutOfMemory = errors.New("the container was killed, because it needed more memory than the machine has")

// Run runs the container, and returns its exit code. An error without an exit code means that the container did not run, or was killed.
// When ctx ends, the container gets SIGTERM and is killed 10 s later. When Run returns, no process of the container is running any more.
func (r *Runner) Run(ctx context.Context, c Container) (exit int, err error) {
	if os.Getpid() != 1 {
		return 0, errors.New("running a container: only PID 1 of the agent's own system can do that")
	}
	if err := prepareKernel(); err != nil {
		return 0, fmt.Errorf("preparing the kernel for containers: %w", err)
	}
	runtime, err := r.fetchRuntime(ctx, c)
	if err != nil {
		return 0, err
	}
	dir, unmount, err := r.makeRoot(c.Action.Container.Size)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	if err := r.prepare(ctx, c, dir, runtime); err != nil {
		return 0, err
	}

	free, err := freeMemory()
	if err != nil {
		return 0, err
	}
	group, err := newCgroup(max(free-agentShare, free/2))
	if err != nil {
		return 0, fmt.Errorf("making the container's cgroup: %w", err)
	}
	defer func() { err = errors.Join(err, group.remove()) }()
	done, err := provideDevices(c, group, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	c.Track("running the container", 0, func() int64 { return 0 })
	return r.supervise(ctx, c, dir, group)
}

// makeRoot mounts the file system in memory that becomes the root of the container runtime. size is the size of the image in bytes.
func (r *Runner) makeRoot(size int64) (dir string, unmount func() error, err error) {
	free, err := freeMemory()
	if err != nil {
		return "", nil, err
	}
	if free < size+reserve {
		return "", nil, fmt.Errorf("unpacking the container image: it needs %s of memory and %s more, but only %s are free: "+
			"use a smaller image, or a machine with more memory", human.Size(size), human.Size(reserve), human.Size(free))
	}
	dir = filepath.Join(r.Dir, "container")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	// Without MS_NODEV: the container uses the device nodes in it.
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID, fmt.Sprintf("mode=0755,size=%d", free-reserve)); err != nil {
		return "", nil, fmt.Errorf("mounting the container's root: %w", err)
	}
	// MNT_DETACH: what a process of the container has still open is in memory only.
	return dir, func() error { return unix.Unmount(dir, unix.MNT_DETACH) }, nil
}

// fetchRuntime returns the directory with the container runtime. It fetches it from the server once per boot.
func (r *Runner) fetchRuntime(ctx context.Context, c Container) (dir string, err error) {
	want := c.Action.Container.Runtime
	if want == "" || strings.ContainsAny(want, "/.") {
		return "", errors.New("fetching the container runtime: the order does not contain its SHA-256")
	}
	dir = filepath.Join(r.Dir, "runtime-"+want)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	file, err := c.Opener.OpenAddress(ctx, c.Runtime, true)
	if err != nil {
		return "", fmt.Errorf("fetching the container runtime: %w", err)
	}
	defer file.Close()
	fresh := filepath.Join(r.Dir, "runtime")
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755)); err != nil {
		return "", err
	}
	if err := extractRuntime(ctx, file, fresh, want); err != nil {
		return "", fmt.Errorf("fetching the container runtime: %w", errors.Join(err, os.RemoveAll(fresh)))
	}
	return dir, os.Rename(fresh, dir)
}

// prepare unpacks the image into dir, and writes what the container runtime and Start read.
func (r *Runner) prepare(ctx context.Context, c Container, dir, runtime string) error {
	for _, name := range []string{rootfs, "dev", "etc", "run"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	image, user, err := c.unpack(ctx, filepath.Join(dir, rootfs))
	if err != nil {
		return err
	}
	spec, err := newConfig(c, image.Config, user)
	if err != nil {
		return err
	}

	s := start{
		HostNetwork: c.Action.Container.HostNetwork,
		Binds:       []bind{{Source: "/proc", Target: "/proc"}, {Source: "/sys", Target: "/sys"}},
	}
	for _, name := range []string{"/bin", "/lib", "/lib64"} {
		s.Binds = append(s.Binds, bind{Source: runtime + name, Target: name, ReadOnly: true})
	}
	for i, v := range c.Volumes {
		if !v.Device {
			s.Binds = append(s.Binds, bind{Source: v.Source, Target: volumeDir(i)})
		}
	}
	for name, v := range map[string]any{"config.json": spec, startFile: s} {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	resolver, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n", c.Hostname)
	return errors.Join(os.WriteFile(filepath.Join(dir, "etc/resolv.conf"), resolver, 0o644),
		os.WriteFile(filepath.Join(dir, "etc/hosts"), []byte(hosts), 0o644))
}

// unpack fetches the image, extracts it into dir, and finds the user of its programs.
func (c Container) unpack(ctx context.Context, dir string) (image v1.Image, user specs.User, err error) {
	archive, err := c.Opener.OpenAddress(ctx, c.Action.Container.URL, true)
	if err != nil {
		return image, user, fmt.Errorf("fetching the container image: %w", err)
	}
	defer archive.Close()
	c.Track("fetching the container image", max(archive.Total, 0), archive.Received.Load)
	root, err := filesys.OpenTree(dir)
	if err != nil {
		return image, user, err
	}
	defer root.Close()
	if image, err = unpack(ctx, archive, *c.Action.Container, root); err != nil {
		return image, user, err
	}
	if err := makeWorkingDir(dir, image.Config.WorkingDir); err != nil {
		return image, user, err
	}
	passwd, _ := root.ReadFile("/etc/passwd") // an image need not have these files
	group, _ := root.ReadFile("/etc/group")
	user, err = findUser(image.Config.User, string(passwd), string(group))
	return image, user, err
}

// makeWorkingDir makes the image's WORKDIR, as Docker does, unless the image has it.
func makeWorkingDir(dir, name string) error {
	if name = strings.Trim(name, "/"); name == "" {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened only for names
	if _, err := root.Stat(name); !errors.Is(err, os.ErrNotExist) {
		return nil // the container runtime reports what is wrong with it
	}
	return root.MkdirAll(name, 0o755)
}

// provideDevices makes the container's devices and lets the cgroup use them. done ends the supervision of the bound disk, and returns
// when what the container has written is on stable storage.
func provideDevices(c Container, group cgroup, dir string) (done func() error, err error) {
	fd, err := unix.Open(group.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	a := &access{log: c.Log, rules: deviceProgram{cgroup: fd}}
	if a.dir, err = newDeviceDir(filepath.Join(dir, "dev")); err == nil && c.FindDisk != nil {
		a.disk, err = findDisk("/sys", c.FindDisk, c.Names)
	}
	if err == nil {
		err = a.update()
	}
	if err != nil {
		return nil, errors.Join(err, a.rules.close())
	}
	if a.disk == nil {
		return a.rules.close, nil
	}
	stop := make(chan struct{})
	wait, err := a.watch(stop)
	if err != nil {
		return nil, errors.Join(err, a.rules.close())
	}
	return func() error {
		close(stop)
		wait()
		a.readTable() // for the next action
		return errors.Join(a.disk.sync(), a.rules.close())
	}, nil
}

// supervise starts the container, passes its output to the log, and returns its exit code when all of its processes have ended.
func (r *Runner) supervise(ctx context.Context, c Container, dir string, group cgroup) (exit int, err error) {
	out, in, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		filesys.EachLine(out, func(line string) { c.Log("%s", line) })
	}()

	r.Children.Lock()
	defer r.Children.Unlock()
	exit, err = launch(ctx, dir, group, in)
	if err == nil && exit == 0 {
		exit, err = waitForExit(ctx, dir, group)
	}
	// Processes that were left behind would keep the pipe open.
	left := group.kill()
	err = errors.Join(err, in.Close(), left)
	if left != nil { // a process that cannot end has the pipe open
		_ = out.Close()
	}
	<-logged
	_ = out.Close() // it was read to its end
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case group.isOutOfMemory():
		return 0, errOutOfMemory
	}
	return exit, err
}

// launch starts the container with the output out, and returns when the container runtime, which is no longer needed then, has ended. If
// the container could not be started, launch returns the runtime's exit code, and the output tells why.
func launch(ctx context.Context, dir string, group cgroup, out *os.File) (exit int, err error) {
	fd, err := os.Open(group.dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = fd.Close() }() // opened only for its descriptor
	cmd := exec.CommandContext(ctx, "/proc/self/exe", dir)
	cmd.Args[0], cmd.Env, cmd.Dir = StartName, []string{}, "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	err = cmd.Run()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() > 0 {
		return failed.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("starting the container: %w", err)
	}
	return 0, nil
}

// waitForExit returns the exit code of the container's first process. Its parent has ended, so it is a child of PID 1, the agent. When ctx
// ends, the process gets SIGTERM, and all processes are killed after a grace period.
func waitForExit(ctx context.Context, dir string, group cgroup) (exit int, err error) {
	text, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("reading the container's process id: %w", err)
	}

	ended := make(chan error, 1)
	var status unix.WaitStatus
	go func() {
		for {
			_, err := unix.Wait4(pid, &status, 0, nil)
			switch {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.ECHILD) && unix.Kill(pid, 0) == nil: // a process of the runtime, its parent, is just ending
				time.Sleep(10 * time.Millisecond)
			default:
				ended <- err
				return
			}
		}
	}()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = unix.Kill(pid, unix.SIGTERM) // an error means that it has ended
		select {
		case err = <-ended:
		case <-time.After(grace):
			if err = group.kill(); err == nil {
				err = <-ended
			}
		}
	}
	if err != nil {
		return 0, fmt.Errorf("waiting for the container: %w", err)
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// SharedDir returns the directory that the containers of a run share under the name source. It is empty at first.
func (r *Runner) SharedDir(run, source string) (string, error) {
	dir := filepath.Join(
		r.Dir,
		"shared",
		filepath.Base(cmp.Or(run, "run")),
		strings.ReplaceAll(strings.ReplaceAll(source, "%", "%25"), "/", "%2f"),
	)
	return dir, os.MkdirAll(dir, 0o755)
}
