package template

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

const genesisActions = `
version: "0.1"
name: router
tasks:
  - name: install
    actions:
      - {name: wipe, image: wipe, environment: {ALL_DISKS: "true"}}
      - {name: image, image: image2disk}
      - name: config
        image: inject
        environment:
          PARTITION: LABEL=persistence
          FILES: |
            [{"path": "/config.boot", "from": "CONFIG_BOOT", "group": "102", "mode": "0664"}]
          CONFIG_BOOT: |
            call "{{ .phone_home_url }}"
      - {name: grow, image: growpart, environment: {RESERVE_MIB: "17"}}
      - {name: entries, image: efiboot, environment: {DELETE_STALE: "true"}}
      - {name: start, image: quay.io/tinkerbell/actions/kexec:latest}
`

// The actions get the run's disk. kexec may be the last action, and no reboot is added after it.
func TestNativeActionsAreRendered(t *testing.T) {
	r, err := Render(t.Context(), "router", genesisActions, data())
	require.NoError(t, err)
	require.Len(t, r.Actions, 6)
	for i, want := range []string{"BLOCK_DEVICE", "DEST_DISK", "DEST_DISK", "DEST_DISK", "", "BLOCK_DEVICE"} {
		if want != "" {
			require.Equal(t, r.DiskAlias, r.Actions[i].Environment[want], r.Actions[i].Name)
		}
	}
	// A secret in a separate variable needs no quoting in the list of files.
	resolved, err := Resolve(r.Actions[2], func(string) (string, error) { return "a\"b\nc", nil })
	require.NoError(t, err)
	files, err := action.Files(resolved.Environment)
	require.NoError(t, err)
	require.Equal(t, "call \"a\"b\nc\"\n", files[0].Contents)
}

// Errors that are visible in the template end the run in plan, with their position.
func TestNativeActionsAreCheckedInPlan(t *testing.T) {
	for env, want := range map[string]string{
		`image: inject`: "FILES: it is missing",
		`image: inject, environment: {FILES: '[{"path": "x"}]'}`:                                              "path must be absolute",
		`image: inject, environment: {FILES: '[{"path": "/x", "from": "Y"}]'}`:                                `"Y", which the environment does not contain`,
		`image: inject, environment: {FILES: '[{"path": "/x"}]', PARTITION: root}`:                            "must be a number from 1",
		`image: growpart, environment: {RESERVE_MIB: some}`:                                                   "number of MiB",
		`image: growpart, environment: {FILESYSTEM: some}`:                                                    "true or false",
		`image: wipe, environment: {ALL_DISKS: "all"}`:                                                        "true or false",
		`image: wipe, environment: {WIPE_MODE: secure}`:                                                       "one of metadata, quick",
		`image: efiboot, environment: {REQUIRED: x}`:                                                          "true or false",
		"image: kexec}\n      - {name: b, image: reboot":                                                      "only be the last action",
		`image: writefile, environment: {PARTITION: "LABEL=", DEST_PATH: /x, CONTENTS: "", MODE: x}`:          "must be a number from 1",
		`image: writefile, environment: {DEST_PATH: x, CONTENTS: ""}`:                                         "absolute path of a file",
		`image: writefile, environment: {DEST_PATH: /x}`:                                                      "CONTENTS: the contents are missing",
		`image: writefile, environment: {DEST_PATH: /x, CONTENTS: "", STATIC_NETPLAN: "true"}`:                "give only one of them",
		`image: writefile, environment: {DEST_PATH: /x, STATIC_NETPLAN: "true", STATIC_BOTTLEROCKET: "true"}`: "give only one of them",
		`image: writefile, environment: {DEST_PATH: /x, CONTENTS: "", HEGEL_URLS: "http://x"}`:                "give only one of them",
		`image: writefile, environment: {DEST_PATH: /x, HEGEL_URLS: "x"}`:                                     "invalid URL 1 of HEGEL_URLS",
		`image: image2disk, environment: {IMG_URL: "http://x/y", COMPRESSED: gz}`:                             "COMPRESSED \"gz\"; must be true or false",
		`image: jacobweinstock/waitdaemon`:                                                                    "IMAGE: it is missing",
		`image: waitdaemon, environment: {IMAGE: alpine}`:                                                     "an action that leaves the agent",
		`image: waitdaemon, environment: {IMAGE: "example.org/x/kexec"}`:                                      "an action that leaves the agent",
		`image: waitdaemon, environment: {IMAGE: kexec, CMD_LINE: "a\nb"}`:                                    "must be one line",
		`image: writefile, environment: {DEST_PATH: /x, CONTENTS: "", UID: root}`:                             "invalid UID",
		`image: writefile, environment: {DEST_PATH: /x, CONTENTS: "", DIRMODE: "9"}`:                          "DIRMODE",
		`image: writefile, environment: {DEST_PATH: /x, CONTENTS: "", FS_TYPE: ntfs}`:                         "one of ext4, xfs, btrfs, vfat",
		`image: image2disk, environment: {IMG_URL: "http://x/y", IMG_SHA256: abc}`:                            "64 hex digits",
		`image: image2disk, environment: {IMG_URL: "http://x/y", IMG_SHA512: abc}`:                            "IMG_SHA512: it is not supported",
		`image: oci2disk, environment: {IMG_URL: "ghcr.io/a/b:v1"}`:                                           "a tag can be moved to another image",
		`image: oci2disk, environment: {IMG_URL: "user:secret@ghcr.io/a/b:v1"}`:                               "must be REGISTRY/REPOSITORY@sha256:DIGEST",
		`image: archive2disk, environment: {ARCHIVE_URL: y, TARFILE_CHECKSUM: "00"}`:                          "ARCHIVE_URL",
		`image: archive2disk, environment: {INSECURE_NO_TARFILE_CHECKSUM_VERIFICATION: "true"}`:               "give the digest in TARFILE_CHECKSUM",
		`image: archive2disk, environment: {DEST_PATH: opt}`:                                                  "absolute path of a folder",
		`image: archive2disk, environment: {ARCHIVE_TYPE: zip}`:                                               "one of tar, targz",
		`image: kexec, environment: {CMD_LINE: "a\nb"}`:                                                       "must be one line",
		`image: noop, environment: {SLEEP: long}`:                                                             "must be a number of seconds",
	} {
		_, err := Render(t.Context(), "t", "version: \"0.1\"\nname: t\ntasks:\n  - name: t\n    actions:\n      - {name: a, "+env+"}\n", data())
		require.ErrorContains(t, err, want, env)
		require.ErrorContains(t, err, "tasks[0].actions[0]", env)
	}
}

