package actions

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/stretchr/testify/require"
	"oras.land/oras-go/v2/registry/remote"
)

// A case of the table is an action on a device, carried out by the agent and planned by the server.
type deviceCase struct {
	name string
	// device is what the action's variable for the disk names; "" leaves it out.
	device string
	more   map[string]string
	// lint: the template alone shows that it fails.
	lint, fails func(native string, row action.Description) bool
}

func always(_ string, row action.Description) bool { return row.Disk != "" }

func takesWhole(native string, row action.Description) bool {
	return isOnDisk(native, row) && native != action.RootIO
}

func isOnDisk(_ string, row action.Description) bool {
	return row.Disk != "" && !row.Volumes && !row.Partitions
}

// takesOne is for two ways to name a partition; rootio reads neither.
func takesOne(native string, row action.Description) bool {
	return row.Disk != "" && native != action.RootIO
}

func takesNoVolume(_ string, row action.Description) bool { return row.Disk != "" && !row.Volumes }

func isSyslinux(native string, _ action.Description) bool { return native == action.Syslinux }

func fetches(native string, row action.Description) bool {
	return row.URL != "" || isSyslinux(native, row) // for which the case has no partition
}

// Whatever the agent refuses, the plan refuses, and so does lint if the template alone shows it.
func TestPlanRefusesWhatTheAgentRefuses(t *testing.T) {
	t.Parallel()
	web := newStore(t)
	cases := []deviceCase{
		{name: "whole disk", device: "/dev/sda", lint: isSyslinux, fails: isSyslinux},
		{name: "partition", device: "/dev/sda1", lint: takesWhole, fails: takesWhole},
		{name: "partition 0", device: "/dev/sda0", lint: always, fails: always},
		{name: "partition of NVMe", device: "/dev/nvme0n1p1", lint: takesWhole, fails: takesWhole},
		{name: "second disk", device: "/dev/sdb", lint: isSyslinux, fails: always},
		{name: "partition of a second disk", device: "/dev/sdb1", lint: takesWhole, fails: always},
		{name: "missing", lint: isSyslinux, fails: isSyslinux},
		{name: "file system", device: "/dev/disk/by-label/ROOT", lint: always, fails: always},
		{name: "array", device: "/dev/md0", lint: takesNoVolume, fails: always},
		{name: "no device", device: "/etc/passwd", lint: always, fails: always},
		{
			name: "partition named twice", device: "/dev/sda1", more: map[string]string{"PARTITION": "LABEL=ROOT"}, lint: takesOne,
			fails: takesOne,
		},
		{name: "foreign URL", device: "", more: map[string]string{"foreign": "yes"}, lint: isSyslinux, fails: fetches},
	}
	for _, native := range action.Natives() {
		if native == action.WaitDaemon {
			continue // the plan has the inner action in its place
		}
		for _, c := range cases {
			t.Run(native+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				c.check(t, native, web)
			})
		}
	}
}

func (c deviceCase) check(t *testing.T, native string, web *httptest.Server) {
	row := action.Describe(native)
	env := validEnvironment(native, web)
	if c.device != "" && row.Disk != "" {
		env[row.Disk] = c.device
	}
	for k, v := range c.more {
		env[k] = v
	}
	disk := "/dev/sda"
	if strings.HasPrefix(c.device, "/dev/nvme") {
		disk = "/dev/nvme0n1"
	}
	env["STORAGE"] = strings.ReplaceAll(env["STORAGE"], "/dev/sda", disk)
	foreign := env["foreign"] != ""
	delete(env, "foreign")
	if foreign && row.Digest != "" {
		delete(env, row.Digest)
	}
	if row.Partitions && c.name == "missing" {
		delete(env, row.Disk)
	}

	source := templateOf(t, native, env, disk)
	_, lint := template.Parse("t", []byte(source))
	rendered, plan := template.Render(t.Context(), "t", source, template.Data{
		Machine: inventory.Machine{Name: "m1", Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:01"}}}, UploadHosts: []string{"127.0.0.1"},
		RequireDigest: foreign, // without it, the server would fetch the file
	})
	given, alias := env, disk
	if plan == nil {
		given, alias = rendered.Actions[1].Environment, rendered.DiskAlias
	}
	agent := refusal(carryOut(t, native, alias, given))

	require.Equal(t, c.fails(native, row), plan != nil, "plan: %v; agent: %v", plan, agent)
	require.Equal(t, c.lint(native, row), lint != nil, "lint: %v", lint)
	if agent != nil {
		require.Error(t, plan, "the agent says: %v", agent)
	}
	if plan != nil && !foreign {
		require.Error(t, agent, "the plan says: %v", plan)
	}
	if plan != nil {
		require.NotContains(t, plan.Error(), "storage describes", "the machine has no storage")
		require.NotContains(t, plan.Error(), "a volume of the machine's storage", "the machine has no storage")
	}
}

// newStore serves an image, and takes what slurp sends.
func newStore(t *testing.T) *httptest.Server {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body) // what arrives is not looked at
			return
		}
		_, _ = w.Write(disktest.TestImage()) // the client reports a short answer
	}))
	t.Cleanup(web.Close)
	return web
}

