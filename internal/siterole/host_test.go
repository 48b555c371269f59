package siterole

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// An old copy of a data directory, without any peer, retires because of the marker in
// the place of the keys.
func TestMarkerRetiresEveryCopy(t *testing.T) {
	cfg := ownDirs(t)
	h, err := NewHost(testOptions(cfg))
	require.NoError(t, err)
	require.Equal(t, Active, h.file.Site().Role)
	require.NoFileExists(t, filepath.Join(cfg.DataDir, FileName), "a server without peers has no file")

	_, err = keyring.Create(cfg.KeyFile)
	require.NoError(t, err)
	var m Mark
	m.Retired.To, m.Retired.ID = inventory.Peer{Name: "um760", URL: "https://10.0.0.2:7444"}, "h1"
	require.NoError(t, h.source.Steps.Retire(m))
	_, err = keyring.Load(cfg.KeyFile)
	require.ErrorContains(t, err, "not a key file of Ingot")
	h, err = NewHost(testOptions(cfg))
	require.NoError(t, err)
	s := h.file.Site()
	require.Equal(t, Retired, s.Role)
	require.Equal(t, "um760", s.Successor.Name)
	st, err := h.SiteStatus(t.Context())
	require.NoError(t, err)
	require.Contains(t, st.Why, cfg.KeyFile+" is the marker of a retired site")
}

// S48: clients of the peer API without a token cannot fill the log.
func TestStrangersAtThePeerAPI(t *testing.T) {
	cfg := ownDirs(t)
	require.NoError(t, made(MakeStandby(t.Context(), cfg, "um760")))
	var out bytes.Buffer
	o := testOptions(cfg)
	o.Log = slog.New(slog.NewTextHandler(&out, nil))
	h, err := NewHost(o)
	require.NoError(t, err)
	peers := h.target.Handler()
	for range 1000 {
		rec := httptest.NewRecorder()
		peers.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/site/v1/state", nil))
		require.Equal(t, http.StatusUnauthorized, rec.Code)
	}
	require.Contains(t, out.String(), "refused a peer's request")
	require.Less(t, strings.Count(out.String(), "\n"), 300)
}

// A file that is served in place is not sent. The target must have the same one.
func TestImagesInPlaceOfAPeer(t *testing.T) {
	cfg := ownDirs(t)
	share := t.TempDir()
	path := filepath.Join(share, "debian.raw")
	require.NoError(t, os.WriteFile(path, []byte("the image"), 0o644))
	sum := sha256.Sum256([]byte("the image"))
	digest := hex.EncodeToString(sum[:])
	img := inventory.Image{Name: "debian", File: digest, SHA256: digest, Size: 9, InPlace: &inventory.InPlace{Path: path}}
	host := func(shares ...string) receiver {
		cfg.Images.Shares = shares
		h, err := NewHost(testOptions(cfg))
		require.NoError(t, err)
		return h.received
	}
	_, err := host().Image(t.Context(), img)
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "images.shares")
	r := host(share)
	st, err := r.Image(t.Context(), img)
	require.NoError(t, err)
	require.True(t, st.Done)

	sent := imageSender{peer: r, dir: cfg.ImageDir(), progress: func(string) {}}
	n, err := sent.sendMissing(t.Context(), []inventory.Image{img})
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, os.WriteFile(path, []byte("another"), 0o644))
	_, err = sent.sendMissing(t.Context(), []inventory.Image{img})
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "the target has another file at "+path)
	require.NoError(t, os.Remove(path))
	_, err = sent.sendMissing(t.Context(), []inventory.Image{img})
	require.ErrorContains(t, err, "is the share mounted?")
}

