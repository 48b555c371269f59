package template

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

var update = flag.Bool("update", false, "write the golden files again")

func machine() inventory.Machine {
	return inventory.Machine{
		Name: "ms-02-a",
		Interfaces: []inventory.Interface{
			{
				MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("192.0.2.10"), Netmask: "255.255.255.0",
				Gateway: netip.MustParseAddr("192.0.2.1"), Hostname: "node-a",
			},
			{MAC: "02:00:00:00:00:0f", DisableNetboot: true},
			{MAC: "02:00:00:00:00:02"},
		},
		Disks:       []inventory.DeclaredDisk{{Device: "/dev/nvme0n1"}, {Device: "/dev/sdb"}},
		SSHKeys:     []string{"ssh-ed25519 AAAAC3Nz admin@example.org"},
		HasUserData: true,
	}
}

func data() Data {
	return Data{
		Machine:  machine(),
		Image:    &inventory.Image{Name: "debian-12", SHA256: strings.Repeat("ab", 32), Format: "zst"},
		ImageURL: "http://192.0.2.1:7080/images/debian-12",
	}
}

func TestGolden(t *testing.T) {
	sources := map[string]string{}
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		sources[strings.TrimSuffix(filepath.Base(f), ".yaml")] = string(b)
	}
	for _, b := range Builtins() {
		sources["builtin-"+b.Name] = b.Source
	}
	require.GreaterOrEqual(t, len(sources), 4)
	for name, src := range sources {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(name, []byte(src))
			require.NoError(t, err)
			d := data()
			d.HardwareMap = map[string]string{
				"bootstrap": "http://192.0.2.1:7172", "kernel": "harvester-v1.4.0-vmlinuz-amd64", "initrd": "harvester-v1.4.0-initrd-amd64",
				"rootfs": "harvester-v1.4.0-rootfs-amd64.squashfs", "initramfs": "talos-v1.13.0-initramfs-amd64.xz", "version": "1.5-rolling-202411",
			}
			r, err := Render(t.Context(), name, src, d)
			require.NoError(t, err)
			got, err := json.MarshalIndent(r, "", "  ")
			require.NoError(t, err)
			golden := filepath.Join("testdata", name+".golden.json")
			if *update {
				require.NoError(t, os.WriteFile(golden, append(got, '\n'), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, strings.TrimSpace(string(want)), string(got))
		})
	}
}

// The template that users of older Tinkerbell versions start with runs unchanged.
func TestBasicProvisionRunsUnchanged(t *testing.T) {
	src, err := os.ReadFile("testdata/basic-provision.yaml")
	require.NoError(t, err)
	r, err := Render(t.Context(), "basic", string(src), data())
	require.NoError(t, err)
	require.Equal(t, action.Seconds(3600), r.GlobalTimeout)
	require.Equal(t, "/dev/sda", r.DiskAlias, "the template names it")
	require.Len(t, r.Actions, 3)
	wipe, install, reboot := r.Actions[0], r.Actions[1], r.Actions[2]
	require.Equal(t, action.Environment{"BLOCK_DEVICE": "/dev/sda"}, wipe.Environment)
	require.Equal(t, []string{"/dev:/dev"}, wipe.Volumes)
	require.Equal(t, action.Environment{
		"IMG_URL": "http://192.0.2.1:7080/images/debian-12", "IMG_SHA256": strings.Repeat("ab", 32), "DEST_DISK": "/dev/sda",
	}, install.Environment)
	require.Equal(t, action.Seconds(2400), install.Timeout)
	require.Equal(t, action.Action{Name: "reboot", Task: "os-install", Image: "reboot", Timeout: DefaultActionTimeout}, reboot)

	d := data()
	d.Image = nil
	_, err = Render(t.Context(), "basic", string(src), d)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, `basic:13: tasks[1].actions[0].image: writes the machine's image, but machine "ms-02-a" has none`)
}