// validEnvironment returns what each action needs in addition to a disk.
func validEnvironment(native string, web *httptest.Server) map[string]string {
	image := disktest.SHA256(disktest.TestImage())
	return map[string]map[string]string{
		action.Image2Disk:   {"IMG_URL": web.URL + "/x.raw", "IMG_SHA256": image},
		action.QemuImg2Disk: {"IMG_URL": web.URL + "/x.raw", "IMG_SHA256": image},
		action.OCI2Disk:     {"IMG_URL": strings.Replace(web.URL, "https", "http", 1) + "/a/b@sha256:" + image},
		action.Archive2Disk: {"ARCHIVE_URL": web.URL + "/x.tar", "TARFILE_CHECKSUM": image},
		action.RootIO:       {"STORAGE": `{"disks": [{"device": "/dev/sda", "wipe_table": true, "partitions": [{"label": "a"}]}]}`},
		action.WriteFile:    {"DEST_PATH": "/x", "CONTENTS": "x"},
		action.Inject:       {"FILES": `[{"path": "/x"}]`},
		action.GrowPart:     {"FILESYSTEM": "false"},
		action.CExec:        {"CMD_LINE": "true"},
		action.Slurp:        {"DEST_URL": web.URL, "IMG_NAME": "x"},
		action.ConfigDrive:  {}, action.Wipe: {}, action.EFIBoot: {}, action.Grub2Disk: {}, action.Syslinux: {}, action.Kexec: {},
		action.Reboot: {}, action.PowerOff: {}, action.Inspect: {}, action.Noop: {},
	}[native]
}

// templateOf returns a template whose first action binds the run to disk, and whose second is the one to look at.
func templateOf(t *testing.T, native string, env map[string]string, disk string) string {
	text, err := json.Marshal(env)
	require.NoError(t, err)
	command := ""
	if native == action.RootIO {
		command = ", command: [wipe]"
	}
	return fmt.Sprintf("version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n"+
		"  - {name: first, image: wipe, environment: {BLOCK_DEVICE: %s}}\n  - {name: it, image: %s%s, environment: %s}\n", disk, native, command, text)
}

// carryOut lets the agent carry out an action on a machine with two disks and no means to mount a file system.
func carryOut(t *testing.T, native, alias string, env map[string]string) error {
	files, bound, image := disktest.Sparse(t, 64*blockdev.MiB)
	disktest.NewGPT(t, image, parttable.Span{Start: blockdev.MiB, Size: 8 * blockdev.MiB, Name: "root"})
	second, _, _ := disktest.Sparse(t, 64*blockdev.MiB)
	second[0].Path, second[0].Serial, second[0].WWN = "/dev/second", "S2", ""
	as := action.Assignment{
		Run: "run", Disk: bound, DiskAlias: alias, Action: action.Action{Name: native, Image: native, Environment: env},
	}
	if native == action.RootIO {
		as.Action.Command = []string{"wipe"}
	}
	return newTask(Machine{Disks: append(files, second...)}, as).perform(t.Context(), as)
}

// refusal returns err unless it is about what this machine lacks, which no plan can know.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	for _, lacks := range []string{"this agent cannot mount", "this agent cannot run", "getting the manifest", "cannot read the machine's facts"} {
		if strings.Contains(err.Error(), lacks) {
			return nil
		}
	}
	return err
}

