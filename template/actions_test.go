package template

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
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

// The actions get the run's disk, kexec may be the last one, and nothing is
// added behind it.
func TestNativeActionsAreRendered(t *testing.T) {
	r, err := Render(t.Context(), "router", genesisActions, data())
	require.NoError(t, err)
	require.Len(t, r.Actions, 6)
	for i, want := range []string{"BLOCK_DEVICE", "DEST_DISK", "DEST_DISK", "DEST_DISK", "", "BLOCK_DEVICE"} {
		if want != "" {
			require.Equal(t, r.DiskAlias, r.Actions[i].Environment[want], r.Actions[i].Name)
		}
	}
	// A secret in a variable of its own needs no quoting in the list of files.
	resolved, err := Resolve(r.Actions[2], func(string) (string, error) { return "a\"b\nc", nil })
	require.NoError(t, err)
	files, err := action.Files(resolved.Environment)
	require.NoError(t, err)
	require.Equal(t, "call \"a\"b\nc\"\n", files[0].Contents)
}

// What can be seen to be wrong ends in plan, with its place.
func TestNativeActionsAreCheckedBeforeTheMachineIsTouched(t *testing.T) {
	for env, want := range map[string]string{
		`image: inject`: "FILES: it is missing",
		`image: inject, environment: {FILES: '[{"path": "x"}]'}`:                                           "path must be absolute",
		`image: inject, environment: {FILES: '[{"path": "/x", "from": "Y"}]'}`:                             `"Y", which the environment does not have`,
		`image: inject, environment: {FILES: '[{"path": "/x"}]', PARTITION: root}`:                         "want a number from 1",
		`image: growpart, environment: {RESERVE_MIB: some}`:                                                "number of MiB",
		`image: growpart, environment: {FILESYSTEM: some}`:                                                 "true or false",
		`image: wipe, environment: {ALL_DISKS: "all"}`:                                                     "true or false",
		`image: wipe, environment: {WIPE_MODE: secure}`:                                                    "one of metadata, quick",
		`image: efiboot, environment: {REQUIRED: x}`:                                                       "true or false",
		"image: kexec}\n      - {name: b, image: reboot":                                                   "only be the last action",
		`image: writefile, environment: {PARTITION: "LABEL=", DEST_PATH: /x, CONTENTS: "", MODE: x}`:       "want a number from 1",
		`image: writefile, environment: {DEST_PATH: x, CONTENTS: ""}`:                                      "absolute path of a file",
		`image: writefile, environment: {DEST_PATH: /x}`:                                                   "CONTENTS: it is missing",
		`image: writefile, environment: {DEST_PATH: /etc/netplan/config.yaml, STATIC_NETPLAN: "true"}`:     "STATIC_NETPLAN: it is not supported",
		`image: writefile, environment: {DEST_PATH: /bootconfig.data, BOOTCONFIG_CONTENTS: "kernel {}"}`:   "BOOTCONFIG_CONTENTS: it is not supported",
		`image: writefile, environment: {DEST_PATH: /user-data.toml, HEGEL_URLS: "http://10.0.0.1:50061"}`: "HEGEL_URLS: it is not supported",
		`image: writefile, environment: {DEST_PATH: /x, CONTENTS: "", UID: root}`:                          "UID=",
		`image: writefile, environment: {DEST_PATH: /x, CONTENTS: "", DIRMODE: "9"}`:                       "DIRMODE",
		`image: writefile, environment: {DEST_PATH: /x, CONTENTS: "", FS_TYPE: ntfs}`:                      "one of ext4, xfs, btrfs, vfat",
		`image: image2disk, environment: {IMG_URL: "http://x/y", IMG_SHA256: abc}`:                         "64 hex digits",
		`image: image2disk, environment: {IMG_URL: "http://x/y", IMG_SHA512: abc}`:                         "IMG_SHA512: it is not supported",
		`image: kexec, environment: {CMD_LINE: "a\nb"}`:                                                    "more than one line",
		`image: noop, environment: {SLEEP: long}`:                                                          "want seconds",
	} {
		_, err := Render(t.Context(), "t", "version: \"0.1\"\nname: t\ntasks:\n  - name: t\n    actions:\n      - {name: a, "+env+"}\n", data())
		require.ErrorContains(t, err, want, env)
		require.ErrorContains(t, err, "tasks[0].actions[0]", env)
	}
}

// A checksum that the agent does not know is accepted where the catalogue has one that it knows.
func TestOtherChecksumBesideTheCatalogues(t *testing.T) {
	const text = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n" +
		"  - {name: write, image: image2disk, environment: {IMG_SHA512: abc}}\n"
	d := data()
	r, err := Render(t.Context(), "t", text, d)
	require.NoError(t, err)
	require.Equal(t, d.Image.SHA256, r.Actions[0].Environment["IMG_SHA256"])
}