func TestDataKeys(t *testing.T) {
	for expression, want := range map[string]string{
		`{{ .device_1 }} {{ .device_2 }}`: "02:00:00:00:00:01 02:00:00:00:00:02",
		`{{ .machine }}`:                  "ms-02-a",
		`{{ .rack }}`:                     "r7",
		`{{ index .Hardware.Disks 1 }}`:   "/dev/sdb",
		`{{ .Hardware.Hostname }} {{ .Hardware.Metadata.Instance.Hostname }}`:                       "node-a node-a",
		`{{ (index .Hardware.Interfaces 0).DHCP.IP.Gateway }}`:                                      "192.0.2.1",
		`{{ (index .hardware.spec.disks 0).device }} {{ .hardware.metadata.name }}`:                 "/dev/nvme0n1 ms-02-a",
		`{{ (index .hardware.interfaces 0).dhcp.ip.address }}`:                                      "192.0.2.10",
		`{{ .image.name }} {{ .image.url }}`:                                                        "debian-12 http://192.0.2.1:7080/images/debian-12",
		`{{ formatPartition "/dev/disk/by-id/x" 2 }} {{ formatPartition "/dev/sda" 1 }}`:            "/dev/disk/by-id/x-part2 /dev/sda1",
		`{{ netmaskToPrefixLength "255.255.254.0" }} {{ netmaskToCIDR "255.255.255.255"}}`:          "23 32",
		`{{ (fromYaml "{a: [1, 2]}").a | toYaml | nindent 2 | trim | quote }}`:                      `"- 1\n  - 2"`,
		`{{ "haystack" | contains "hay" }} {{ "x-y" | hasPrefix "x" }} {{ "x-y" | hasSuffix "y" }}`: "true true true",
		`{{ printf "%05d" 42 }} {{ list "a" "b" | join "," }} {{ "a.b" | replace "." "-" }}`:        "00042 a,b a-b",
		`{{ .user_data }}`: inventory.RefUserData, `{{ .nonce }}`: inventory.RefNonce, `{{ .phone_home_url }}`: inventory.RefPhoneHomeURL,
	} {
		d := data()
		d.HardwareMap = map[string]string{"rack": "r7"}
		v, err := d.values()
		require.NoError(t, err)
		out, err := execute(t.Context(), "t", expression, v)
		require.NoError(t, err, expression)
		got := out.text
		if strings.Contains(expression, "quote") {
			got = strings.ReplaceAll(got, "\n", `\n`)
		}
		require.Equal(t, want, got, expression)
	}
}

const frame = `version: "0.1"
name: t
tasks:
  - name: one
    worker: "{{.device_1}}"
    actions:
`

