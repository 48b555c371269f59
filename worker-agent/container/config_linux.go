package container

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// capabilities are what an unprivileged container may do: Docker's default without MKNOD, NET_RAW and AUDIT_WRITE.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID",
	"CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// allCapabilities are what a privileged container may do.
var allCapabilities = slices.Concat(capabilities, []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_BPF", "CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH",
	"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN",
	"CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_PERFMON", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_MODULE", "CAP_SYS_NICE",
	"CAP_SYS_PACCT", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
})

// Files of proc and sysfs that an unprivileged container does not see, and those that it can only read. /proc/cmdline has the claim of the
// agent's boot.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/config.gz", "/proc/interrupts", "/proc/iomem", "/proc/ioports", "/proc/kallsyms",
		"/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
		"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/bpf", "/sys/fs/cgroup", "/sys/fs/pstore", "/sys/kernel/debug",
		"/sys/kernel/security", "/sys/kernel/tracing",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/mtrr", "/proc/sys", "/proc/tty"}
)

// deniedCalls are the system calls that fail with EPERM in an unprivileged container. It lacks the capabilities for most of them: a fault
// of the kernel in their code is then out of reach, too.
var deniedCalls = []string{
	"acct", "add_key", "adjtimex", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module", "finit_module", "fsconfig",
	"fsmount", "fsopen", "fspick", "get_kernel_syms", "get_mempolicy", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup",
	"ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "migrate_pages", "mount", "mount_setattr",
	"move_mount", "move_pages", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open", "pivot_root",
	"process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "query_module", "quotactl", "quotactl_fd", "reboot", "request_key",
	"set_mempolicy", "setns", "settimeofday", "swapoff", "swapon", "syslog", "umount", "umount2", "unshare", "userfaultfd", "uselib", "vm86",
	"vm86old",
}

// Numbers of Linux that package syscall has under Linux only.
const (
	eperm, enosys = 1, 38
	newUser       = 0x10000000 // CLONE_NEWUSER
)

// newSeccomp returns the filter of system calls of an unprivileged container. If the container shares the agent's PID namespace, it can
// neither signal nor limit PID 1, the agent: its end would be a kernel panic.
func newSeccomp(hostPID bool) *specs.LinuxSeccomp {
	deny := func(errno uint, args []specs.LinuxSeccompArg, names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: specs.ActErrno, ErrnoRet: &errno, Args: args}
	}
	calls := []specs.LinuxSyscall{
		deny(eperm, nil, deniedCalls...),
		deny(eperm, []specs.LinuxSeccompArg{{Value: newUser, ValueTwo: newUser, Op: specs.OpMaskedEqual}}, "clone"),
		deny(enosys, nil, "clone3"), // its flags are in memory, where no filter sees them; libraries then call clone
	}
	if hostPID {
		calls = append(
			calls,
			deny(eperm, nil, "pidfd_send_signal", "tkill"),
			// The kernel reads only the lower half of a process id.
			deny(eperm, []specs.LinuxSeccompArg{{Value: 1<<32 - 1, ValueTwo: 1, Op: specs.OpMaskedEqual}},
				"kill", "prlimit64", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "sched_setaffinity", "sched_setattr", "sched_setscheduler", "tgkill"),
			// A file or socket sends signals to its owner.
			deny(eperm, secondArgument(8), "fcntl", "fcntl64"),  // F_SETOWN
			deny(eperm, secondArgument(10), "fcntl", "fcntl64"), // F_SETSIG
			deny(eperm, secondArgument(15), "fcntl", "fcntl64"), // F_SETOWN_EX
			deny(eperm, secondArgument(0x8901), "ioctl"),        // FIOSETOWN
			deny(eperm, secondArgument(0x8902), "ioctl"),        // SIOCSPGRP
			deny(eperm, nil, "ioprio_set", "setpriority"),
		)
	}
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}, Syscalls: calls,
	}
}

// secondArgument is true for a system call whose second argument has this value in its lower half.
func secondArgument(value uint64) []specs.LinuxSeccompArg {
	return []specs.LinuxSeccompArg{{Index: 1, Value: 1<<32 - 1, ValueTwo: value, Op: specs.OpMaskedEqual}}
}

