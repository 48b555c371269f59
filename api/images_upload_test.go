package api

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// cutUpload sends the first n bytes of text, and then the connection breaks.
func (s *site) cutUpload(path, text string, n int) {
	s.T.Helper()
	r := httptest.NewRequestWithContext(s.T.Context(), http.MethodPut, path, broken{strings.NewReader(text[:n])})
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Authorization", "Bearer "+adminToken)
	rec := httptest.NewRecorder()
	s.operator.ServeHTTP(rec, r)
	require.Equal(s.T, http.StatusBadRequest, rec.Code, rec.Body)
}

// contents returns what lies in the image directory, by content; what was converted is decompressed.
func (s *site) contents() (out []string) {
	s.T.Helper()
	for _, name := range s.files() {
		b, err := os.ReadFile(filepath.Join(s.cfg.ImageDir, name))
		require.NoError(s.T, err)
		if !strings.HasPrefix(name, ".") && bytes.HasPrefix(b, []byte("\x28\xb5\x2f\xfd")) {
			z, err := zstd.NewReader(nil)
			require.NoError(s.T, err)
			b, err = z.DecodeAll(b, nil)
			require.NoError(s.T, err)
			z.Close()
		}
		out = append(out, string(b))
	}
	return out
}

// A kill in the middle of an upload keeps the old image, and a partial upload is never
// resumed with another file.
func TestS18AnInterruptedUploadKeepsTheOldImage(t *testing.T) {
	s := newSite(t)
	a, b, c := "A"+strings.Repeat("a", 8999), "B"+strings.Repeat("b", 8999), "C"+strings.Repeat("c", 8999)
	decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/prod?size=9000&content="+sumOf(a), a), http.StatusCreated)
	s.cutUpload("/v1/images/prod?size=9000&content="+sumOf(b), b, 5000)

	current := func() inventory.Image {
		return decode[inventory.Image](t, s.do(http.MethodGet, "/v1/images/prod", nil), http.StatusOK)
	}
	require.Equal(t, sumOf(a), current().Given().SHA256)
	require.Contains(t, s.contents(), a)

	// The client that sends C asks where to go on, as it did before.
	at := s.do(http.MethodHead, "/v1/images/prod/upload?content="+sumOf(c), nil).Header().Get(uploadOffset)
	require.Equal(t, "0", at, "nothing of C is there")
	require.Equal(t, "5000", s.do(http.MethodHead, "/v1/images/prod/upload?content="+sumOf(b), nil).Header().Get(uploadOffset))

	// Bytes of another file are refused, whatever the client believes, and A stays.
	require.Equal(t, http.StatusConflict, s.do(http.MethodPut, "/v1/images/prod?offset=5000&size=9000&content="+sumOf(c), c[5000:]).Code)
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPut, "/v1/images/prod?offset=5000&size=9000", c[5000:]).Code)
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPut, "/v1/images/prod?offset=5000&size=9000&content="+sumOf(b), c[5000:]).Code)
	require.Equal(t, sumOf(a), current().Given().SHA256)
	require.Equal(t, []string{a}, s.contents(), "a hybrid of B and C is not kept")

	i := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/prod?size=9000&content="+sumOf(c), c), http.StatusCreated)
	require.Equal(t, sumOf(c), i.Given().SHA256)
	require.True(t, i.FirstSeen, "the sender's digest of its own file declares nothing")
	require.Equal(t, []string{c}, s.contents())
}

// plan stores an open run whose plan writes the image, as the activity Plan does.
func (s *site) plan(run, machine string, i inventory.Image) {
	s.T.Helper()
	ctx, base := s.T.Context(), "http://10.0.0.1:7080/images"
	require.NoError(
		s.T,
		s.Store.Workflows.PutWorkflow(
			ctx,
			inventory.Workflow{
				Run:     run,
				ID:      "machine/" + machine,
				Machine: machine,
				State:   inventory.StatePreparing,
				Phase:   inventory.PhasePlan,
				Started: s.Clock.Now(),
				Updated: s.Clock.Now(),
				Seq:     1,
			},
		),
	)
	require.NoError(s.T, s.Store.Plans.PutPlan(ctx, inventory.Plan{Run: run, Digest: "d", ImagesURL: base, Actions: []action.Action{{
		Name: "write", Image: action.Image2Disk, Environment: map[string]string{"IMG_URL": base + "/" + i.Name, "IMG_SHA256": i.SHA256},
	}}}))
}