// A checksum of a kind that the agent does not support is accepted if the catalogue has a supported
// one.
func TestUnsupportedChecksumWithCatalogueDigest(t *testing.T) {
	const text = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n" +
		"  - {name: write, image: image2disk, environment: {IMG_SHA512: abc}}\n"
	d := data()
	r, err := Render(t.Context(), "t", text, d)
	require.NoError(t, err)
	require.Equal(t, d.Image.SHA256, r.Actions[0].Environment["IMG_SHA256"])
}

// In the plan the action that a waitdaemon starts is in its place, with the time-out and
// the environment of the waitdaemon.
func TestWaitDaemonIsUnwrapped(t *testing.T) {
	const text = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n" +
		"  - name: kexec\n    image: ghcr.io/jacobweinstock/waitdaemon:0.2.1\n    timeout: 90\n    environment:\n" +
		"      {BLOCK_DEVICE: /dev/sda1, FS_TYPE: ext4, IMAGE: \"quay.io/tinkerbell/actions/kexec:v1\", WAIT_SECONDS: 5}\n"
	parsed, err := Parse("t", []byte(text))
	require.NoError(t, err)
	require.Empty(t, parsed.Notes)

	r, err := Render(t.Context(), "t", text, data())
	require.NoError(t, err)
	require.Len(t, r.Actions, 1, "nothing is appended")
	require.Equal(t, "quay.io/tinkerbell/actions/kexec:v1", r.Actions[0].Image)
	require.Equal(t, action.Environment{"BLOCK_DEVICE": "/dev/sda1", "FS_TYPE": "ext4"}, r.Actions[0].Environment)
	require.EqualValues(t, 90, r.Actions[0].Timeout)

	why := r.Explanation.Actions[0]
	require.Equal(t, action.Kexec, why.Native)
	require.Contains(t, why.Rule, "ghcr.io/jacobweinstock/waitdaemon:0.2.1 starts it; ")
}