// newConfig returns the configuration of the container runtime for the container c with the image's configuration image. user is the user
// of the image's programs.
func newConfig(c Container, image v1.ImageConfig, user specs.User) (*specs.Spec, error) {
	o := c.Action.Container
	args := slices.Concat(image.Entrypoint, image.Cmd)
	if len(c.Action.Command) > 0 {
		args = slices.Concat(image.Entrypoint, c.Action.Command)
	}
	if len(args) == 0 {
		return nil, errors.New("the image has no ENTRYPOINT and no CMD, so the action needs a command")
	}
	namespaces := []specs.LinuxNamespace{
		{Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace},
	}
	if !o.HostPID {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}

	s := &specs.Spec{
		Version: "1.0.2", Hostname: c.Hostname, Root: &specs.Root{Path: rootfs},
		Process: &specs.Process{Args: args, Env: environment(image.Env, c.Action.Environment), Cwd: cmp.Or(image.WorkingDir, "/"), User: user},
		Linux:   &specs.Linux{Namespaces: namespaces},
	}
	sysfs, may := "rw", allCapabilities
	if !o.Privileged {
		sysfs, may = "ro", capabilities
		s.Process.NoNewPrivileges = true
		s.Linux.Seccomp, s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = newSeccomp(o.HostPID), maskedPaths, readonlyPaths
	}
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: may}
	if user.UID == 0 {
		s.Process.Capabilities.Effective, s.Process.Capabilities.Permitted = may, may
	}

	s.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", sysfs}},
		{Destination: "/dev", Type: "bind", Source: "/dev", Options: []string{"bind", "nosuid", "noexec", "ro"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{
			"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5",
		}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777"}},
	}
	for _, name := range []string{"/etc/hosts", "/etc/resolv.conf"} {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: name, Type: "bind", Source: name, Options: []string{"bind", "nosuid", "nodev"}})
	}
	for i, v := range c.Volumes {
		m := specs.Mount{Destination: v.Target, Type: "bind", Source: volumeDir(i), Options: []string{"rbind", "nosuid", "nodev"}}
		if v.Device {
			m.Source, m.Options = v.Source, []string{"bind", "nosuid", "noexec"}
		}
		if v.ReadOnly {
			m.Options = append(m.Options, "ro")
		}
		s.Mounts = append(s.Mounts, m)
	}
	return s, nil
}

// environment returns the variables of the image with those of the action, which win.
func environment(image []string, own map[string]string) []string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, e := range image {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	maps.Copy(env, own)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// findUser returns the ids for the text of an image's USER: NAME[:GROUP], where each may be a number. passwd and group are the contents of
// the image's /etc/passwd and /etc/group; as with Docker, a number needs no entry there.
func findUser(text, passwd, group string) (specs.User, error) {
	name, groupName, hasGroup := strings.Cut(text, ":")
	name = cmp.Or(name, "0")
	var u specs.User
	uid, err := strconv.ParseUint(name, 10, 31)
	known := false
	for _, f := range entries(passwd, 4) {
		if id, e := strconv.ParseUint(f[2], 10, 31); e == nil && !known && (f[0] == name || err == nil && id == uid) {
			gid, _ := strconv.ParseUint(f[3], 10, 31) // 0 if it is invalid
			name, u.UID, u.GID, known = f[0], uint32(id), uint32(gid), true
		}
	}
	if !known && err != nil {
		return u, fmt.Errorf("finding the image's user %q: the image's /etc/passwd does not have it", text)
	}
	if !known {
		u.UID = uint32(uid)
	}

	gid, err := strconv.ParseUint(groupName, 10, 31)
	found := err == nil
	if found {
		u.GID = uint32(gid)
	}
	for _, f := range entries(group, 4) {
		id, e := strconv.ParseUint(f[2], 10, 31)
		switch {
		case e != nil:
		case hasGroup && !found && f[0] == groupName:
			u.GID, found = uint32(id), true
		case !hasGroup && slices.Contains(strings.Split(f[3], ","), name):
			u.AdditionalGids = append(u.AdditionalGids, uint32(id))
		}
	}
	if hasGroup && !found {
		return u, fmt.Errorf("finding the group of the image's user %q: the image's /etc/group does not have it", text)
	}
	return u, nil
}

// entries returns the lines of a file like /etc/passwd that have at least n fields.
func entries(file string, n int) (out [][]string) {
	for _, line := range strings.Split(file, "\n") {
		if f := strings.Split(line, ":"); len(f) >= n {
			out = append(out, f)
		}
	}
	return out
}