// S23: among them an image that names no native action.
func TestProblems(t *testing.T) {
	noop := "      - {name: a, image: noop}\n"
	for name, c := range map[string]struct {
		src, want string
		data      bool // detected only with data
	}{
		"version": {src: strings.Replace(frame, `"0.1"`, `"0.2"`, 1) + noop, want: `t:1: version: is "0.2"`},
		"unknown key": {
			src:  frame + "      - {name: a, image: noop, timout: 3}\n",
			want: `t:7: tasks[0].actions[0].timout: unknown key (did you mean "timeout"?)`,
		},
		"type": {
			src:  frame + "      - {name: a, image: noop, timeout: soon}\n",
			want: `t:7: tasks[0].actions[0].timeout: must be a whole number`,
		},
		"no tasks": {src: "version: \"0.1\"\nname: t\ntasks: []\n", want: "t:3: tasks: a template needs at least one task"},
		"twice":    {src: frame + noop + noop, want: `t:8: tasks[0].actions[1].name: is the second action named "a"`},
		"long name": {
			src:  frame + "      - {name: " + strings.Repeat("a", 201) + ", image: noop}\n",
			want: "longer than 200 characters",
		},
		"negative": {
			src:  frame + "      - {name: a, image: noop, timeout: -1}\n",
			want: "t:7: tasks[0].actions[0].timeout: is negative",
		},
		"container": {
			src:  frame + "      - {name: a, image: Docker.io/Alpine}\n",
			want: `invalid container image "Docker.io/Alpine"; must be REGISTRY/REPOSITORY:TAG`,
		},
		"misspelt action": {
			src:  frame + "      - {name: a, image: image2dsk:v1}\n",
			want: `t:7: tasks[0].actions[0].image: "image2dsk:v1" is not an action built into the agent (did you mean "image2disk"?`,
		},
		"native container": {
			src:  frame + "      - {name: a, image: alpine:3, native: true}\n",
			want: `t:7: tasks[0].actions[0].native: "alpine:3" is not an action built into the agent`,
		},
		"privileged action": {
			src:  frame + "      - {name: a, image: noop, privileged: true}\n",
			want: `t:7: tasks[0].actions[0].privileged: "noop" is an action built into the agent, and only a container can be privileged`,
		},
		"namespace": {
			src:  frame + "      - {name: a, image: \"alpine:3\", namespaces: {network: bridge}}\n",
			want: `t:7: tasks[0].actions[0].namespaces.network: invalid value "bridge"; must be host or none`,
		},
		"process namespace": {
			src:  frame + "      - {name: a, image: \"alpine:3\", pid: container}\n",
			want: `t:7: tasks[0].actions[0].pid: invalid value "container"; must be host`,
		},
		"volume of the agent": {
			src:  frame + "      - {name: a, image: \"alpine:3\", volumes: [\"/etc:/etc\"]}\n",
			want: `t:7: tasks[0].actions[0].volumes[0]: invalid volume "/etc:/etc": a container cannot see /etc of the agent`,
		},
		"volume without target": {
			src:  frame + "      - {name: a, image: \"alpine:3\", volumes: [/data]}\n",
			want: `t:7: tasks[0].actions[0].volumes[0]: invalid volume "/data"; must be SOURCE:TARGET`,
		},
		"volume of another disk": {
			src:  frame + "      - {name: a, image: \"alpine:3\", volumes: [\"/dev/sdb1:/mnt\"]}\n",
			want: `invalid volume "/dev/sdb1:/mnt": /dev/sdb1 is not a partition of the run's disk (/dev/nvme0n1)`, data: true,
		},
		"leaves first": {
			src:  frame + "      - {name: a, image: reboot}\n" + noop,
			want: `t:7: tasks[0].actions[0].image: "reboot" takes the machine away`,
		},
		"template syntax":  {src: frame + noop + "# {{ if }}\n", want: "t:8: missing value for if"},
		"no such function": {src: frame + noop + "# {{ env \"HOME\" }}\n", want: `t:8: function "env" not defined`},
		"yaml syntax":      {src: "version: \"0.1\"\nname: [\n", want: "not valid YAML"},
		"references":       {src: frame + noop + "# {{ .references.x }}\n", want: "references are not supported"},
		"missing key": {
			src:  frame + "      - {name: a, image: noop, environment: {X: \"{{.nowhere}}\"}}\n",
			want: `t:7: {{.nowhere}}: map has no entry for key "nowhere" (known:`, data: true,
		},
		"other worker": {
			src:  strings.Replace(frame, "{{.device_1}}", "02:00:00:00:99:99", 1) + noop,
			want: `t:5: tasks[0].worker: "02:00:00:00:99:99" is neither a MAC address nor the name of machine "ms-02-a"`, data: true,
		},
		"leaves before the worker's last task": {
			src: frame + "      - {name: a, image: reboot}\n  - {name: two, worker: \"{{.device_2}}\", actions: [{name: a, image: noop}]}\n" +
				"  - {name: three, worker: \"{{.device_1}}\", actions: [{name: a, image: noop}]}\n",
			want: `t:7: tasks[0].actions[0].image: "reboot" takes the machine away`,
		},
		"only another worker": {
			src:  strings.Replace(frame, "device_1", "device_9", 1) + noop,
			want: `t:5: {{.device_9}}: map has no entry for key "device_9" (the machine has fewer netboot interfaces, and the hardware map names no other machine`,
			data: true,
		},
		"file url": {
			src:  frame + "      - {name: a, image: image2disk, environment: {IMG_URL: file:///etc/shadow}}\n",
			want: "t:7: tasks[0].actions[0].environment.IMG_URL: invalid IMG_URL; must be an http:// or https:// URL with a host",
		},
		"two disks": {src: frame + "      - {name: a, image: wipe, environment: {BLOCK_DEVICE: /dev/sda}}\n      - {name: b, image: wipe, environment: {BLOCK_DEVICE: /dev/sdb}}\n", want: `t:8: tasks[0].actions[1].environment.BLOCK_DEVICE: "/dev/sdb" is a second disk`, data: true},
		"no disk": {
			src:  frame + "      - {name: a, image: wipe, environment: {BLOCK_DEVICE: /etc/passwd}}\n",
			want: "invalid disk path",
		},
		"handler of a program": {
			src:  frame + "      - {name: a, image: noop, on-failure: [sh, -c, 'true']}\n",
			want: `t:7: tasks[0].actions[0].on-failure: invalid "sh"; must be echo and a text, or one of these actions and its variables`,
		},
		"handler's variable": {
			src:  frame + "      - {name: a, image: noop, on-timeout: [writefile, DEST_PATH=/x, CONTENTS=x, COLOUR=red]}\n",
			want: "t:7: tasks[0].actions[0].on-timeout: reading COLOUR: writefile has no such variable",
		},
		"handler that leaves": {
			src:  frame + "      - {name: a, image: noop, on-failure: [reboot]}\n",
			want: `t:7: tasks[0].actions[0].on-failure: reading "reboot": this action is not allowed after a failure`,
		},
		"handler of data": {
			src:  frame + "      - {name: a, image: noop, on-failure: [\"{{ .image.name }}\"]}\n",
			want: `t:7: tasks[0].actions[0].on-failure: invalid "debian-12"`, data: true,
		},
		"handler's disk": {
			src:  frame + "      - {name: a, image: noop, on-failure: [wipe, BLOCK_DEVICE=/dev/sdb]}\n",
			want: `t:7: tasks[0].actions[0].on-failure: "/dev/sdb" is a second disk next to "/dev/nvme0n1"`, data: true,
		},
		"handler's secret": {
			src:  frame + "      - {name: a, image: noop, on-failure: [echo, \"{{ .user_data }}\"]}\n",
			want: `t:7: tasks[0].actions[0].on-failure: writes a secret to the log`,
		},
		"after long text": {
			src:  "{{ range $i := list 1 2 3 }}# {{ $i }}\n{{ end }}" + frame + "      - {name: a, image: alpine}\n",
			want: "t:8: tasks[0].actions[0].image",
		},
		"everything at once": {src: "version: \"3\"\nname: t\ntasks:\n  - name: one\n    actions:\n      - {name: a, image: alpine}\n      - {name: a, image: noop, timeout: -1}\n", want: "t:7: tasks[0].actions[1].timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("t", []byte(c.src))
			if c.data {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, inventory.ErrInvalid)
				require.ErrorContains(t, err, c.want)
			}
			d := data()
			d.HardwareMap = map[string]string{"other": "02:00:00:00:99:99"}
			_, err = Render(t.Context(), "t", c.src, d)
			require.ErrorIs(t, err, inventory.ErrInvalid)
			require.ErrorContains(t, err, c.want)
			var p inventory.Problems
			require.ErrorAs(t, err, &p)
		})
	}
	_, err := Parse(
		"t",
		[]byte(
			"version: \"3\"\nname: t\ntasks:\n  - name: one\n    actions:\n      - {name: a, image: alpine}\n      - {name: a, image: noop, timeout: -1}\n",
		),
	)
	var p inventory.Problems
	require.ErrorAs(t, err, &p)
	require.Len(t, p, 4)
}