// Values that the agent, its programs or the kernel refuse for every machine are refused in the plan, by lint and by the agent
// before it does anything.
func TestPlanRefusesValuesThatTheAgentRefuses(t *testing.T) {
	t.Parallel()
	web := newStore(t)
	long := strings.Repeat("n", 256)
	storage := func(format, options string) map[string]string {
		return map[string]string{"STORAGE": fmt.Sprintf(`{"disks": [{"device": "/dev/sda", "partitions": [{"label": "a"}]}],
			"filesystems": [{"mount": {"device": "/dev/sda1", "format": %q, "create": {"options": [%q]}}}]}`, format, options)}
	}
	for i, c := range []struct {
		native string
		env    map[string]string
		says   string
	}{
		{action.Image2Disk, map[string]string{"IMG_URL": "ftp://h/x"}, "must be an http:// or https:// URL"},
		{action.Image2Disk, map[string]string{"DEST_DISK": "/dev/sda2", "PARTITION": "2"}, "names a partition already"},
		{action.QemuImg2Disk, map[string]string{"IMG_URL": "h/x"}, "must be an http:// or https:// URL"},
		{action.OCI2Disk, map[string]string{"IMG_URL": "registry.example/a//b@sha256:" + strings.Repeat("0a", 32)}, "IMG_URL"},
		{action.OCI2Disk, map[string]string{"IMG_URL": "registry.example/a/@sha256:" + strings.Repeat("0a", 32)}, "IMG_URL"},
		{action.OCI2Disk, map[string]string{"IMG_URL": "registry.example/.a@sha256:" + strings.Repeat("0a", 32)}, "IMG_URL"},
		{action.Wipe, map[string]string{"DEST_DISK": "/dev/sda2"}, "wipe takes a whole disk, not partition 2"},
		{action.WriteFile, map[string]string{"DEST_PATH": "/a\x00b"}, "zero byte"},
		{action.WriteFile, map[string]string{"DEST_PATH": "/" + long}, "256 bytes"},
		{action.WriteFile, map[string]string{"DEST_PATH": strings.Repeat("/n", 2100)}, "Linux allows up to 4095"},
		{action.WriteFile, map[string]string{"FS_TYPE": "vfat", "UID": "1000"}, "vfat has no owners"},
		{action.WriteFile, map[string]string{"FS_TYPE": "vfat", "DEST_PATH": "/a:b"}, "a name on vfat must not"},
		{action.WriteFile, map[string]string{"DEST_DISK": "/dev/sda1", "PARTITION": "2"}, "names a partition already"},
		{action.Inject, map[string]string{"FILES": `[{"path": "/a"}, {"path": "/a/b"}]`}, "needs a folder at this path"},
		{action.Inject, map[string]string{"FILES": `[{"path": "/a", "owner": "99999999999"}]`}, "or a number up to"},
		{action.Inject, map[string]string{"FILES": `[{"path": "/a", "group": "adm"}]`, "FS_TYPE": "vfat"}, "vfat has no owners"},
		{action.Inject, map[string]string{"FILES": `[{"path": "/` + long + `"}]`}, "256 bytes"},
		{action.CExec, map[string]string{"CMD_LINE": ";"}, "it contains no command"},
		{action.CExec, map[string]string{"CMD_LINE": "'' x"}, "command 1 begins with an empty word"},
		{action.CExec, map[string]string{"CMD_LINE": "echo 'a\x00'"}, "zero byte"},
		{action.CExec, map[string]string{"CMD_LINE": "x", "DEFAULT_INTERPRETER": "''"}, "must be one program"},
		{action.CExec, map[string]string{"TOKEN": "a\x00b"}, `invalid variable "TOKEN"; must not contain a zero byte`},
		{action.Grub2Disk, map[string]string{"GRUB_DISK": "/dev/sda1"}, `"/dev/sda1" is a partition: name its disk`},
		{action.Grub2Disk, map[string]string{"TOKEN": "a\x00b"}, `invalid variable "TOKEN"; must not contain a zero byte`},
		{action.Kexec, map[string]string{"KERNEL_PATH": "/a\x00"}, "zero byte"},
		{action.Syslinux, map[string]string{"DEST_PARTITION": "/dev/sda"}, "names no partition"},
		{action.RootIO, storage("xfs", "-L abcdefghijklm"), "allows up to 12"},
		{action.RootIO, storage("vfat", "-n ABCDEFGHIJKL"), "allows up to 11"},
		{action.RootIO, storage("ext4", "-L abcdefghijklmnopq"), "allows up to 16"},
		{action.RootIO, map[string]string{"STORAGE": `{"disks": [{"device": "/dev/sda", "serial": "S"}, {"device": "/dev/sdb", "serial": "S"}]}`}, "the same disk"},
	} {
		t.Run(fmt.Sprint(i, " ", c.native), func(t *testing.T) {
			t.Parallel()
			env := validEnvironment(c.native, web)
			for k, v := range c.env {
				env[k] = v
			}
			source := templateOf(t, c.native, env, "/dev/sda")
			_, lint := template.Parse("t", []byte(source))
			require.ErrorContains(t, lint, c.says)
			_, plan := template.Render(t.Context(), "t", source, template.Data{Machine: inventory.Machine{Name: "m1"}})
			require.ErrorContains(t, plan, c.says)
			require.ErrorContains(t, carryOut(t, c.native, "/dev/sda", env), c.says)
		})
	}
}

// The registry client reads each reference that the plan takes.
func TestReferencesOfRegistriesAreRead(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "a/b", "a-b/c.d/e_f", "a__b", "a--b", "a..b", "a//b", "-a", "a-", "a/", ".a", "a_", "a/_b", "A"} {
		for _, end := range []string{":v1", "@sha256:" + strings.Repeat("0a", 32), ":v1@sha256:" + strings.Repeat("0a", 32)} {
			text := "registry.example:5000/" + name + end
			image, err := action.OCIImage(map[string]string{"IMG_URL": text})
			_, refused := remote.NewRepository(text)
			require.Equal(t, refused == nil, err == nil, "%s: %v; %v", text, err, refused)
			if err == nil {
				require.Equal(t, text, image.Name)
			}
		}
	}
}
