package action

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseContainer(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for text, want := range map[string]string{
		"alpine":                             "docker.io/library/alpine:latest",
		"alpine:3.20":                        "docker.io/library/alpine:3.20",
		"acme/tool":                          "docker.io/acme/tool:latest",
		"localhost/tool:1":                   "localhost/tool:1",
		"registry.example:5000/a/b_c-d/e:v1": "registry.example:5000/a/b_c-d/e:v1",
		"quay.io/a/b" + digest:               "quay.io/a/b" + digest,
		"quay.io/a/b:1" + digest:             "quay.io/a/b:1" + digest,
		"":                                   "",
		"Alpine":                             "",
		"quay.io/a/../b":                     "",
		"https://quay.io/a/b":                "",
		"user:password@quay.io/a/b":          "",
		"quay.io/a/b@sha256:abc":             "",
		"quay.io/a/b:" + strings.Repeat("x", 129): "",
		"quay.io/a b": "",
	} {
		r, err := ParseContainer(text)
		if want == "" {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want, r.String())
	}
}

// TestReferencesHaveOneForm: what oci2disk accepts is what a container's reference is, with or without the scheme of the registry.
func TestReferencesHaveOneForm(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for _, text := range []string{
		"quay.io/a/b", "quay.io/a/b:1", "quay.io/a/b" + digest, "quay.io/a/b:1" + digest, "localhost:5000/a__b", "quay.io/a---b",
		"quay.io/a//b", "quay.io/.a", "quay.io/a/@sha256:abc", "quay.io/A", "user:password@quay.io/a", "quay.io/a:" + strings.Repeat("x", 129),
		ContainerScheme + "quay.io/a", "https://http://quay.io/a", "http://https://quay.io/a", "quay.io/a b", "quay.io/a:",
	} {
		want := containerForm.MatchString(text)
		_, err := ParseContainer(text)
		require.Equal(t, want, err == nil, text)
		for _, scheme := range []string{"", "http://", "https://"} {
			got, err := OCIImage(map[string]string{"IMG_URL": scheme + text})
			if !want {
				require.Error(t, err, scheme+text)
				continue
			}
			require.NoError(t, err, scheme+text)
			require.Equal(t, OCIReference{Name: text, Plain: scheme == "http://", Pinned: strings.Contains(text, "@")}, got)
		}
	}
}

func TestParseVolume(t *testing.T) {
	for text, want := range map[string]Volume{
		"/dev:/dev":                   {Devices: true, Target: "/dev"},
		"/dev/console:/dev/console":   {Devices: true, Target: "/dev/console"},
		"/dev/sda2:/mnt":              {Device: "/dev/sda2", Target: "/mnt"},
		"LABEL=root:/mnt:ro":          {Partition: Partition{ByLabel, "root"}, Target: "/mnt", ReadOnly: true},
		"/worker:/worker":             {Directory: "/worker", Target: "/worker"},
		"data:/data:rw,z":             {Directory: "data", Target: "/data"},
		"/lib/firmware:/lib/firmware": {Directory: "/lib/firmware", Target: "/lib/firmware", ReadOnly: true},
		"/etc:/etc":                   {},
		"/:/host":                     {},
		"/var/run/docker.sock:/run/d": {},
		"/worker/../etc:/x":           {},
		"../etc:/x":                   {},
		"data:relative":               {},
		"data:/":                      {},
		"data:/a/../b":                {},
		"data":                        {},
		"data:/x:exec":                {},
		"/dev:/host-dev":              {},
		"/dev/sda:/mnt":               {},
		"/dev/sdb1:/mnt":              {},
		"/dev/mem:/dev/mem":           {},
		"NUMBER=1:/mnt":               {},
	} {
		v, err := ParseVolume(text, "/dev/sda")
		if want.Target == "" {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want, v, text)
	}
}

func TestKernelDisks(t *testing.T) {
	a := Action{
		Command:     []string{"dd", "of=/dev/sdb,bs=1M", "/dev/sda1 /dev/nvme1n1p2.", "/host/dev/sdc", "/dev/sdd-backup", "/dev/sde/x"},
		Environment: map[string]string{"A": "/dev/vdb", "B": "/dev/disk/by-id/x", "C": "/dev/sdb3:/dev/mmcblk0", "D": "/dev/null /dev/md0"},
		OnFailure:   []string{"wipe", "--all=(/dev/xvda)"}, OnTimeout: []string{"/dev/hda"}, Volumes: []string{"/dev/sdz1:/mnt"},
	}
	require.Equal(t, []string{"/dev/hda", "/dev/mmcblk0", "/dev/nvme1n1", "/dev/sda", "/dev/sdb", "/dev/vdb", "/dev/xvda"}, a.KernelDisks())
	require.Empty(t, Action{Command: []string{"/dev", "sda", "/dev/sd", "/dev/nvme0"}}.KernelDisks())
}

func TestRefersToDisk(t *testing.T) {
	for _, a := range []Action{
		{Volumes: []string{"/dev:/dev"}},
		{Volumes: []string{"PARTLABEL=root:/mnt"}},
		{Volumes: []string{"/dev/sda1:/mnt"}},
		{Command: []string{"--disk=/dev/sda"}},
		{Command: []string{"sh", "-c", "mkfs /dev/sda2 && true"}},
		{Environment: map[string]string{"DISK": "/dev/sda"}},
		{OnFailure: []string{"wipe", "/dev/sda"}},
	} {
		require.True(t, a.RefersToDisk("/dev/sda"), "%+v", a)
	}
	for _, a := range []Action{
		{},
		{Volumes: []string{"/dev/null:/dev/null", "data:/data"}},
		{Command: []string{"/dev/sdab", "/mnt/dev/sda", "/dev/sda-x"}},
		{Environment: map[string]string{"DISK": "/dev/sdb"}},
	} {
		require.False(t, a.RefersToDisk("/dev/sda"), "%+v", a)
	}
}

func TestSharesFolder(t *testing.T) {
	with := func(volumes ...string) Action { return Action{Volumes: volumes, Container: &Container{}} }
	require.True(t, with("/worker:/a").SharesFolder(with("data:/data", "/worker:/b")))
	require.False(t, with("data:/worker").SharesFolder(with("/worker:/b")))
	require.False(t, with("/lib/modules:/m", "LABEL=x:/y").SharesFolder(with("/lib/modules:/m", "LABEL=x:/y")))
	require.False(t, with("data:/a").SharesFolder(Action{Volumes: []string{"data:/a"}}), "not a container")
}