func TestDefaults(t *testing.T) {
	src := "version: 0.1\nname: \"\"\ntasks:\n  - name: one\n    environment: {A: task, B: task}\n    volumes: [/dev:/dev]\n    actions:\n" +
		"      - {name: reboot, image: noop, timeout: 0, environment: {B: action}, volumes: [/x:/x], on-timeout: [echo, b], on-failure: [wipe], namespaces: {pid: host}}\n"
	r, err := Render(t.Context(), "given", src, data())
	require.NoError(t, err)
	require.Equal(t, "given", r.Name)
	require.Equal(t, DefaultGlobalTimeout, r.GlobalTimeout)
	require.Equal(t, "/dev/nvme0n1", r.DiskAlias)
	require.Equal(t, []action.Action{
		{
			Name: "reboot", Task: "one", Image: "noop", Timeout: DefaultActionTimeout, Volumes: []string{"/dev:/dev", "/x:/x"},
			Environment: map[string]string{"A": "task", "B": "action"}, OnTimeout: []string{"echo", "b"}, OnFailure: []string{"wipe"},
		},
		{Name: "reboot-at-the-end", Task: "one", Image: "reboot", Timeout: DefaultActionTimeout},
	}, r.Actions)
}

// Templates that never end or grow without limit are stopped soon, with an error, and before they take much memory.
func TestS15Bombs(t *testing.T) {
	for name, src := range map[string]string{
		"endless loop":       `{{ range 1000000000 }}{{ end }}`,
		"loop of loops":      `{{ range 100000 }}{{ range 100000 }}{{ if false }}{{ end }}{{ end }}{{ end }}`,
		"recursion":          `{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}`,
		"branching":          `{{ define "a" }}{{ template "a" }}{{ template "a" }}{{ end }}{{ template "a" }}`,
		"output":             `{{ range 100000 }}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{{ end }}`,
		"doubling text":      `{{ $x := "aaaaaaaaaaaaaaaa" }}{{ range 60 }}{{ $x = print $x $x }}{{ end }}`,
		"doubling list":      `{{ $x := list 1 }}{{ range 60 }}{{ $x = list $x $x }}{{ end }}{{ $x }}`,
		"deep list":          `{{ $x := list 1 }}{{ range 100 }}{{ $x = list $x }}{{ end }}`,
		"cycle":              `{{ $d := dict }}{{ $_ := set $d "a" $d }}{{ $d }}`,
		"printf width":       `{{ printf "%1000000d" 1 }}`,
		"printf star":        `{{ printf "%*d" 100000000 1 }}`,
		"indent":             `{{ indent 100000000 "a" }}`,
		"replace":            `{{ $x := print .text .text .text .text }}{{ replace "" $x $x }}`,
		"regex":              `{{ $x := print .text .text .text .text }}{{ regexMatch "(a*)*b" $x }}`,
		"regex replacement":  `{{ regexReplaceAll "" .text .text }}`,
		"yaml aliases":       `{{ fromYaml "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]" }}`,
		"quadratic":          `{{ splitList "" .text | uniq }}`,
		"wrap":               `{{ wrapWith 1 .text .text }}`,
		"parentheses":        "{{ " + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000) + " }}",
		"large":              strings.Repeat("{{.text}}", 28_000),
		"nested branches":    strings.Repeat("{{if 1}}", 14_000) + "{{ range 200000 }}{{ end }}" + strings.Repeat("{{end}}", 14_000),
		"functions and only": `{{ range 100000 }}{{ $_ := sha256sum "x" }}{{ end }}`,
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := execute(t.Context(), "t", src, map[string]any{"text": strings.Repeat("a", 5000)})
			runtime.ReadMemStats(&after)
			require.Error(t, err)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(512<<20), "bytes allocated")
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Render(ctx, "t", frame+"      - {name: a, image: noop}\n", data())
	require.ErrorIs(t, err, errLimit)
}