// An image file arrives in pieces and gets its name only after it is verified.
func TestImagesOfAPeer(t *testing.T) {
	cfg := ownDirs(t)
	cfg.MinFree = 1
	h, err := NewHost(testOptions(cfg))
	require.NoError(t, err)
	r, ctx := h.received, t.Context()
	text := "all of the image"
	sum := sha256.Sum256([]byte(text))
	digest := hex.EncodeToString(sum[:])
	size := int64(len(text))
	debian := inventory.Image{File: "debian.zst", SHA256: digest, Size: size}
	other := inventory.Image{File: "other.zst", SHA256: digest, Size: size}
	st, err := r.Image(ctx, debian)
	require.NoError(t, err)
	require.Equal(t, ImageState{}, st)
	st, err = r.SendImage(ctx, debian, 0, strings.NewReader(text[:6]))
	require.NoError(t, err)
	require.False(t, st.Done)
	require.NoFileExists(t, filepath.Join(cfg.ImageDir(), "debian.zst"))
	st, err = r.Image(ctx, debian)
	require.NoError(t, err)
	require.Equal(t, int64(6), st.Size)
	_, err = r.SendImage(ctx, debian, 3, strings.NewReader(text[3:]))
	require.ErrorIs(t, err, inventory.ErrConflict, "nothing is written over")
	st, err = r.SendImage(ctx, debian, 6, strings.NewReader(text[6:]))
	require.NoError(t, err)
	require.True(t, st.Done)
	st, err = r.Image(ctx, debian)
	require.NoError(t, err)
	require.Equal(t, ImageState{Size: size, Done: true}, st)
	st, err = r.Image(ctx, inventory.Image{File: "debian.zst", SHA256: strings.Repeat("0", 64)})
	require.NoError(t, err)
	require.Equal(t, ImageState{}, st, "of another image by that name there is nothing")
	_, err = r.SendImage(ctx, other, 0, strings.NewReader("all of the imagE"))
	require.ErrorIs(t, err, inventory.ErrConflict)
	st, err = r.Image(ctx, other)
	require.NoError(t, err)
	require.Zero(t, st.Size, "a wrong file is not kept")
}

// An image is sent again from its first byte if it was replaced under the same name,
// or if the peer has the start of another file.
func TestImageThatHasChanged(t *testing.T) {
	ctx, from := t.Context(), t.TempDir()
	image := func(text string) inventory.Image {
		require.NoError(t, os.WriteFile(filepath.Join(from, "debian.zst"), []byte(text), 0o600))
		return inventory.Image{Name: "debian", File: "debian.zst", Size: int64(len(text)), SHA256: identity.Digest(text)}
	}
	peer := func() receiver {
		cfg := ownDirs(t)
		cfg.MinFree = 1
		h, err := NewHost(testOptions(cfg))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(cfg.ImageDir(), 0o750))
		return h.received
	}
	arrives := func(r receiver, img inventory.Image, text string) {
		sent, err := imageSender{r, from, func(string) {}}.send(ctx, img)
		require.NoError(t, err)
		require.True(t, sent)
		b, err := os.ReadFile(filepath.Join(r.cfg.ImageDir(), "debian.zst"))
		require.NoError(t, err)
		require.Equal(t, text, string(b))
		left, err := os.ReadDir(r.cfg.ImageDir())
		require.NoError(t, err)
		require.Len(t, left, 1, "no partial file is left")
		sent, err = imageSender{r, from, func(string) {}}.send(ctx, img)
		require.NoError(t, err)
		require.False(t, sent)
	}
	const long, short = "a long image, half of it sent", "another one"

	// The peer has half of a long file when a short file takes its name. The offset
	// would be beyond the end.
	r, img := peer(), image(long)
	st, err := r.SendImage(ctx, img, 0, strings.NewReader(long[:20]))
	require.NoError(t, err)
	require.False(t, st.Done)
	arrives(r, image(short), short)

	// The peer has all of the long file.
	r = peer()
	arrives(r, image(long), long)
	arrives(r, image(short), short)

	// The partial file is longer than the file, or not its beginning.
	for _, wrong := range []string{long, "anot", "xxxxxxxxxxx"} {
		r = peer()
		img = image(short)
		require.NoError(t, os.WriteFile(r.partialImage(img), []byte(wrong), 0o600))
		arrives(r, img, short)
	}

	// A file that differs from the inventory is an error, and is not sent repeatedly.
	r, img = peer(), image(long)
	require.NoError(t, os.WriteFile(filepath.Join(from, "debian.zst"), []byte(short), 0o600))
	_, err = imageSender{r, from, func(string) {}}.send(ctx, img)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, fmt.Sprintf("%d bytes, but the inventory lists %d", len(short), len(long)))
	img.Size = int64(len(short))
	_, err = imageSender{r, from, func(string) {}}.send(ctx, img)
	require.ErrorIs(t, err, inventory.ErrConflict, "another digest")
}

// preparedHost returns a host with a prepared site that was activated.
func preparedHost(t *testing.T) (*Host, Prepared) {
	t.Helper()
	h, err := NewHost(testOptions(ownDirs(t)))
	require.NoError(t, err)
	p := Prepared{ID: "h1", Epoch: 2, Files: map[string]string{}}
	for _, x := range h.received.parts() {
		require.NoError(t, os.MkdirAll(filepath.Dir(x.from), 0o750))
		require.NoError(t, os.WriteFile(x.from, []byte("proven "+x.name), 0o600))
		p.Files[x.name] = identity.Digest("proven " + x.name)
	}
	_, err = h.file.Change(func(s *Site) error {
		s.Role, s.Epoch, s.Activated, s.Prepared = Active, p.Epoch, p.ID, &p
		return nil
	})
	require.NoError(t, err)
	return h, p
}

