package main

import (
	"archive/tar"
	"compress/gzip"
	_ "crypto/sha256" // the algorithm of digest.Canonical
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// source describes the inputs of an image.
type source struct {
	Bin     string // directory with ingot, ipxe/ and agentos/
	Root    string // root filesystem of the host: libraries, ipmitool, certificates
	Name    string // NAME:TAG
	Version string
}

// built describes a finished image.
type built struct {
	File, Platform string
	Digest         digest.Digest
	Size           int64
}

// dockerManifest is an entry of manifest.json. If the container engine does not support the OCI layout, as on many NAS,
// "docker load" reads this file.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// entry is a file or a directory of a layer.
type entry struct {
	file string // path on this host of the file to copy; if empty, the content is in text
	text string
	mode int64
	dir  bool
	own  bool // owned by the image's user, not by root
	caps bool // the file gets the capabilities fileCapabilities
}

// user is the uid and the gid of the processes in the image.
const user = 65532

// capabilityRecord is the PAX record for the capabilities of a file in a tar archive. fileCapabilities is the value:
// NET_BIND_SERVICE and NET_RAW, permitted and effective, as the kernel stores them (struct vfs_cap_data, revision 2). The
// kernel refuses to start the program in a container that lacks one of these capabilities.
const (
	capabilityRecord = "SCHILY.xattr.security.capability"
	fileCapabilities = "\x01\x00\x00\x02\x00\x24\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)

// epoch is the modification time of all files, so that the same inputs give the same bytes.
var epoch = time.Unix(0, 0).UTC()

// build makes the image in dir, which must be empty.
func build(s source, dir string) (built, error) {
	system, arch, err := s.system()
	if err != nil {
		return built{}, err
	}

	boot, err := s.boot()
	if err != nil {
		return built{}, err
	}

	im := newImageConfig(architectures[arch].name, s.Version)
	m := oci.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageManifest}
	blobs := map[string]string{} // name in the archive → file
	docker := dockerManifest{RepoTags: []string{s.Name}}
	for n, l := range []struct {
		what    string
		entries map[string]entry
	}{
		{"libraries, ipmitool, certificates", system},
		{"boot loaders and the agent's system", boot},
		{"ingot", map[string]entry{"usr/bin/ingot": {file: filepath.Join(s.Bin, "ingot"), mode: 0o755, caps: true}}},
	} {
		file := filepath.Join(dir, fmt.Sprintf("layer%d", n))
		d, diff, err := writeLayer(file, l.entries)
		if err != nil {
			return built{}, fmt.Errorf("making the layer of %s: %w", l.what, err)
		}
		m.Layers = append(m.Layers, d)
		im.RootFS.DiffIDs = append(im.RootFS.DiffIDs, diff)
		im.History = append(im.History, oci.History{Created: &epoch, CreatedBy: l.what})
		blobs[blob(d.Digest)] = file
		docker.Layers = append(docker.Layers, blob(d.Digest))
	}

	documents := map[string][]byte{}
	document := func(mediaType string, v any) (oci.Descriptor, error) {
		b, err := json.Marshal(v)
		if err != nil {
			return oci.Descriptor{}, err
		}
		d := oci.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
		documents[blob(d.Digest)] = b
		return d, nil
	}

	if m.Config, err = document(oci.MediaTypeImageConfig, im); err != nil {
		return built{}, err
	}
	docker.Config = blob(m.Config.Digest)
	top, err := document(oci.MediaTypeImageManifest, m)
	if err != nil {
		return built{}, err
	}

	top.Platform = &im.Platform
	if top.Annotations, err = nameAnnotations(s.Name); err != nil {
		return built{}, err
	}
	if err := addIndexes(documents, top, docker); err != nil {
		return built{}, err
	}

	out := filepath.Join(dir, "image.tar")
	if err := writeArchive(out, documents, blobs); err != nil {
		return built{}, err
	}

	st, err := os.Stat(out)
	if err != nil {
		return built{}, err
	}

	return built{File: out, Digest: top.Digest, Platform: im.OS + "/" + im.Architecture, Size: st.Size()}, nil
}

// nameAnnotations returns the annotations from which container engines take the image's name, NAME:TAG.
func nameAnnotations(name string) (map[string]string, error) {
	_, tag, ok := strings.Cut(name, ":")
	if !ok {
		return nil, fmt.Errorf("invalid image name %q; must be NAME:TAG", name)
	}
	return map[string]string{
		oci.AnnotationRefName:      tag,
		"io.containerd.image.name": "docker.io/library/" + name,
	}, nil
}

// addIndexes adds the documents by which a container engine finds the manifest top: those of the OCI layout, and
// manifest.json with docker as its entry.
func addIndexes(documents map[string][]byte, top oci.Descriptor, docker dockerManifest) (err error) {
	index := oci.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageIndex, Manifests: []oci.Descriptor{top},
	}
	for name, v := range map[string]any{
		oci.ImageLayoutFile: oci.ImageLayout{Version: oci.ImageLayoutVersion},
		oci.ImageIndexFile:  index,
		"manifest.json":     []dockerManifest{docker},
	} {
		if documents[name], err = json.Marshal(v); err != nil {
			return err
		}
	}
	return nil
}

