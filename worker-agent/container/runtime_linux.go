package container

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// extractRuntime extracts the archive of the container runtime, a compressed tar archive with the SHA-256 want, into dir.
func extractRuntime(ctx context.Context, archive io.Reader, dir, want string) error {
	sum := sha256.New()
	archive = io.TeeReader(archive, sum)
	content, err := diskimage.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }() // it is read to its end below
	root, err := filesys.OpenTree(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := filesys.NewExtraction(ctx, content).ExtractInto(root, "/"); err != nil {
		return err
	}
	for _, rest := range []io.Reader{content, archive} { // the digest covers the padding, too
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return err
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("its SHA-256 is %s, but the order has %s", got, want)
	}
	return nil
}