// The functions are sprig's hermetic ones except those that S15 forbids. A new function needs a
// review before templates can use it.
func TestS15Functions(t *testing.T) {
	have := functions(newGuard(t.Context()))
	for _, name := range append([]string{
		"env", "expandenv", "getHostByName", "now", "date", "uuidv4", "randAlphaNum", "randBytes", "readFile", "exec", "call",
	}, denied...) {
		require.NotContains(t, have, name)
	}
	require.Len(t, have, 179)
}

// A value cannot become part of the template's structure.
func TestS16Injection(t *testing.T) {
	quoted := frame + "      - name: a\n        image: noop\n        environment: {X: {{ .x | toJson }}}\n"
	bare := frame + "      - name: a\n        image: noop\n        environment:\n          X: {{ .x }}\n"
	image := frame + "      - name: a\n        image: {{ .x }}\n"
	for name, c := range map[string]struct {
		src, x string
		ok     bool
	}{
		"plain":              {bare, "r7", true},
		"words":              {bare, "two words", true},
		"new action":         {bare, "1\n      - name: b\n        image: wipe", false},
		"new variable":       {bare, "1\n          IMG_URL: http://evil.example.org/", false},
		"new key":            {bare, "1\n        timeout: 1", false},
		"comment":            {bare, "1 # rest", true},
		"encoded":            {quoted, "1\n      - name: b\n        image: wipe", true},
		"image":              {image, "noop", true},
		"image from a space": {image, "noop # wipe", false},
		"flow":               {frame + "      - {name: a, image: noop, environment: {X: {{ .x }}}}\n", "1}, volumes: [/:/]", false},
		"flow brace":         {frame + "      - {name: a, image: noop, environment: {X: {{ .x }}}}\n", "1, Y: 2", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := data()
			d.HardwareMap = map[string]string{"x": c.x}
			r, err := Render(t.Context(), "t", c.src, d)
			if !c.ok {
				require.ErrorIs(t, err, inventory.ErrInvalid)
				return
			}
			require.NoError(t, err)
			require.Len(t, r.Actions, 2)
		})
	}
	d := data()
	d.HardwareMap = map[string]string{"Hardware": "x"}
	_, err := d.values()
	require.ErrorContains(t, err, "hardwareMap.Hardware")
	d.HardwareMap = map[string]string{"x": "a" + inventory.RefNonce}
	_, err = Render(t.Context(), "t", bare, d)
	require.ErrorContains(t, err, "which is reserved for a secret")
}

