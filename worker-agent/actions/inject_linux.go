package actions

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// inject writes files into a file system of the bound disk.
//
//	DEST_DISK  a partition of the bound disk, or the disk
//	PARTITION  which partition of the disk (see action.ParsePartition); default: the root file system, which is the largest
//	           with /etc/os-release
//	FS_TYPE    ext4, xfs, btrfs, vfat; recognized by its content when empty
//	FILES      JSON array of action.File
//
// Symbolic links in a path cannot lead out of this file system. If there is a link at the path of a file, the file replaces the link. Each
// file is written atomically. Running inject again gives the same result. At the end, the file system is mounted again, and the files on
// the disk are compared with FILES. Output: device, files, bytes.
func inject(ctx context.Context, t *Task) error {
	listed, err := action.Files(t.env)
	if err != nil {
		return err
	}

	files := make([]filesys.File, 0, len(listed))
	for _, f := range listed {
		otherwise := uint32(0o644)
		if f.Directory {
			otherwise = 0o755
		}
		mode, err := action.Octal(f.Mode, otherwise)
		dirMode, e := action.Octal(f.DirMode, 0o755)
		if err := errors.Join(err, e); err != nil {
			return err
		}

		files = append(files, filesys.File{
			Path: f.Path, Contents: f.Contents, Directory: f.Directory, Owner: f.Owner, Group: f.Group, Mode: mode,
			DirMode: dirMode,
		})
	}

	return writeFiles(ctx, t, files)
}

// writeFile writes one file in the same way as inject. Its variables are those of Tinkerbell's action writefile:
//
//	DEST_DISK, PARTITION, FS_TYPE  as inject
//	DEST_PATH                      absolute
//	CONTENTS                       contents of the file; or BOOTCONFIG_CONTENTS or HEGEL_URLS
//	BOTTLEROCKET_SETTINGS          text to add to the end of /user-data.toml, for net.toml
//	UID, GID                       owner, also of new directories; default 0
//	MODE                           octal, default 0644
//	DIRMODE                        octal, mode of new directories; default 0755
func writeFile(ctx context.Context, t *Task) error {
	f, err := readFileSpec(t.env)
	if err != nil {
		return err
	}
	if f.Contents, err = readContents(ctx, t); err != nil {
		return err
	}
	written := []filesys.File{f}
	if settings := t.env[action.SettingsVariable]; settings != "" {
		f.Path, f.Contents, f.Append = action.BottlerocketSettings, settings, ownNameServers
		written = append(written, f)
	}
	return writeFiles(ctx, t, written)
}

// ownNameServers matches settings of Bottlerocket that may say something of DNS themselves, in any form that TOML allows.
var ownNameServers = regexp.MustCompile(`(?m)^\s*(\[\s*)?(["']?settings["']?\s*\.\s*)?["']?dns["']?\s*[].=]`)

// writeFiles writes files into the file system that the action's variables select, and verifies them.
func writeFiles(ctx context.Context, t *Task, files []filesys.File) (err error) {
	part, err := t.place(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	defer part.release(ctx, &err)

	var total, done int64
	for _, f := range files {
		total += int64(len(f.Contents))
	}
	t.machine.Wrote()
	err = filesys.UseMounted(ctx, t.machine.Files, part.Partition, part.fstype, false, func(root filesys.Tree) error {
		for i := range files {
			f := &files[i]
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := f.Resolve(root); err != nil {
				return fmt.Errorf("writing %s on %s: %w", f.Path, part.Path, err)
			}
			if err := f.Write(root); err != nil {
				return fmt.Errorf("writing %s on %s: %w", f.Path, part.Path, err)
			}
			done += int64(len(f.Contents))
			t.progress(done, total, "writing "+f.Path)
			t.logf("%s: %d bytes, %d:%d %04o, on %s (%s)", f.Path, len(f.Contents), f.UID, f.GID, f.Mode, part.Path, part.fstype)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}

	// The file system is not mounted now, so nothing of it is in a cache: the following reads come from the disk.
	if part, err = t.again(ctx, part); err != nil {
		return err
	}

	err = filesys.UseMounted(ctx, t.machine.Files, part.Partition, part.fstype, true, func(root filesys.Tree) error {
		for _, f := range files {
			if err := f.Compare(root, part.fstype != "vfat"); err != nil {
				return fmt.Errorf("reading %s on %s back: %w", f.Path, part.Path, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	t.output["device"], t.output["files"], t.output["bytes"] = part.Path, fmt.Sprint(len(files)), fmt.Sprint(total)
	t.logf("%d files read back", len(files))
	return nil
}

// readFileSpec returns the file that the variables of writefile describe, without its contents. action.Check has already checked the values
// of the variables.
func readFileSpec(env map[string]string) (filesys.File, error) {
	s := filesys.File{Path: path.Clean(env["DEST_PATH"])}
	var errs [4]error
	s.UID, errs[0] = action.Number(env, "UID")
	s.GID, errs[1] = action.Number(env, "GID")
	s.Mode, errs[2] = action.Octal(env["MODE"], 0o644)
	s.DirMode, errs[3] = action.Octal(env["DIRMODE"], 0o755)
	return s, errors.Join(errs[:]...)
}