// newImageConfig returns the configuration of the image, without layers.
func newImageConfig(architecture, version string) oci.Image {
	return oci.Image{
		Created: &epoch, Platform: oci.Platform{Architecture: architecture, OS: "linux"}, RootFS: oci.RootFS{Type: "layers"},
		Config: oci.ImageConfig{
			User:       fmt.Sprintf("%d:%d", user, user),
			Env:        []string{"PATH=/usr/bin", "HOME=/tmp", "XDG_CONFIG_HOME=/etc", "XDG_STATE_HOME=/var/lib"},
			Entrypoint: []string{"/usr/bin/ingot"}, Cmd: []string{"serve"}, WorkingDir: "/",
			Volumes: map[string]struct{}{"/etc/ingot": {}, "/var/lib/ingot": {}},
			Labels: map[string]string{
				oci.AnnotationTitle: "ingot", oci.AnnotationVersion: version, oci.AnnotationLicenses: "Apache-2.0",
			},
		},
	}
}

// blob returns the path, in the archive, of the blob with the digest d.
func blob(d digest.Digest) string {
	return path.Join(oci.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// writeLayer writes a gzipped layer. It returns the layer's descriptor and the
// digest of the uncompressed layer.
func writeLayer(file string, entries map[string]entry) (d oci.Descriptor, diff digest.Digest, err error) {
	f, err := os.Create(file)
	if err != nil {
		return d, "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed, plain := digest.Canonical.Digester(), digest.Canonical.Digester()
	z := gzip.NewWriter(io.MultiWriter(f, packed.Hash()))
	if err := writeTar(io.MultiWriter(z, plain.Hash()), withParents(entries)); err != nil {
		return d, "", err
	}
	if err := z.Close(); err != nil {
		return d, "", err
	}

	size, err := f.Seek(0, io.SeekCurrent)
	d = oci.Descriptor{MediaType: oci.MediaTypeImageLayerGzip, Digest: packed.Digest(), Size: size}
	return d, plain.Digest(), err
}

// withParents returns entries and the directories above them.
func withParents(entries map[string]entry) map[string]entry {
	out := maps.Clone(entries)
	for name := range entries {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := out[dir]; !ok {
				out[dir] = entry{dir: true, mode: 0o755}
			}
		}
	}

	return out
}

// writeTar writes entries sorted by name, with the time epoch.
func writeTar(w io.Writer, entries map[string]entry) error {
	t := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := writeEntry(t, name, entries[name]); err != nil {
			return fmt.Errorf("adding %q: %w", name, err)
		}
	}

	return t.Close()
}

func writeEntry(t *tar.Writer, name string, e entry) error {
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: e.mode, Size: int64(len(e.text)), ModTime: epoch, Format: tar.FormatUSTAR,
	}

	if e.own {
		h.Uid, h.Gid = user, user
	}
	if e.caps {
		h.Format, h.PAXRecords = tar.FormatPAX, map[string]string{capabilityRecord: fileCapabilities}
	}

	if e.dir {
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return t.WriteHeader(h)
	}

	if e.file == "" {
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.WriteString(t, e.text)
		return err
	}

	f, err := os.Open(e.file)
	if err != nil {
		return err
	}
	defer f.Close() // ignore the error: the file was only read
	st, err := f.Stat()
	if err != nil {
		return err
	}

	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", e.file)
	}
	h.Size = st.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}

	_, err = io.Copy(t, f) // if the size of the file changes, the archive returns an error
	return err
}