// A server that stops while it installs a site resumes the installation. A part in its
// place is recognized by its digest. A missing part is an error, and the site does not
// start.
func TestInstallContinues(t *testing.T) {
	ctx := t.Context()
	for cut := range 4 { // the number of parts in their places
		h, p := preparedHost(t)
		for _, x := range h.received.parts()[:cut] {
			require.NoError(t, os.MkdirAll(filepath.Dir(x.to), 0o750))
			require.NoError(t, os.Rename(x.from, x.to))
		}
		require.NoError(t, h.received.install(ctx, p))
		require.Nil(t, h.file.Site().Prepared)
		for _, x := range h.received.parts() {
			b, err := os.ReadFile(x.to)
			require.NoError(t, err)
			require.Equal(t, "proven "+x.name, string(b))
		}
	}
	for n := range 3 {
		h, p := preparedHost(t)
		gone := h.received.parts()[n]
		refused := func(is error, why string) {
			t.Helper()
			err := h.received.install(ctx, p)
			require.ErrorIs(t, err, is)
			require.ErrorContains(t, err, why)
			require.NotNil(t, h.file.Site().Prepared)
			for _, x := range h.received.parts() {
				if x != gone {
					require.FileExists(t, x.from, "no file was moved")
				}
			}
		}
		require.NoError(t, os.Remove(gone.from))
		refused(inventory.ErrNotFound, gone.name+" is missing")
		// Another file is in the place of a part.
		require.NoError(t, os.MkdirAll(filepath.Dir(gone.to), 0o750))
		require.NoError(t, os.WriteFile(gone.to, []byte("of another site"), 0o600))
		refused(inventory.ErrConflict, "has changed since it was verified")
		require.NoError(t, os.Remove(gone.to))
		require.NoError(t, os.WriteFile(gone.from, []byte("spoilt"), 0o600))
		refused(inventory.ErrConflict, "has changed since it was verified")
		require.NoError(t, os.WriteFile(gone.from, []byte("proven "+gone.name), 0o600))
		require.NoError(t, h.received.install(ctx, p))
	}
	// With an external Temporal, its database is not part of the site.
	h, p := preparedHost(t)
	temporal := h.received.parts()[1]
	require.NoError(t, os.Remove(temporal.from))
	delete(p.Files, temporal.name)
	require.NoError(t, h.received.install(ctx, p))
	require.NoFileExists(t, temporal.to)
	// A site without the digests of its parts was never verified.
	h, p = preparedHost(t)
	p.Files = nil
	require.ErrorIs(t, h.received.install(ctx, p), inventory.ErrNotFound)
}

// While a part is missing, the host reports it to operators. It continues when the part
// is back.
func TestMissingPartIsReported(t *testing.T) {
	h, p := preparedHost(t)
	h.cfg.Listen = "127.0.0.1:0"
	require.NoError(t, os.WriteFile(h.cfg.TokenFile, []byte(strings.Repeat("t", 64)), 0o600))
	missing := h.received.parts()[2]
	require.NoError(t, os.Remove(missing.from))
	done := make(chan error, 1)
	go func() { done <- h.installPrepared(t.Context(), p) }()
	var st inventory.SiteStatus
	require.Eventually(t, func() bool {
		var err error
		st, err = h.SiteStatus(t.Context())
		return err == nil && st.Silent != ""
	}, 30*time.Second, 10*time.Millisecond)
	require.Contains(t, st.Silent, "inventory.db is missing")
	require.False(t, st.Since.IsZero())
	require.ErrorIs(t, h.Decide(t.Context(), inventory.TakeOver, ""), inventory.ErrConflict, "no decision helps")
	require.Equal(t, Active, st.Role)
	require.Equal(t, p.ID, st.Prepared)
	require.NoError(t, os.WriteFile(missing.from, []byte("proven "+missing.name), 0o600))
	require.NoError(t, <-done)
	st, err := h.SiteStatus(t.Context())
	require.NoError(t, err)
	require.Empty(t, st.Silent)
}

