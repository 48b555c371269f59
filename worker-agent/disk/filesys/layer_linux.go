package filesys

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// Names of whiteouts (OCI image specification 1.1, "Image Layer Filesystem Changeset").
const (
	whiteout       = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

// A layer is what an extraction knows about the layer of a container image that it extracts.
type layer struct {
	own map[string]bool // paths of the entries of this layer, which its whiteouts do not remove
}

// NewLayer returns the extraction of a layer of a container image over the layers below. A whiteout removes what the layers below have at
// its path. Device nodes are refused.
func NewLayer(ctx context.Context, archive io.Reader) *extraction {
	x := NewExtraction(ctx, archive)
	x.layer = &layer{own: map[string]bool{}}
	return x
}

// apply is called before the entry base is created in the folder parent. It carries out a whiteout, and returns true for one. For another
// entry, it removes a folder of a layer below that the entry replaces. It does nothing if l is nil.
func (l *layer) apply(parent int, base string, h *tar.Header) (done bool, err error) {
	if l == nil {
		return false, nil
	}
	if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
		return false, errors.New("an image with device nodes is not allowed: the agent makes the devices of a container")
	}
	folder := fmt.Sprintf("/proc/self/fd/%d", parent)
	at, err := os.Readlink(folder)
	if err != nil {
		return false, err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }() // opened only for names

	hidden, isWhiteout := strings.CutPrefix(base, whiteout)
	switch {
	case base == opaqueWhiteout:
		return true, l.hideAll(root, at)
	case isWhiteout && (hidden == "" || hidden == "." || hidden == ".."):
		return false, errors.New("the whiteout has no name")
	case isWhiteout:
		return true, l.hide(root, at, hidden)
	}

	for p := path.Join(at, base); !l.own[p] && p != "/"; p = path.Dir(p) {
		l.own[p] = true
	}
	if st, err := root.Lstat(base); err == nil && st.IsDir() && h.Typeflag != tar.TypeDir && base != "." {
		return false, root.RemoveAll(base)
	}
	return false, nil
}

// hideAll removes all names in the folder root that this layer does not have. at is the path of the folder.
func (l *layer) hideAll(root *os.Root, at string) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close() // opened only for reading
	for _, name := range names {
		err = errors.Join(err, l.hide(root, at, name))
	}
	return err
}

// hide removes name in the folder root, except for what this layer has below it.
func (l *layer) hide(root *os.Root, at, name string) error {
	if !l.own[path.Join(at, name)] {
		return root.RemoveAll(name)
	}
	if st, err := root.Lstat(name); err != nil || !st.IsDir() {
		return err
	}
	below, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = below.Close() }() // opened only for names
	return l.hideAll(below, path.Join(at, name))
}