func (s *site) endRun(run, machine string) {
	s.T.Helper()
	require.NoError(
		s.T,
		s.Store.Workflows.PutWorkflow(
			s.T.Context(),
			inventory.Workflow{
				Run:     run,
				ID:      "machine/" + machine,
				Machine: machine,
				State:   inventory.StateFailed,
				Phase:   inventory.PhaseFailed,
				Started: s.Clock.Now(),
				Ended:   s.Clock.Now(),
				Updated: s.Clock.Now(),
				Seq:     2,
			},
		),
	)
}

// A file stays while a plan of an open run needs it, and is removed after that.
func TestAnOpenPlanKeepsTheFileOfAReplacedImage(t *testing.T) {
	s := newSite(t)
	a := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/prod", "A"), http.StatusCreated)
	s.plan("r1", "m1", a)
	decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/prod", "B"), http.StatusCreated)
	require.ElementsMatch(t, []string{"A", "B"}, s.contents())
	s.endRun("r1", "m1")
	decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/other", "C"), http.StatusCreated)
	require.ElementsMatch(t, []string{"B", "C"}, s.contents())
}

// An inventory removes the files of its own images alone: the image directory
// may be older than it, or newer (another data directory, a restored backup).
func TestFilesThatTheInventoryNeverKnewStay(t *testing.T) {
	s := newSite(t)
	foreign := filepath.Join(s.cfg.ImageDir, sumOf("of another inventory"))
	require.NoError(t, os.WriteFile(foreign, []byte("of another inventory"), 0o600))
	s.api.RemoveUnusedImages(t.Context())
	decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/prod", "A"), http.StatusCreated)
	decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/prod", "B"), http.StatusCreated)
	require.ElementsMatch(t, []string{"B", "of another inventory"}, s.contents())
}

// interruptedStore ends the request before it stores an image.
type interruptedStore struct {
	Store
	end context.CancelFunc
}

func (s interruptedStore) PutImage(ctx context.Context, i inventory.Image, by string) error {
	s.end()
	return s.Store.PutImage(ctx, i, by)
}

// If the client disconnects once its file is in place, the image is still stored.
func TestADisconnectAfterTheRenameKeepsTheImage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newSite(t, func(c *siteConfig) { c.Store = interruptedStore{c.Store, cancel} })
	r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/v1/images/prod", strings.NewReader("A"))
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Authorization", "Bearer "+adminToken)
	s.operator.ServeHTTP(httptest.NewRecorder(), r)
	i, err := s.Store.Images.Image(t.Context(), "prod")
	require.NoError(t, err)
	require.Equal(t, []string{i.SHA256}, s.files())
}

// refusingStore stores no image.
type refusingStore struct{ Store }

func (refusingStore) PutImage(context.Context, inventory.Image, string) error {
	return inventory.ErrFull
}

// A file whose image could not be stored is removed later.
func TestAFileWithoutItsImageIsRemoved(t *testing.T) {
	s := newSite(t, func(c *siteConfig) { c.Store = refusingStore{c.Store} })
	require.Equal(t, http.StatusInsufficientStorage, s.do(http.MethodPut, "/v1/images/prod", "A").Code)
	require.Equal(t, []string{"A"}, s.contents())
	s.api.RemoveUnusedImages(t.Context())
	require.Empty(t, s.contents())
}

// Two images may be one file.
func TestAFileStaysForItsOtherImage(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"one", "two"} {
		decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/"+name, "same"), http.StatusCreated)
	}
	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/images/one", nil).Code)
	require.True(t, decode[struct{ OK bool }](t, s.do(http.MethodPost, "/v1/images/two/verify", nil), http.StatusOK).OK)
	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/images/two", nil).Code)
	require.Empty(t, s.files())
}

func TestDeleteLooksAtPlansTemplatesAndMachines(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	for _, name := range []string{"planned", "written", "kernel-x", "debian-12", "free"} {
		decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/"+name, "image "+name), http.StatusCreated)
	}
	i, err := s.Store.Images.Image(t.Context(), "planned")
	require.NoError(t, err)
	s.plan("r1", "m2", i) // its record names no image
	for name, source := range map[string]string{
		"writes":   "tasks:\n- name: t\n  worker: m1\n  actions:\n  - {name: w, image: image2disk, timeout: 9, environment: {IMG_URL: \"{{ .images_url }}/written\"}}\n",
		"installs": "installer: {kernel: kernel-x, initrd: [initrd-x], payload: initrd-x, complete: webhook}\n",
	} {
		require.NoError(
			t,
			s.Store.Templates.PutTemplate(
				t.Context(),
				inventory.Template{Name: name, Source: "version: \"0.1\"\nname: " + name + "\n" + source},
				"test",
			),
		)
	}
	for name, by := range map[string]string{"planned": "run r1", "written": "used by template writes", "kernel-x": "used by template installs"} {
		a := decode[answer](t, s.do(http.MethodDelete, "/v1/images/"+name, nil), http.StatusConflict)
		require.Contains(t, a.Error, by, name)
	}
	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/images/free", nil).Code)
	require.Equal(
		t,
		http.StatusNoContent,
		s.do(http.MethodDelete, "/v1/images/written?force=true", nil).Code,
		"the word may stand there for something else",
	)
	require.Equal(t, http.StatusConflict, s.do(http.MethodDelete, "/v1/images/planned?force=true", nil).Code, "a run needs it")
}

