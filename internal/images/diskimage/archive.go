package diskimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// EntryPath returns the path of an archive's entry in the folder into which the archive is extracted. The path begins
// with "/", which is that folder. A name that leads out of the folder is an error.
func EntryPath(name string) (string, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return "", errors.New("the name is empty or contains a zero byte")
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", fmt.Errorf(`the name %q contains "..": the file would be outside of the target folder`, name)
	}
	return path.Join("/", name), nil
}

// checkEntry returns an error for an entry that an agent would refuse.
func checkEntry(h *tar.Header) error {
	if _, err := EntryPath(h.Name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeSymlink, tar.TypeFifo, tar.TypeChar, tar.TypeBlock,
		tar.TypeDir, tar.TypeXGlobalHeader:
		return nil
	case tar.TypeLink:
		_, err := EntryPath(h.Linkname)
		return err
	}
	return fmt.Errorf("unknown type %q", h.Typeflag)
}

// lookArchive reads a tar archive to its end and sets d.Size and d.Contents. If an agent could not extract the archive,
// the error is a *Refusal.
func (d *Description) lookArchive(content io.Reader, most int64) error {
	counted := &counter{in: io.LimitReader(content, most+1)}
	in := tar.NewReader(counted)
	entries, root := 0, false
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if _, refused := errors.AsType[*Refusal](err); refused {
			return err
		}
		if err != nil {
			return refuse(againRemedy, "the archive is cut short or damaged after %d entries: %v", entries, err)
		}
		if err := checkEntry(h); err != nil {
			return refuse("make the archive without that entry", "entry %d of the archive, %.200q: %v", entries+1, h.Name, err)
		}
		name := path.Join("/", h.Name)
		root = root || name == "/etc/fstab" || name == "/etc/os-release" || name == "/usr/lib/os-release"
		entries++
	}
	if _, err := io.Copy(io.Discard, counted); err != nil { // the padding after the last entry
		return err
	}
	if !bytes.Equal(counted.tail, make([]byte, tarBlock)) {
		return refuse(againRemedy, "the archive is cut short: the end is missing after %d entries", entries)
	}
	if d.Size = counted.n; d.Size > most {
		return refuse("split it", "the archive is larger than %d GiB", most>>30)
	}

	d.Contents = fmt.Sprintf("tar archive, %d entries", entries)
	if root {
		d.Contents = fmt.Sprintf("tar archive of a root file system, %d entries", entries)
	}
	return nil
}

// tarBlock is the block size of a tar archive in bytes. Blocks of zeros end the archive.
const tarBlock = 512

// A counter counts the bytes that are read and keeps the last tarBlock of them.
type counter struct {
	in   io.Reader
	n    int64
	tail []byte
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.n += int64(n)
	c.tail = append(c.tail, p[max(0, n-tarBlock):n]...)
	c.tail = append(c.tail[:0], c.tail[max(0, len(c.tail)-tarBlock):]...)
	return n, err
}