// The widespread way to restart or to switch off at the end: a shell image whose command waitdaemon starts later.
func TestWaitDaemonOfACommandIsUnwrapped(t *testing.T) {
	for command, want := range map[string]string{
		`[reboot]`: action.Reboot, `[/sbin/reboot, -f]`: action.Reboot, `[sh, -c, "sleep 5; sync && reboot"]`: action.Reboot,
		`[poweroff]`: action.PowerOff, `[/bin/sh, -c, "echo o > /proc/sysrq-trigger"]`: action.PowerOff, `[busybox, poweroff]`: action.PowerOff,
		`[shutdown, -r, now]`: action.Reboot, `[sh, -c, "rm -rf /; reboot"]`: "", `[sleep, "5"]`: "", `[]`: "", `[echo, reboot]`: "",
	} {
		text := "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n" +
			"  - {name: restart, image: ghcr.io/jacobweinstock/waitdaemon:latest, timeout: 90, pid: host, command: " + command +
			", environment: {IMAGE: alpine, WAIT_SECONDS: \"10\"}, volumes: [\"/var/run/docker.sock:/var/run/docker.sock\"]}\n"
		_, err := Parse("t", []byte(text))
		r, renderErr := Render(t.Context(), "t", text, data())
		if want == "" {
			require.ErrorContains(t, err, "or give command: [reboot] or [poweroff]", command)
			require.Error(t, renderErr, command)
			continue
		}
		require.NoError(t, err, command)
		require.NoError(t, renderErr, command)
		require.Len(t, r.Actions, 1, command)
		require.Equal(t, want, r.Actions[0].Image, command)
		require.Empty(t, r.Actions[0].Command, command)
		require.Empty(t, r.Actions[0].Environment, command)
	}
}

// Templates of EKS Anywhere, and the one of older Tinkerbell, have no variable that the action does not read, except for proxies.
func TestForeignTemplatesLintWithoutNotes(t *testing.T) {
	for _, name := range []string{"eks-a-ubuntu", "eks-a-bottlerocket", "eks-a-redhat", "basic-provision"} {
		src, err := os.ReadFile("testdata/" + name + ".yaml")
		require.NoError(t, err)
		parsed, err := Parse(name, src)
		require.NoError(t, err)
		for _, note := range parsed.Notes {
			require.Regexp(t, "IMG_URL: .* has no digest|_PROXY: image2disk does not read", note.String(), name)
		}
	}
}

const rootIOTemplate = `
version: "0.1"
name: disks
tasks:
  - name: install
    actions:
      - {name: disks, image: "quay.io/tinkerbell/actions/rootio:v1", %s}
`

