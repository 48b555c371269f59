package actions

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// archive2disk extracts an archive into a file system of the bound disk.
//
//	ARCHIVE_URL                    a tar archive; as it is or packed by gzip, zstd, xz or bzip2, recognized by its content
//	TARFILE_CHECKSUM               SHA-256 of the file as it is served
//	DEST_DISK, PARTITION, FS_TYPE  as inject
//	DEST_PATH                      the folder, which is made if it is missing; default /
//
// The digest is known only after everything was read. So an archive with a wrong digest is extracted completely before the action fails.
// Running the action again gives the same result. Output: device, sha256, entries, bytes.
func archive2disk(ctx context.Context, t *Task) (err error) {
	want, err := action.SHA256(t.env, action.ArchiveDigestVariable)
	if err == nil && want == "" {
		err = fmt.Errorf("extracting an archive: the archive's digest is missing; set %s", action.ArchiveDigestVariable)
	}
	if err != nil {
		return err
	}
	part, err := t.place(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	defer part.release(ctx, &err)

	archive, err := openArchive(ctx, t)
	if err != nil {
		return err
	}
	defer archive.close()

	x := filesys.NewExtraction(ctx, archive)
	t.machine.Wrote()
	t.track(max(archive.src.Total, 0), "extracting", archive.src.Received.Load)
	err = filesys.UseMounted(ctx, t.machine.Files, part.Partition, part.fstype, false, func(root filesys.Tree) error {
		return x.ExtractInto(root, cmp.Or(t.env[action.ArchivePathVariable], "/"))
	})
	if err == nil {
		_, err = io.Copy(io.Discard, archive) // read to the end: the digest covers the archive's padding, too
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // a decompressor may call the archive damaged when the download was stopped
	}
	if err != nil {
		return fmt.Errorf("extracting %s to %s: %w", archive.src.Shown, part.Path, err)
	}

	served, err := archive.checkServed(want)
	if err != nil {
		return err
	}

	t.output["device"], t.output["sha256"] = part.Path, served
	t.output["entries"], t.output["bytes"] = fmt.Sprint(x.Entries), fmt.Sprint(x.Bytes)
	t.logf("%d entries, %d bytes of contents, on %s (%s)", x.Entries, x.Bytes, part.Path, part.fstype)
	return nil
}

// openArchive starts to read the archive. The caller must close the result.
func openArchive(ctx context.Context, t *Task) (*imageStream, error) {
	return openStream(ctx, "archive", func(ctx context.Context) (*fetch.Source, error) {
		return t.opener().OpenAddress(ctx, t.env[action.ArchiveURLVariable], true)
	}, func(i *imageStream) (err error) {
		i.content, err = diskimage.Open(i.served)
		i.Reader = i.content
		return err
	})
}