// unused is what a prune would delete.
func (s *site) unused() (names []string) {
	s.T.Helper()
	for _, i := range decode[httpapi.List[inventory.Image]](s.T, s.do(http.MethodGet, "/v1/images?unused=true", nil), http.StatusOK).Items {
		names = append(names, i.Name)
	}
	return names
}

// Labels, documents and a stored lab file name the images that installers boot and fetch.
func TestDeleteLooksAtLabelsDocumentsAndLabs(t *testing.T) {
	s := newSite(t)
	s.stock()
	require.Len(t, s.unused(), 7)
	decode[genesis.Plan](t, s.do(http.MethodPut, "/v1/genesis/home", exampleLab(t)), http.StatusOK)
	require.Empty(t, s.unused())
	a := decode[answer](t, s.do(http.MethodDelete, "/v1/images/talos-initramfs", nil), http.StatusConflict)
	require.Contains(t, a.Error, `image "talos-initramfs" is used by lab file home`)

	m := machine("m1", mac)
	m.Labels = map[string]string{"kernel": "linux-1"}
	m.UserData = inventory.NewSecret("install:\n  iso_url: http://10.0.0.1:7080/images/iso-1\n")
	require.NoError(t, s.Store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
	for name, query := range map[string]string{"linux-1": "?use=installer", "iso-1": "?use=installer", "install": ""} {
		decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/"+name+query, "image "+name), http.StatusCreated)
	}
	require.Equal(t, []string{"install"}, s.unused(), "a word of a document is not the name of a disk image")
	for _, name := range []string{"linux-1", "iso-1"} {
		a := decode[answer](t, s.do(http.MethodDelete, "/v1/images/"+name, nil), http.StatusConflict)
		require.Contains(t, a.Error, fmt.Sprintf("image %q is used by machine m1", name))
	}
	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/images/linux-1?force=true", nil).Code)
}

// noise is text of n bytes that cannot be compressed much.
func noise(n int) string {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return string(b)
}

func gz(t *testing.T, b []byte) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.String()
}

func zst(t *testing.T, b []byte) string {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	return string(w.EncodeAll(b, nil))
}

// diskOf is an image of size bytes with an MBR whose one partition has that many sectors from 2048 on, with ext4 in it.
func diskOf(size int, sectors uint32) []byte {
	b := make([]byte, size)
	b[446+4] = 0x83
	binary.LittleEndian.PutUint32(b[446+8:], 2048)
	binary.LittleEndian.PutUint32(b[446+12:], sectors)
	b[510], b[511] = 0x55, 0xaa
	if at := 2048*512 + 0x438; at+2 < size {
		b[at], b[at+1] = 0x53, 0xef
	}
	return b
}

// xzText and bz2Text are "not much of a disk\n", by xz and bzip2.
const (
	xzText  = "/Td6WFoAAATm1rRGAgAhARYAAAB0L+WjAQASbm90IG11Y2ggb2YgYSBkaXNrCgAAcNRlEQ7ebfsAASsTnAlI0h+2830BAAAAAARZWg=="
	bz2Text = "QlpoOTFBWSZTWfji+4gAAAbRgAAQQAAta44AIAAimTTTTGQpgACHYQ5QfktSEeOC7kinChIfHF9xAA=="
)

// Images that agents could not write, or that no machine would boot, are refused at the
// upload, with a remedy.
// tarOf returns a tar archive of small files.
func tarOf(t *testing.T, names ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Size: 1, Mode: 0o644}))
		_, err := w.Write([]byte("x"))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.String()
}