// rootio gets the machine's storage, and what is wrong with it ends the run in plan.
func TestRootIOIsCheckedInPlan(t *testing.T) {
	with := func(s *action.Storage) Data {
		d := data()
		d.Machine.Storage = s
		return d
	}
	disks := []action.StorageDisk{{Device: "/dev/nvme0n1", Partitions: []action.StoragePartition{{Label: "ROOT"}}}}
	r, err := Render(t.Context(), "disks", fmt.Sprintf(rootIOTemplate, "command: [partition]"), with(&action.Storage{Disks: disks}))
	require.NoError(t, err)
	require.Equal(t, "/dev/nvme0n1", r.DiskAlias)
	require.JSONEq(t, `{"disks": [{"device": "/dev/nvme0n1", "partitions": [{"label": "ROOT"}]}]}`, r.Actions[0].Environment["STORAGE"])

	// Without another name, the run's disk is the first one of the storage.
	other := with(&action.Storage{Disks: []action.StorageDisk{{Device: "/dev/vdc"}}})
	other.Machine.Disks = nil
	r, err = Render(t.Context(), "disks", fmt.Sprintf(rootIOTemplate, "command: [wipe]"), other)
	require.NoError(t, err)
	require.Equal(t, "/dev/vdc", r.DiskAlias)

	second := append(disks, action.StorageDisk{Device: "/dev/sdb"})
	double := &action.Storage{Disks: disks, Filesystems: []action.StorageFilesystem{
		{
			Mount: action.StorageMount{Device: "/dev/nvme0n1p1", Format: "ext4", Point: "/"},
		},
		{Mount: action.StorageMount{Device: "/dev/nvme0n1p9", Format: "zfs", Point: "/"}},
	}}
	for name, c := range map[string]struct {
		text    string
		storage *action.Storage
		want    []string
	}{
		"no command":  {"pid: host", &action.Storage{Disks: disks}, []string{"tasks[0].actions[0].command", "must be one of wipe, partition"}},
		"no storage":  {"command: [format]", nil, []string{"tasks[0].actions[0].image", "give machine"}},
		"other disk":  {"command: [format]", &action.Storage{Disks: second}, []string{"STORAGE", "disks[1]: /dev/sdb is not the run's disk", "serial or wwn"}},
		"all at once": {"command: [format]", double, []string{"filesystems[1].mount.device", `unsupported format "zfs"`, "mount point of filesystems[0].mount already"}},
		"text":        {"command: [format], environment: {STORAGE: '{\"disk\": 1}'}", nil, []string{"unknown field"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Render(t.Context(), "disks", fmt.Sprintf(rootIOTemplate, c.text), with(c.storage))
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// Actions that use a file system may name an array, a logical volume or another disk's partition of the machine's storage.
func TestVolumesOfTheStorage(t *testing.T) {
	d := data()
	d.Machine.Storage = &action.Storage{
		Disks: []action.StorageDisk{
			{Device: "/dev/nvme0n1", WipeTable: true, Partitions: []action.StoragePartition{{Label: "a"}}},
			{
				Device:     "/dev/sdb",
				DiskID:     action.DiskID{Serial: "S2"},
				WipeTable:  true,
				Partitions: []action.StoragePartition{{Label: "a", Size: 8192}, {Label: "b"}},
			},
		},
		RAID: []action.StorageRAID{{Name: "md0", Level: "1", Devices: []string{"/dev/nvme0n1p1", "/dev/sdb1"}}},
		VolumeGroups: []action.StorageVolumes{{
			Name: "vg", PhysicalVolumes: []string{"/dev/md0"}, LogicalVolumes: []action.StorageVolume{{Name: "root"}},
		}},
	}
	render := func(step string) (Rendered, error) {
		return Render(
			t.Context(),
			"volumes",
			"version: \"0.1\"\nname: volumes\ntasks:\n- name: install\n  actions:\n  - {name: it, timeout: 60, "+step+"}\n",
			d,
		)
	}

	for _, step := range []string{
		"image: writefile, environment: {DEST_DISK: /dev/vg/root, DEST_PATH: /x, CONTENTS: y}",
		"image: writefile, environment: {DEST_DISK: /dev/sdb2, DEST_PATH: /x, CONTENTS: y}",
		"image: cexec, environment: {BLOCK_DEVICE: /dev/vg/root, CMD_LINE: id}",
		"image: kexec, environment: {BLOCK_DEVICE: /dev/vg/root}",
		"image: grub2disk, environment: {GRUB_INSTALL_PATH: /dev/vg/root, GRUB_DISK: /dev/nvme0n1 /dev/sdb}",
	} {
		r, err := render(step)
		require.NoError(t, err, step)
		require.Equal(t, "/dev/nvme0n1", r.DiskAlias, step)
		require.Contains(t, r.Actions[0].Environment["STORAGE"], `"serial":"S2"`, step)
	}
	r, err := render("image: writefile, environment: {DEST_DISK: /dev/nvme0n1p1, DEST_PATH: /x, CONTENTS: y}")
	require.NoError(t, err)
	require.NotContains(t, r.Actions[0].Environment, "STORAGE")

	for step, want := range map[string]string{
		"image: image2disk, environment: {DEST_DISK: /dev/md0}":                                                   `"/dev/md0" is a volume of the machine's storage, but image2disk needs a disk`,
		"image: wipe, environment: {BLOCK_DEVICE: /dev/sdb2}":                                                     "wipe needs a disk",
		"image: writefile, environment: {DEST_DISK: /dev/md0, PARTITION: '1', DEST_PATH: /x, CONTENTS: y}":        "names a file system already",
		"image: grub2disk, environment: {GRUB_INSTALL_PATH: /dev/md0, GRUB_DISK: /dev/sdc}":                       `"/dev/sdc" is a second disk next to "/dev/nvme0n1"`,
		"image: grub2disk, environment: {GRUB_INSTALL_PATH: /dev/nvme0n1, GRUB_DISK: /dev/sdb}":                   `"/dev/sdb" is a second disk`,
		"image: grub2disk, environment: {GRUB_INSTALL_PATH: /dev/md0, GRUB_DISK: sdb}":                            `invalid disk path "sdb"`,
		"image: writefile, environment: {DEST_DISK: /dev/md0, STORAGE: '{}', DEST_PATH: /x, CONTENTS: y}":         "has no disks",
		"image: archive2disk, environment: {DEST_DISK: /dev/vg/swap, ARCHIVE_URL: 'http://a/b'}":                  "a logical volume that the storage of the machine does not declare",
		"image: syslinux, environment: {DEST_DISK: /dev/nvme0n1}":                                                 "reading DEST_PARTITION: it is missing",
		"image: syslinux, environment: {DEST_PARTITION: /dev/sdb2}":                                               "syslinux needs a disk",
		"image: cexec, environment: {BLOCK_DEVICE: /dev/md0, CMD_LINE: id, STORAGE: '{\"disks\": [], \"x\": 1}'}": "unknown field",
	} {
		_, err := render(step)
		require.ErrorContains(t, err, want, step)
	}
}

// What the machine says of its disks contradicts the storage: the agent would find it after the machine was switched on.
func TestStorageFitsTheMachine(t *testing.T) {
	render := func(more string, change func(m *inventory.Machine)) error {
		d := data()
		d.Machine.DiskSelector = &inventory.DiskSelector{Serial: "S1"}
		d.Machine.Storage = &action.Storage{
			Disks: []action.StorageDisk{
				{Device: "/dev/nvme0n1", WipeTable: true, Partitions: []action.StoragePartition{{Label: "a"}}},
				{Device: "/dev/sdb", DiskID: action.DiskID{Serial: "S2"}, WipeTable: true, Partitions: []action.StoragePartition{
					{Label: "SWAP", Size: 8192}, {Label: "b", Size: 8192}, {Label: "c", Size: 65536}, {Label: "d"},
				}},
			},
			RAID: []action.StorageRAID{{Name: "md0", Level: "1", Devices: []string{"/dev/nvme0n1p1", "/dev/sdb2"}}},
			VolumeGroups: []action.StorageVolumes{{
				Name: "vg", PhysicalVolumes: []string{"/dev/sdb3"}, LogicalVolumes: []action.StorageVolume{{Name: "root"}},
			}},
			Filesystems: []action.StorageFilesystem{
				{Mount: action.StorageMount{Device: "/dev/sdb1", Format: "swap"}}, {Mount: action.StorageMount{Device: "/dev/vg/root", Format: "ext3"}},
			},
		}
		change(&d.Machine)
		_, err := Render(t.Context(), "t", "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n  - {name: a, "+more+"}\n", d)
		return err
	}
	same := func(*inventory.Machine) {}
	const partition = "image: rootio, command: [partition]"
	file := func(more string) string {
		return "image: writefile, environment: {DEST_PATH: /x, CONTENTS: y, DEST_DISK: " + more + "}"
	}
	for _, step := range []string{partition, file("/dev/md0"), file("/dev/vg/root, FS_TYPE: ext4"), file("/dev/sdb4")} {
		require.NoError(t, render(step, same), step)
	}
	for _, c := range []struct {
		step   string
		change func(m *inventory.Machine)
		says   string
	}{
		{partition, func(m *inventory.Machine) { m.Storage.Disks[0].Serial = "S9" }, "the machine's disk selector names another disk"},
		{partition, func(m *inventory.Machine) { m.Storage.Disks[1].Serial = "S1" }, "is the disk that the machine's disk selector names for /dev/nvme0n1"},
		{
			partition, func(m *inventory.Machine) { m.ProtectedDisks = []action.DiskID{{Serial: "S2"}} },
			"disks[1] (/dev/sdb) is protected, so Ingot never writes to it",
		},
		{file("/dev/sdb1"), same, "it is a swap space"},
		{file("/dev/sdb2"), same, "it is part of the array /dev/md0"},
		{file("/dev/sdb3"), same, "it is part of the volume group vg"},
		{file("/dev/vg/root, FS_TYPE: xfs"), same, "it has the file system ext3 in STORAGE, but FS_TYPE is xfs"},
	} {
		require.ErrorContains(t, render(c.step, c.change), c.says)
	}
}

// A file of another server without a digest, where the template alone shows it. An address that may be this server's is not
// reported, and neither is one that data or a condition decides.
func TestForeignURLsAreReportedWithoutAMachine(t *testing.T) {
	parse := func(env string) inventory.Problems {
		p, err := Parse(
			"t",
			[]byte("version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n  - {name: a, image: image2disk, environment: {"+env+"}}\n"),
		)
		require.NoError(t, err, env)
		return p.Notes
	}
	for _, env := range []string{
		"IMG_URL: 'https://u:hush@mirror.example/x.raw?key=hush'", "IMG_URL: 'http://mirror.example/x'", "IMG_URL: 'https://h/images/x'",
	} {
		ps := parse(env)
		require.Len(t, ps, 1, env)
		require.Contains(t, ps[0].String(), "t:6: tasks[0].actions[0].environment.IMG_URL: http")
		require.Contains(t, ps[0].String(), "has no digest: the server fetches it once")
		require.NotContains(t, ps[0].String(), "hush")
	}
	for _, env := range []string{
		"IMG_URL: 'http://192.0.2.1:7080/images/x'", "IMG_URL: '{{ .images_url }}/x'", "IMG_URL: 'http://{{ .machine }}/x'", "",
		"IMG_URL: 'https://mirror.example/x.raw', IMG_SHA256: " + strings.Repeat("0a", 32),
	} {
		require.Empty(t, parse(env), env)
	}
}

// The system on a mirror of docs/templates.md renders for a machine with such a storage.
func TestMirrorOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/templates.md")
	require.NoError(t, err)
	const begin = "version: \"0.1\"\nname: mirror\n"
	_, example, found := strings.Cut(string(text), "```yaml\n"+begin)
	require.True(t, found)
	example, _, _ = strings.Cut(example, "```")

	_, err = Parse("mirror", []byte(begin+example))
	require.NoError(t, err, "it can be stored")

	parts := []action.StoragePartition{{Label: "BIOS", Size: 2048}, {Label: "ROOT"}}
	d := data()
	d.Machine.Disks = nil
	d.Image.Use = inventory.UseArchive
	d.Machine.Storage = &action.Storage{
		Disks: []action.StorageDisk{
			{Device: "/dev/sda", WipeTable: true, Partitions: parts},
			{Device: "/dev/sdb", DiskID: action.DiskID{Serial: "S2"}, WipeTable: true, Partitions: parts},
		},
		RAID:        []action.StorageRAID{{Name: "md1", Level: "1", Devices: []string{"/dev/sda2", "/dev/sdb2"}}},
		Filesystems: []action.StorageFilesystem{{Mount: action.StorageMount{Device: "/dev/md1", Format: "ext4", Point: "/"}}},
	}
	r, err := Render(t.Context(), "mirror", begin+example, d)
	require.NoError(t, err)
	require.Equal(t, "/dev/sda", r.DiskAlias)
}

// A mistake is found although the template is not YAML before it is rendered: an expression without quotes and with a text behind
// it, or a condition on a line of its own. What cannot be read at all is said.
func TestActionsAreCheckedThoughTheTemplateIsNoYAML(t *testing.T) {
	const head = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n"
	file := func(disk, end string) string {
		return head + "  - name: file\n    image: writefile\n    timeout: 60\n    environment:\n      DEST_DISK: " + disk +
			"\n      DEST_PATH: /etc/x\n      CONTENTS: x\n" + end + "  - {name: off, image: waitdaemon, timeout: 60, environment: {IMAGE: nothing-known}}\n"
	}
	for name, text := range map[string]string{
		"no quotes":   file("{{ index .Hardware.Disks 0 }}3", ""),
		"quotes":      file("\"{{ index .Hardware.Disks 0 }}3\"", ""),
		"a condition": file("{{ index .Hardware.Disks 0 }}3", "{{- if .other }}\n      MODE: \"0600\"\n{{- end }}\n"),
	} {
		_, err := Parse("t", []byte(text))
		require.ErrorContains(t, err, "nothing-known", name)
	}

	parsed, err := Parse(
		"t",
		[]byte(head+"  - {name: a, image: noop, timeout: 60, environment: {LOG: x} {{ if .other }} } {{ else }} } {{ end }}\n"),
	)
	require.NoError(t, err)
	require.Contains(t, parsed.Notes[0].What, "the actions could not be checked")
}
