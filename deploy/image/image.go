package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
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
)

// source names the parts of an image.
type source struct {
	Bin     string // ingot, ipxe/, agentos/
	Root    string // root filesystem of the host: libraries, ipmitool, certificates
	Name    string // NAME:TAG
	Version string
}

// built is an image.
type built struct {
	File, Digest, Platform string
	Size                   int64
}

// The media types of an OCI image (image-spec 1.1). The types below have the fields that are written here.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type imageConfig struct {
	Created time.Time `json:"created"`
	platform
	Config  runConfig `json:"config"`
	RootFS  rootFS    `json:"rootfs"`
	History []history `json:"history"`
}

type runConfig struct {
	User       string              `json:"User"`
	Env        []string            `json:"Env"`
	Entrypoint []string            `json:"Entrypoint"`
	Cmd        []string            `json:"Cmd"`
	Volumes    map[string]struct{} `json:"Volumes"`
	WorkingDir string              `json:"WorkingDir"`
	Labels     map[string]string   `json:"Labels"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// dockerManifest is what "docker load" reads if the engine does not support the OCI layout, as on many NAS.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// entry is a file or a directory of a layer.
type entry struct {
	file string // on the host; "" for content
	text string
	mode int64
	dir  bool
}

// epoch is the time of all files, so that equal inputs give equal bytes.
var epoch = time.Unix(0, 0).UTC()

// build makes the image in an empty directory.
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
	m := manifest{SchemaVersion: 2, MediaType: typeManifest}
	blobs := map[string]string{} // name in the archive → file
	docker := dockerManifest{RepoTags: []string{s.Name}}
	for n, l := range []struct {
		what    string
		entries map[string]entry
	}{
		{"libraries, ipmitool, certificates", system},
		{"boot loaders and the agent's system", boot},
		{"ingot", map[string]entry{"usr/bin/ingot": {file: filepath.Join(s.Bin, "ingot"), mode: 0o755}}},
	} {
		file := filepath.Join(dir, fmt.Sprintf("layer%d", n))
		d, diff, err := writeLayer(file, l.entries)
		if err != nil {
			return built{}, fmt.Errorf("making the layer of %s: %w", l.what, err)
		}
		m.Layers = append(m.Layers, d)
		im.RootFS.DiffIDs = append(im.RootFS.DiffIDs, diff)
		im.History = append(im.History, history{epoch, l.what})
		blobs[blob(d.Digest)] = file
		docker.Layers = append(docker.Layers, blob(d.Digest))
	}

	documents := map[string][]byte{}
	document := func(mediaType string, v any) (descriptor, error) {
		b, err := json.Marshal(v)
		if err != nil {
			return descriptor{}, err
		}
		d := descriptor{MediaType: mediaType, Digest: digest(b), Size: int64(len(b))}
		documents[blob(d.Digest)] = b
		return d, nil
	}

	if m.Config, err = document(typeConfig, im); err != nil {
		return built{}, err
	}
	docker.Config = blob(m.Config.Digest)
	top, err := document(typeManifest, m)
	if err != nil {
		return built{}, err
	}

	top.Platform = &im.platform
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

	return built{out, top.Digest, im.OS + "/" + im.Architecture, st.Size()}, nil
}

// nameAnnotations returns the annotations by which engines name the image NAME:TAG.
func nameAnnotations(name string) (map[string]string, error) {
	_, tag, ok := strings.Cut(name, ":")
	if !ok {
		return nil, fmt.Errorf("the image's name %q has no tag", name)
	}
	return map[string]string{
		"org.opencontainers.image.ref.name": tag,
		"io.containerd.image.name":          "docker.io/library/" + name,
	}, nil
}

// addIndexes adds the documents by which an engine finds the manifest: OCI's, and Docker's.
func addIndexes(documents map[string][]byte, top descriptor, docker dockerManifest) (err error) {
	for name, v := range map[string]any{
		"oci-layout":    map[string]string{"imageLayoutVersion": "1.0.0"},
		"index.json":    index{2, typeIndex, []descriptor{top}},
		"manifest.json": []dockerManifest{docker},
	} {
		if documents[name], err = json.Marshal(v); err != nil {
			return err
		}
	}
	return nil
}

// newImageConfig returns the configuration of the image, without its layers.
func newImageConfig(architecture, version string) imageConfig {
	return imageConfig{
		Created: epoch, platform: platform{architecture, "linux"}, RootFS: rootFS{Type: "layers"},
		Config: runConfig{
			User: "0:0", Env: []string{"PATH=/usr/bin", "HOME=/root"},
			Entrypoint: []string{"/usr/bin/ingot"}, Cmd: []string{"serve"}, WorkingDir: "/",
			Volumes: map[string]struct{}{"/etc/ingot": {}, "/var/lib/ingot": {}},
			Labels: map[string]string{
				"org.opencontainers.image.title":    "ingot",
				"org.opencontainers.image.version":  version,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	}
}

func blob(digest string) string {
	return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:")
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// writeLayer writes a packed layer and returns its descriptor and the digest
// of what is in it.
func writeLayer(file string, entries map[string]entry) (d descriptor, diff string, err error) {
	f, err := os.Create(file)
	if err != nil {
		return d, "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed, plain := sha256.New(), sha256.New()
	z := gzip.NewWriter(io.MultiWriter(f, packed))
	if err := writeTar(io.MultiWriter(z, plain), withParents(entries)); err != nil {
		return d, "", err
	}
	if err := z.Close(); err != nil {
		return d, "", err
	}

	size, err := f.Seek(0, io.SeekCurrent)
	d = descriptor{MediaType: typeLayer, Digest: "sha256:" + hex.EncodeToString(packed.Sum(nil)), Size: size}
	return d, "sha256:" + hex.EncodeToString(plain.Sum(nil)), err
}

// withParents adds the directories that entries lie in.
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

// writeTar writes entries in the order of their names, owned by root, without
// any time.
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
	defer f.Close() // only read from
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

	_, err = io.Copy(t, f) // a file that grows or shrinks during this is an error of the archive
	return err
}

// writeArchive puts documents and blobs into one file.
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

// system returns the layer of the host's files.
func (s source) system() (map[string]entry, elf.Machine, error) {
	ipmitool := filepath.Join(s.Root, "usr/bin/ipmitool")
	c := &closure{root: s.Root, found: map[string]string{}}
	for _, program := range []string{filepath.Join(s.Bin, "ingot"), ipmitool} {
		if err := c.add(program); err != nil {
			return nil, 0, err
		}
	}

	const users = "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"
	out := map[string]entry{
		"usr/bin/ipmitool":  {file: ipmitool, mode: 0o755},
		"etc/passwd":        {text: users, mode: 0o644},
		"etc/group":         {text: "root:x:0:\nnogroup:x:65534:\n", mode: 0o644},
		"etc/nsswitch.conf": {text: "hosts: files dns\n", mode: 0o644},
		"etc/ingot":         {dir: true, mode: 0o750},
		"var/lib/ingot":     {dir: true, mode: 0o750},
		"root":              {dir: true, mode: 0o700},
		"tmp":               {dir: true, mode: 0o1777},
	}

	// Without these ipmitool prints warnings, and image servers with https cannot be verified.
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

// boot returns the layer of the files that machines load, in the folders where "ingot init" looks for them.
func (s source) boot() (map[string]entry, error) {
	out := map[string]entry{}
	for _, f := range []struct{ from, to string }{
		{"ipxe/undionly.kpxe", "usr/lib/ipxe"},
		{"ipxe/snponly.efi", "usr/lib/ipxe"},
		{"ipxe/ipxe.efi", "usr/lib/ipxe"},
		{"agentos/vmlinuz", "usr/share/ingot"},
		{"agentos/initramfs", "usr/share/ingot"},
	} {
		file := filepath.Join(s.Bin, f.from)
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%w (make build makes it)", err)
		}
		out[path.Join(f.to, path.Base(f.from))] = entry{file: file, mode: 0o644}
	}

	return out, nil
}