func TestResolve(t *testing.T) {
	a := action.Action{Name: "a", Environment: map[string]string{
		"CONTENTS": "seedfrom: " + inventory.RefMetadataURL + "x\n" + inventory.RefNonce + inventory.RefNonce,
		"B":        "b",
	}, Command: []string{"-u", inventory.RefPhoneHomeURL}}
	asked := map[string]int{}
	got, err := Resolve(a, func(ref string) (string, error) {
		asked[ref]++
		return map[string]string{inventory.RefMetadataURL: "http://m/c/a/k/", inventory.RefNonce: "n0\nn1: $0", inventory.RefPhoneHomeURL: "http://p"}[ref], nil
	})
	require.NoError(t, err)
	require.Equal(t, action.Environment{"CONTENTS": "seedfrom: http://m/c/a/k/x\nn0\nn1: $0n0\nn1: $0", "B": "b"}, got.Environment)
	require.Equal(t, []string{"-u", "http://p"}, got.Command)
	require.Equal(t, map[string]int{inventory.RefMetadataURL: 1, inventory.RefNonce: 1, inventory.RefPhoneHomeURL: 1}, asked)
	require.Contains(t, a.Environment["CONTENTS"], inventory.RefNonce, "the argument stays as it is")
	require.True(t, Refers(a, inventory.RefNonce))
	require.False(t, Refers(a, inventory.RefUserData))

	gone := errors.New("gone")
	_, err = Resolve(a, func(string) (string, error) { return "", gone })
	require.ErrorIs(t, err, gone)
	a.Command = []string{"ingot@@root-password@@"}
	_, err = Resolve(a, func(string) (string, error) { return "", nil })
	require.ErrorContains(t, err, "no such reference")
}

// Markers may stand unquoted anywhere in YAML: otherwise templates would break.
func TestMarkersArePlainYAML(t *testing.T) {
	for _, ref := range refs {
		require.True(t, inventory.Refers("x "+ref+"/y", ref))
		r, err := Render(t.Context(), "t", frame+"      - {name: a, image: noop, environment: {X: "+ref+", Y: "+ref+"}}\n", data())
		require.NoError(t, err)
		require.Equal(t, ref, r.Actions[0].Environment["X"])
	}
}

func TestBuiltinsResolve(t *testing.T) {
	names := []string{}
	for _, b := range Builtins() {
		names = append(names, b.Name)
		require.True(t, b.Builtin)
	}
	require.Equal(t, []string{
		BuiltinHarvesterCreate, BuiltinHarvesterJoin, BuiltinImage, BuiltinImageMetadata, BuiltinTalos, BuiltinTalosImage, BuiltinVyOS,
	}, names)
	d := data()
	d.Image = nil
	_, err := Render(t.Context(), "image", Builtins()[2].Source, d)
	require.ErrorContains(t, err, "the machine has no image")
}

// S15, S16: any template is rendered or refused, and no value brings along actions, images or handlers.
func FuzzRender(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(f, err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(string(b), "value")
	}
	f.Add(frame+"      - {name: a, image: noop, environment: {X: {{ .x }}}}\n", "1\n      - name: b\n        image: wipe")
	f.Add(`{{ range 10 }}{{ define "a" }}{{ template "a" }}{{ end }}{{ end }}`, "")
	f.Fuzz(func(t *testing.T, src, x string) {
		parsed, err := Parse("f", []byte(src))
		require.True(t, err == nil || errors.Is(err, inventory.ErrInvalid), "%v", err)
		require.True(t, parsed != nil || err != nil)
		d := data()
		d.HardwareMap = map[string]string{"x": x, "bootstrap": x}
		r, err := Render(t.Context(), "f", src, d)
		if err != nil {
			require.ErrorIs(t, err, inventory.ErrInvalid)
			return
		}
		plain := data()
		plain.HardwareMap = map[string]string{"x": harmlessText(x), "bootstrap": harmlessText(x)}
		again, err := Render(t.Context(), "f", src, plain)
		require.NoError(t, err)
		require.Len(t, r.Actions, len(again.Actions), "a value brought actions along")
		for i, a := range r.Actions {
			require.Equal(t, again.Actions[i].Image, a.Image)
			require.Equal(t, handlerShape(again.Actions[i].OnFailure), handlerShape(a.OnFailure))
			require.Equal(t, handlerShape(again.Actions[i].OnTimeout), handlerShape(a.OnTimeout))
			require.Positive(t, a.Timeout)
			native, ok := action.Native(a.Image)
			require.True(t, ok)
			require.Equal(t, i == len(r.Actions)-1, action.Leaves(native))
		}
	})
}