func TestAnImageIsReadToItsEndWhenItIsStored(t *testing.T) {
	disk := diskOf(4<<20, 4096)
	random := []byte(noise(1 << 20))
	tarred := tarOf(t, "etc/os-release", "etc/passwd")
	var zipped bytes.Buffer
	z := zip.NewWriter(&zipped)
	_, err := z.Create("disk.raw")
	require.NoError(t, err)
	require.NoError(t, z.Close())
	iso := make([]byte, 64<<10)
	copy(iso[32768:], "\x01CD001")
	xz, err := base64.StdEncoding.DecodeString(xzText)
	require.NoError(t, err)
	bz2, err := base64.StdEncoding.DecodeString(bz2Text)
	require.NoError(t, err)
	half := func(s string) string { return s[:len(s)/2] }

	s := newSite(t)
	for name, c := range map[string]struct{ body, says, remedy string }{
		"truncated-gz":   {half(gz(t, random)), "cut short", "ingot image add"},
		"truncated-zst":  {half(zst(t, random)), "cut short", "ingot image add"},
		"truncated-xz":   {string(xz[:40]), "cut short", "ingot image add"},
		"truncated-bz2":  {half(string(bz2)), "cut short", "ingot image add"},
		"truncated-raw":  {string(diskOf(2<<20, 4096)), "cut short", "ingot image add"},
		"damaged-gz":     {"\x1f\x8b" + strings.Repeat("compressed ", 1000), "damaged", "ingot image add"},
		"followed-gz":    {gz(t, disk) + "something else", "damaged", "ingot image add"},
		"truncated-tar":  {tarred[:700], "the archive is cut short", "get the file again"},
		"tar-outside":    {tarOf(t, "../etc/passwd"), `"../etc/passwd": the name`, "without that entry"},
		"qcow2":          {"QFI\xfb" + strings.Repeat("\x00", 600), "qcow2", "qemu-img convert"},
		"qcow2-gz":       {gz(t, []byte("QFI\xfb"+strings.Repeat("\x00", 600))), "qcow2", "uncompressed"},
		"twice":          {gz(t, []byte(gz(t, disk))), "compressed twice", "decompress"},
		"zip":            {zipped.String(), "zip archive", "unpack"},
		"iso":            {string(iso), "ISO 9660", "--installer"},
		"html":           {"\n\n  <!DOCTYPE html><html>", "web page", "image itself"},
		"html-uppercase": {"<HTML><head>", "web page", "image itself"},
		"empty":          {"", "empty", ""},
		"empty-gz":       {gz(t, nil), "empty", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := decode[answer](t, s.do(http.MethodPut, "/v1/images/x", c.body), http.StatusBadRequest)
			require.Contains(t, a.Error, c.says)
			require.Contains(t, a.Error, c.remedy)
			require.Empty(t, s.files())
		})
	}
	for name, c := range map[string]struct {
		body, query, format, contents, use string
		size                               int64
	}{
		"raw":      {body: string(disk), format: "raw", contents: "MBR, 1 partition (ext4)", size: 4 << 20},
		"gz":       {body: gz(t, disk), format: "gz", contents: "MBR, 1 partition (ext4)", size: 4 << 20},
		"zst":      {body: zst(t, disk), format: "zst", contents: "MBR, 1 partition (ext4)", size: 4 << 20},
		"xz":       {body: string(xz), format: "xz", size: 19},
		"bz2":      {body: string(bz2), format: "bz2", size: 19},
		"tar":      {body: tarred, format: "raw", contents: "root file system, 2 entries", use: inventory.UseArchive, size: int64(len(tarred))},
		"tar-gz":   {body: gz(t, []byte(tarred)), format: "gz", contents: "2 entries", use: inventory.UseArchive, size: int64(len(tarred))},
		"cpio":     {body: "070701" + strings.Repeat("0", 200), format: "raw", contents: "initramfs", use: inventory.UseInstaller, size: 206},
		"an ISO":   {body: string(iso), query: "?use=installer", format: "raw", contents: "ISO 9660", use: inventory.UseInstaller, size: 64 << 10},
		"anything": {body: gz(t, random)[:1000], query: "?use=installer", format: "gz", use: inventory.UseInstaller},
	} {
		t.Run(name, func(t *testing.T) {
			i := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/x"+c.query, c.body), http.StatusCreated)
			require.Equal(t, c.format, i.Given().Format)
			require.Equal(t, i.Use == "", i.Source != nil, "agents get disk images as frames, and installers their files")
			require.Equal(t, c.size, i.DiskSize)
			require.Contains(t, i.Contents, c.contents)
			require.Equal(t, c.use, i.Use)
		})
	}
}