// writeArchive writes documents and blobs to a tar archive. Keys are paths in the archive.
func writeArchive(file string, documents map[string][]byte, blobs map[string]string) (err error) {
	entries := map[string]entry{}
	for name, b := range documents {
		entries[name] = entry{text: string(b), mode: 0o644}
	}

	for name, f := range blobs {
		entries[name] = entry{file: f, mode: 0o644}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return writeTar(f, withParents(entries))
}

// system returns the layer with the files from the root filesystem, and the image's architecture.
func (s source) system() (map[string]entry, elf.Machine, error) {
	ipmitool := filepath.Join(s.Root, "usr/bin/ipmitool")
	c := &closure{root: s.Root, found: map[string]string{}}
	for _, program := range []string{filepath.Join(s.Bin, "ingot"), ipmitool} {
		if err := c.add(program); err != nil {
			return nil, 0, err
		}
	}

	const users = "root:x:0:0:root:/root:/sbin/nologin\ningot:x:65532:65532:ingot:/var/lib/ingot:/sbin/nologin\n" +
		"nobody:x:65534:65534:nobody:/:/sbin/nologin\n"
	out := map[string]entry{
		"usr/bin/ipmitool":  {file: ipmitool, mode: 0o755},
		"etc/passwd":        {text: users, mode: 0o644},
		"etc/group":         {text: "root:x:0:\ningot:x:65532:\nnogroup:x:65534:\n", mode: 0o644},
		"etc/nsswitch.conf": {text: "hosts: files dns\n", mode: 0o644},
		"etc/ingot":         {dir: true, mode: 0o750, own: true},
		"var/lib/ingot":     {dir: true, mode: 0o750, own: true},
		"root":              {dir: true, mode: 0o700},
		"tmp":               {dir: true, mode: 0o1777},
	}

	// Without the first file ipmitool prints warnings; without the second, no https server can be verified.
	for _, name := range []string{"usr/share/misc/enterprise-numbers.txt", "etc/ssl/certs/ca-certificates.crt"} {
		out[name] = entry{file: filepath.Join(s.Root, name), mode: 0o644}
	}

	for _, dir := range []string{"dev", "proc", "sys", "run"} {
		out[dir] = entry{dir: true, mode: 0o755}
	}
	for at, file := range c.found {
		out[at] = entry{file: file, mode: 0o755}
	}

	return out, c.arch, nil
}

// boot returns the layer with the files that machines load, in the directories in which "ingot init" looks for them.
func (s source) boot() (map[string]entry, error) {
	out := map[string]entry{}
	for _, f := range []struct{ from, to string }{
		{"ipxe/undionly.kpxe", "usr/lib/ipxe"},
		{"ipxe/snponly.efi", "usr/lib/ipxe"},
		{"ipxe/ipxe.efi", "usr/lib/ipxe"},
		{"ipxe/ipxe.iso", "usr/lib/ipxe"},
		{"ipxe/shimx64.efi", "usr/lib/ipxe"},
		{"ipxe/grubx64.efi", "usr/lib/ipxe"},
		{"agentos/vmlinuz", "usr/share/ingot"},
		{"agentos/initramfs", "usr/share/ingot"},
		{"agentos/runtime.tar.zst", "usr/share/ingot"},
	} {
		file := filepath.Join(s.Bin, f.from)
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%w (build the file with: make build)", err)
		}
		out[path.Join(f.to, path.Base(f.from))] = entry{file: file, mode: 0o644}
	}

	return out, nil
}
