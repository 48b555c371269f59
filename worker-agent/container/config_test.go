package container

import (
	"slices"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
)

// As with Docker, the action's command replaces CMD, and ENTRYPOINT stays.
func TestCommandAndEnvironment(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ entrypoint, cmd, command, want []string }{
		{nil, []string{"c"}, nil, []string{"c"}},
		{[]string{"e"}, []string{"c"}, nil, []string{"e", "c"}},
		{[]string{"e"}, []string{"c"}, []string{"x", "y"}, []string{"e", "x", "y"}},
		{nil, []string{"c"}, []string{"x"}, []string{"x"}},
	} {
		c := Container{Action: action.Action{Command: x.command, Container: &action.Container{}, Environment: action.Environment{"B": "own"}}}
		s, err := newConfig(c, v1.ImageConfig{Entrypoint: x.entrypoint, Cmd: x.cmd, Env: []string{"A=image", "B=image"}}, specs.User{})
		require.NoError(t, err)
		require.Equal(t, x.want, s.Process.Args)
		require.Equal(t, []string{"A=image", "B=own", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, s.Process.Env)
		require.Equal(t, "/", s.Process.Cwd)
	}
	_, err := newConfig(Container{Action: action.Action{Container: &action.Container{}}}, v1.ImageConfig{}, specs.User{})
	require.ErrorContains(t, err, "needs a command")
}

// S67: what an unprivileged container may do is a short list, whatever else the action asks for.
func TestS67ContainersHaveFewCapabilities(t *testing.T) {
	t.Parallel()
	for _, o := range []action.Container{{}, {HostNetwork: true, HostPID: true, Disk: true}} {
		s, err := newConfig(Container{Action: action.Action{Container: &o}}, v1.ImageConfig{Cmd: []string{"x"}}, specs.User{})
		require.NoError(t, err)
		require.True(t, s.Process.NoNewPrivileges)
		for _, set := range [][]string{s.Process.Capabilities.Bounding, s.Process.Capabilities.Effective, s.Process.Capabilities.Permitted} {
			for _, no := range []string{
				"SYS_ADMIN", "SYS_RAWIO", "SYS_MODULE", "SYS_BOOT", "SYS_PTRACE", "BPF", "MKNOD", "NET_RAW", "NET_ADMIN", "SYSLOG",
				"DAC_READ_SEARCH", "PERFMON",
			} {
				require.NotContains(t, set, "CAP_"+no)
			}
		}
		require.Contains(t, s.Linux.MaskedPaths, "/proc/cmdline")
		require.Contains(t, s.Linux.ReadonlyPaths, "/proc/sys")
		require.Equal(t, specs.ActErrno, s.Linux.Seccomp.Syscalls[0].Action)
		for _, call := range []string{"kexec_load", "mount", "bpf", "init_module", "setns", "unshare", "ptrace"} {
			require.Contains(t, s.Linux.Seccomp.Syscalls[0].Names, call)
		}
		private := slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace })
		require.Equal(t, !o.HostPID, private)
	}
	user, err := newConfig(
		Container{Action: action.Action{Container: &action.Container{}}},
		v1.ImageConfig{Cmd: []string{"x"}},
		specs.User{UID: 1},
	)
	require.NoError(t, err)
	require.Empty(t, user.Process.Capabilities.Effective)
}

func TestFindUser(t *testing.T) {
	t.Parallel()
	passwd := "root:x:0:0::/:\nbroken\nweb:x:33:44::/:\n"
	group := "web:x:44:\ndata:x:55:web,root\n"
	for text, want := range map[string]specs.User{
		"":         {AdditionalGids: []uint32{55}},
		"web":      {UID: 33, GID: 44, AdditionalGids: []uint32{55}},
		"33":       {UID: 33, GID: 44, AdditionalGids: []uint32{55}},
		"77":       {UID: 77},
		"web:data": {UID: 33, GID: 55},
		"77:88":    {UID: 77, GID: 88},
	} {
		got, err := findUser(text, passwd, group)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"nobody", "web:none", "-1", "99999999999"} {
		_, err := findUser(text, passwd, group)
		require.Error(t, err, text)
	}
}
