package template

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// digestOf is the digest of the image that the registry of these tests has for every tag.
var digestOf = "sha256:" + strings.Repeat("c", 64)

const containerStep = "version: \"0.1\"\nname: t\ntasks:\n  - name: one\n    worker: \"{{.device_1}}\"\n    actions:\n" +
	"      - name: a\n        image: registry.example.org/tools/probe:v1\n"

// stored is the data of a machine for a server that has pulled the image of containerStep.
func stored() Data {
	d := data()
	ref, err := action.ParseContainer("registry.example.org/tools/probe:v1")
	if err != nil {
		panic(err)
	}
	d.Containers = map[action.ContainerReference]string{ref: digestOf}
	d.ImagesURL = "http://192.0.2.1:7080/images"
	d.Images = map[string]inventory.Image{d.ImagesURL + "/probe": {
		Name: "probe", File: "f", SHA256: strings.Repeat("d", 64), DiskSize: 3 << 20, Use: inventory.UseContainer,
		Container: &inventory.ContainerImage{Digest: digestOf, Architecture: "amd64"},
	}}
	return d
}

func TestContainer(t *testing.T) {
	_, err := Parse("t", []byte(containerStep))
	require.NoError(t, err)

	d := stored()
	r, err := Render(t.Context(), "t", containerStep, d)
	require.NoError(t, err)
	require.Empty(t, r.Fetch)
	require.Equal(t, &action.Container{
		URL: d.ImagesURL + "/probe", SHA256: strings.Repeat("d", 64), Digest: digestOf, Size: 3 << 20, HostNetwork: true,
	}, r.Actions[0].Container)
	require.False(t, r.Actions[0].NeedsDisk())

	d.Images = nil
	r, err = Render(t.Context(), "t", containerStep, d)
	require.NoError(t, err)
	require.Len(t, r.Fetch, 1)
	require.Equal(t, "oci://registry.example.org/tools/probe:v1@"+digestOf, r.Fetch[0].URL)

	d.Containers = nil
	r, err = Render(t.Context(), "t", containerStep, d)
	require.NoError(t, err)
	require.Empty(t, r.Fetch)
	require.Len(t, r.Containers, 1)
}

func TestContainerIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		step   string
		change func(d *Data)
		want   string
	}{
		"small machine": {change: func(d *Data) { d.Memory = 128 << 20 }, want: "the machine has 128.0 MiB of memory, but"},
		"no digest":     {change: func(d *Data) { d.RequireDigest = true }, want: "has no digest, but require_digest is set"},
		"not listed":    {step: "        privileged: true\n", want: "must not run as a privileged container"},
		"protected disk": {
			step: "        privileged: true\n",
			change: func(d *Data) {
				d.PrivilegedContainers, d.Machine.ProtectedDisks = []string{digestOf}, []action.DiskID{{Serial: "X"}}
			},
			want: "has protected disks, so no container may be privileged on it",
		},
		"other disk": {step: "        volumes: [\"/dev/sdb1:/mnt\"]\n", want: "/dev/sdb1 is not a partition of the run's disk (/dev/nvme0n1)"},
		"second disk": {
			step:   "        command: [--wipe, /dev/sdb]\n",
			change: func(d *Data) { d.Machine.Disks = append(d.Machine.Disks, inventory.DeclaredDisk{Device: "/dev/sdb"}) },
			want:   "the container names /dev/sdb, but a container can use only the run's disk (/dev/nvme0n1)",
		},
		"disk variable of a second disk": {
			step: "        environment: {DEST_DISK: /dev/sdb}\n      - {name: b, image: cexec, environment: {BLOCK_DEVICE: /dev/sdc}}\n",
			want: "is a second disk next to",
		},
		"task's volume":    {step: "    volumes: [\"/run:/run\"]\n", want: "a container cannot see /run of the agent"},
		"handler's action": {step: "        on-failure: [reboot]\n", want: "this action is not allowed after a failure"},
	} {
		t.Run(name, func(t *testing.T) {
			d := stored()
			if c.change != nil {
				c.change(&d)
			}
			_, err := Render(t.Context(), "t", containerStep+c.step, d)
			require.ErrorIs(t, err, inventory.ErrInvalid)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestContainerNamesAnotherDisk: a container that names a disk that it cannot see is warned of. The run's disk, whatever it is called, and
// its partitions are fine; a second disk that the machine declares is refused (TestContainerIsRefused).
func TestContainerNamesAnotherDisk(t *testing.T) {
	for step, want := range map[string]string{
		"command: [--wipe, /dev/sdc1]":                     "action a: the container names /dev/sdc, but can use only the run's disk (/dev/nvme0n1)",
		"environment: {TARGET: /dev/vdb, B: /dev/vdb2}":    "action a: the container names /dev/vdb, but can use only the run's disk (/dev/nvme0n1)",
		"on-failure: [dd, of=/dev/nvme1n1p1]":              "action a: the container names /dev/nvme1n1, but can use only the run's disk (/dev/nvme0n1)",
		"command: [/dev/nvme0n1, /dev/nvme0n1p3]":          "",
		"environment: {DEST_DISK: /dev/sdd, B: /dev/sdd1}": "",
		"volumes: [\"/dev/nvme0n1p1:/dev/sdb\"]":           "",
		"command: [/dev/null, /dev/disk]":                  "",
	} {
		r, err := Render(t.Context(), "t", containerStep+"        "+step+"\n", stored())
		require.NoError(t, err, step)
		require.Equal(t, want, strings.Join(r.Warnings, "\n"), step)
	}
}

// TestS42DataInAContainersShell: the words of a shell cannot come from data, as with cexec.
func TestS42DataInAContainersShell(t *testing.T) {
	const indent = "        "
	for step, want := range map[string]string{
		`command: [sh, -c, "echo {{ .machine }}"]`:                                       "command[2]: a shell would run the template's data as commands",
		`on-failure: [/bin/bash, -ec, "echo {{ .machine }}"]`:                            "on-failure[2]: a shell would run",
		`command: ["{{ .machine }}"]`:                                                    "",
		"command: [sh, -c, \"echo $M\"]\n" + indent + `environment: {M: "{{.machine}}"}`: "",
	} {
		_, err := Parse("t", []byte(containerStep+indent+step+"\n"))
		if want == "" {
			require.NoError(t, err, step)
			continue
		}
		require.ErrorContains(t, err, want, step)
	}
}

// TestNoKeyIsIgnored: every key of an action and of its task changes what the agent gets for a container.
func TestNoKeyIsIgnored(t *testing.T) {
	given := map[string]string{
		"name": "", "image": "", "worker": "", "actions": "", // TestContainer, TestProblems
		"native":  "", // TestNativeFalse
		"timeout": "timeout: 7", "command": "command: [x]", "on-timeout": "on-timeout: [x]", "on-failure": "on-failure: [x]",
		"volumes": "volumes: [\"data:/data\"]", "environment": "environment: {A: b}", "pid": "pid: host",
		"namespaces": "namespaces: {network: none}", "network": "namespaces: {network: none}", "privileged": "privileged: true",
	}
	d := stored()
	d.PrivilegedContainers = []string{digestOf}
	plain, err := Render(t.Context(), "t", containerStep, d)
	require.NoError(t, err)
	for _, of := range []struct {
		shape  reflect.Type
		indent string
	}{{reflect.TypeFor[step](), "        "}, {reflect.TypeFor[task](), "    "}, {reflect.TypeFor[namespaces](), "        "}} {
		for i := range of.shape.NumField() {
			key, _, _ := strings.Cut(of.shape.Field(i).Tag.Get("json"), ",")
			text, known := given[key]
			require.True(t, known, "no test sets %s", key)
			if text == "" {
				continue
			}
			r, err := Render(t.Context(), "t", containerStep+of.indent+text+"\n", d)
			require.NoError(t, err, text)
			require.NotEqual(t, plain.Actions[0], r.Actions[0], "%s of %s has no effect", key, of.shape)
		}
	}
}

func TestNativeFalse(t *testing.T) {
	src := strings.Replace(containerStep, "registry.example.org/tools/probe:v1", "quay.io/tinkerbell-actions/image2disk:v1", 1)
	r, err := Render(t.Context(), "t", src+"        native: false\n", data())
	require.NoError(t, err)
	require.NotNil(t, r.Actions[0].Container)
	_, native := r.Actions[0].Native()
	require.False(t, native)

	// A look-alike in a public registry is never the agent's own action.
	src = strings.Replace(containerStep, "registry.example.org/tools/probe:v1", "quay.io/acme/tinkerbell-actions/image2disk:v1", 1)
	r, err = Render(t.Context(), "t", src, data())
	require.NoError(t, err)
	require.NotNil(t, r.Actions[0].Container)
	require.Contains(t, strings.Join(r.Warnings, "\n"), "runs as a container: the image is not the agent's image2disk")
}
