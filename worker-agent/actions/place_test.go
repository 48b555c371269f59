package actions

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
)

// An action writes into a logical volume on an array: both are activated for it, and not afterwards, whatever its end is.
func TestPlaceInStorage(t *testing.T) {
	t.Parallel()
	s := newStorageSite(t)
	_, _, err := s.run(t, "partition")
	require.NoError(t, err)
	text, err := json.Marshal(s.storage)
	require.NoError(t, err)
	root := t.TempDir()
	s.Dirs = map[string]string{filepath.Join(s.dir, "root"): root}
	write := func(device string, more map[string]string) (string, error) {
		s.ran = nil
		env := map[string]string{
			action.StorageVariable: string(text), "DEST_DISK": device, "DEST_PATH": "/etc/made", "CONTENTS": "by writefile", "FS_TYPE": "ext4",
		}
		maps.Copy(env, more)
		_, log, err := try(t, Machine{Disks: s.disks, Files: s.fakePrograms}, action.WriteFile, &s.bound, env)
		return log, err
	}

	log, err := write("/dev/vg/root", nil)
	require.NoError(t, err, log)
	b, err := os.ReadFile(filepath.Join(root, "etc/made"))
	require.NoError(t, err)
	require.Equal(t, "by writefile", string(b))
	open := []string{"mdadm --assemble /dev/md0 sdb2 sda2", "lvm vgchange --devices md0 --activate y vg"}
	shut := []string{"lvm vgchange --devices md0 --activate n vg", "mdadm --stop /dev/md0"}
	require.Equal(t, append(open, shut...), s.ran)
	require.Empty(t, s.volumes)

	s.Stuck = true // the file system is not unmounted
	_, err = write("/dev/vg/root", nil)
	require.ErrorContains(t, err, "busy")
	require.Empty(t, s.volumes)
	s.Stuck = false

	for name, c := range map[string]struct {
		device string
		change func()
		says   string
	}{
		"not declared":   {"/dev/md7", func() {}, "it is not the disk bound to this run"},
		"another disk":   {"/dev/second", func() {}, "it is not the disk bound to this run"},
		"no such volume": {"/dev/vg/swap", func() {}, "it is not the disk bound to this run"},
		"no program":     {"/dev/vg/root", func() { s.missing = []string{"mdadm"} }, "finding the program mdadm"},
		"no array":       {"/dev/vg/root", func() { s.fails = "mdadm --assemble" }, "run rootio with command partition first"},
		"missing disk":   {"/dev/vg/root", func() { s.disks = s.disks[:1] }, "finding the disk serial S2"},
	} {
		t.Run(name, func(t *testing.T) {
			disks := s.disks
			c.change()
			log, err := write(c.device, nil)
			require.ErrorContains(t, err, c.says, log)
			require.Empty(t, s.volumes)
			s.missing, s.fails, s.disks = nil, "", disks
		})
	}
}

// grub2disk calls the programs of the installed system, on the disks that it may write.
func TestGrub2Disk(t *testing.T) {
	loops, files, disk := newSystem(t)
	cfg := Machine{Disks: files, Files: loops}
	_, _, err := try(t, cfg, action.Inject, disk, map[string]string{"FILES": `[
		{"path": "/usr/sbin/grub2-install", "mode": "0755", "contents": "#!/usr/bin/sh\necho grub2-install $* >>/etc/made"},
		{"path": "/usr/sbin/grub2-mkconfig", "mode": "0755", "contents": "#!/usr/bin/sh\necho grub2-mkconfig $* >>/etc/made; [ ! -e /etc/broken ]"}]`})
	require.NoError(t, err)

	out, log, err := try(t, cfg, action.Grub2Disk, disk, map[string]string{"GRUB_INSTALL_PATH": "/dev/alias1", "GRUB_DISK": "/dev/alias"})
	require.NoError(t, err, log)
	require.Equal(t, "1", out["disks"])
	_, log, err = try(t, cfg, action.CExec, disk, map[string]string{"CMD_LINE": "cat /etc/made"})
	require.NoError(t, err)
	require.Contains(t, log, "\ngrub2-install --target=i386-pc --recheck "+files[0].Path+"\ngrub2-mkconfig -o /boot/grub2/grub.cfg\n")

	_, _, err = try(t, cfg, action.Grub2Disk, disk, map[string]string{"GRUB_DISK": "/dev/other"})
	require.ErrorContains(t, err, `reading GRUB_DISK: "/dev/other" is a second disk next to "/dev/alias"`)
	_, _, err = try(t, cfg, action.CExec, disk, map[string]string{"CMD_LINE": "touch /etc/broken"})
	require.ErrorContains(t, err, `no program "touch"`)
	_, _, err = try(t, cfg, action.WriteFile, disk, map[string]string{"DEST_PATH": "/etc/broken", "CONTENTS": ""})
	require.NoError(t, err)
	_, _, err = try(t, cfg, action.Grub2Disk, disk, nil)
	require.ErrorContains(t, err, "writing the configuration of GRUB: grub2-mkconfig: exit code 1")
}

// Without GRUB in the system, the action says what is missing.
func TestGrub2DiskWithoutGRUB(t *testing.T) {
	loops, files, disk := newSystem(t)
	_, _, err := try(t, Machine{Disks: files, Files: loops}, action.Grub2Disk, disk, nil)
	require.ErrorContains(t, err, `the installed system has no program "grub-install"`)
	require.False(t, strings.Contains(err.Error(), "exit code"))
}