// pairedHosts returns a site and a standby that is paired with it as the peer um760.
func pairedHosts(t *testing.T) (here, there *Host, peer inventory.Peer, token inventory.Secret) {
	t.Helper()
	standby := ownDirs(t)
	require.NoError(t, made(MakeStandby(t.Context(), standby, "um760")))
	there, err := NewHost(testOptions(standby))
	require.NoError(t, err)
	require.NoError(t, there.Peers.loadCertificate())
	server := httptest.NewUnstartedServer(there.target.Handler())
	server.TLS = ServerTLS(there.Peers.cert)
	server.StartTLS()
	t.Cleanup(server.Close)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(standby.KeyFile), "standby.token"))
	require.NoError(t, err)

	cfg := ownDirs(t)
	cfg.MinFree = 1
	here, err = NewHost(testOptions(cfg))
	require.NoError(t, err)
	here.current = idle{}
	peer = inventory.Peer{Name: "um760", URL: server.URL, Fingerprint: keypin.Of(server.Certificate())}
	token = inventory.NewSecret(strings.TrimSpace(string(text)))
	_, err = here.Peers.AddPeer(t.Context(), peer, token)
	require.NoError(t, err)
	return here, there, peer, token
}

// A site with notices does not move to a server without them: waiting notices would
// never be sent, and operators would not get the next question.
func TestMigrationKeepsNotices(t *testing.T) {
	here, there, _, _ := pairedHosts(t)
	for _, c := range []struct{ here, there, refused bool }{{false, false, false}, {false, true, false}, {true, true, false}, {
		true, false,
		true,
	}} {
		here.Mover.cfg.Notify.URL, there.target.Notify = "", c.there
		if c.here {
			here.Mover.cfg.Notify.URL = "https://example.com/x"
		}
		err := here.Mover.CheckTarget(t.Context(), "um760") // ports of this host may be another problem
		text := fmt.Sprint(err)
		require.Equal(t, c.refused, strings.Contains(text, "the target has no notify.url"), "%+v: %s", c, text)
		require.NotContains(t, text, "example.com")
	}
}

// CheckTarget refuses a target that cannot take over, and changes nothing.
func TestTargetsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name, says string
		change     func(here, there *Host)
	}{
		{
			"another version",
			"the target has version other, but this server has version test", func(_, there *Host) { there.target.Program = "other" },
		},
		{"runs elsewhere", "the target keeps runs in 192.0.2.1:7233", func(_, there *Host) { there.target.Temporal = "192.0.2.1:7233" }},
		{"too little room", "of free space, but needs 1.0 PiB", func(here, _ *Host) { here.Mover.cfg.MinFree = 1 << 30 }},
		{"keys of a site", "keys.json exists already", func(_, there *Host) {
			require.NoError(t, os.WriteFile(there.cfg.KeyFile, []byte("{}"), 0o600))
		}},
		{"a site", "the target is active in site epoch 3, but only a standby can take over", func(_, there *Host) {
			_, err := there.file.Change(func(s *Site) error { s.Role, s.Epoch = Active, 3; return nil })
			require.NoError(t, err)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			here, there, _, _ := pairedHosts(t)
			// There may be other problems: ports of this host may be in use.
			require.NotContains(t, fmt.Sprint(here.Mover.CheckTarget(t.Context(), "um760")), c.says)
			c.change(here, there)
			err := here.Mover.CheckTarget(t.Context(), "um760")
			require.ErrorIs(t, err, inventory.ErrConflict)
			require.ErrorContains(t, err, c.says)
			require.Equal(t, Active, here.file.Site().Role)
			require.Nil(t, there.file.Site().Prepared)
		})
	}
}

// A server that owns a site epoch cannot become a peer.
func TestOnlyAStandbyIsAPeer(t *testing.T) {
	here, there, peer, token := pairedHosts(t)
	_, err := there.file.Change(func(s *Site) error { s.Role, s.Epoch = Active, 3; return nil })
	require.NoError(t, err)
	peer.Name = "another"
	_, err = here.Peers.AddPeer(t.Context(), peer, token)
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "another is active in site epoch 3, but only a standby can be added as a peer")
	require.Len(t, here.file.Site().Peers, 1)
}

func testOptions(cfg config.Config) Options {
	return Options{
		Config: cfg, Version: "test", Log: slog.New(slog.DiscardHandler),
		Operators: func(*Host) (http.Handler, error) { return http.NotFoundHandler(), nil },
	}
}

// made returns only the error of MakeStandby.
func made(_ StandbyResult, err error) error { return err }

// idle is a site whose methods are not called.
type idle struct{ Instance }
