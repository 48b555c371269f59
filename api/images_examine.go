package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/ingotmetal/ingot/internal/diskimage"
	"github.com/ingotmetal/ingot/inventory"
)

// examine reads a complete upload, compares its digest and detects its format. For a file
// that can never become an image the error is inventory.ErrInvalid.
func (u upload) examine(ctx context.Context, dir *os.Root, checked *atomic.Int64) (i inventory.Image, err error) {
	i = u.image
	reading := fmt.Sprintf("reading the upload of %q", i.Name)
	f, err := dir.Open(u.part())
	if err != nil {
		return i, fmt.Errorf("%s: %w", reading, err)
	}
	defer f.Close()
	sum := sha256.New()
	in := io.TeeReader(f, io.MultiWriter(sum, counter{checked}))
	d, refused := describe(ctx, in, i.Use)
	var refusal *diskimage.Refusal
	if refused != nil && !errors.As(refused, &refusal) {
		return i, fmt.Errorf("%s: %w", reading, refused)
	}
	if err := drain(ctx, in); err != nil {
		return i, fmt.Errorf("%s: %w", reading, err)
	}
	got := hex.EncodeToString(sum.Sum(nil))
	switch {
	case i.SHA256 != "" && i.SHA256 != got:
		return i, notDeclared(got, i.SHA256)
	case u.content != "" && u.content != got:
		return i, inventory.Invalid("content", "send the file again",
			"the file's SHA-256 is %s and the sender's was %s: it was changed while it was sent; nothing was kept", got, u.content)
	case refusal != nil:
		return i, inventory.Invalid("image "+i.Name, refusal.Remedy, "%s; nothing was kept", refusal.What)
	}
	i.Size, i.FirstSeen, i.SHA256 = checked.Load(), i.SHA256 == "", got
	i.Format, i.DiskSize, i.Contents, i.Warning = d.Format, d.Size, d.Contents, d.Warning
	if d.Installer {
		i.Use = inventory.UseInstaller
		if i.DiskSize == 0 && i.Format == diskimage.Raw {
			i.DiskSize = i.Size
		}
	}
	return i, nil
}

// describe returns the format of a file that is used for a disk or for an installer.
func describe(ctx context.Context, r io.Reader, use string) (diskimage.Description, error) {
	if use != inventory.UseInstaller {
		return diskimage.Describe(ctx, r)
	}
	head, err := io.ReadAll(io.LimitReader(r, diskimage.HeadSize))
	if err != nil {
		return diskimage.Description{}, err
	}
	if len(head) == 0 {
		return diskimage.Description{}, &diskimage.Refusal{What: "the file is empty", Remedy: "get it again"}
	}
	return diskimage.DescribeInstaller(head)
}

// counter counts the bytes that are written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// drain reads r to its end or until ctx ends.
func drain(ctx context.Context, r io.Reader) error {
	for {
		_, err := io.CopyN(io.Discard, r, checkEvery)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}
