package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/internal/archive"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/internal/reserve"
	"github.com/ingotmetal/ingot/internal/site"
	"github.com/ingotmetal/ingot/internal/temporalchild"
	"github.com/ingotmetal/ingot/inventory"
)

// stagingDir is where a site is put together that is sent, or that lies ready
// at its target, below the data directory.
const stagingDir = "handover.tmp"

// preparedKeys is where the keys of a site that lies ready are kept: beside
// where they belong, and never in the data directory.
func preparedKeys(cfg config.Config) string { return cfg.KeyFile + ".prepared" }

// moveNow ends the life of the site, so that it is handed over.
type moveNow struct{ row inventory.HandOver }

func (m *moveNow) Error() string { return "the site is handed over to " + m.row.Target }

// handOver moves the site that has just fallen silent, and whose Temporal child
// alone still runs, until stopChild.
func (h *host) handOver(ctx context.Context, s *server, row inventory.HandOver, stopChild func() error) error {
	peer, err := h.file.Site().Peer(row.Target)
	if err != nil {
		return err
	}
	epoch, err := s.store.SiteEpoch(ctx)
	if err != nil {
		return err
	}
	s.lastDeed = stopChild
	h.mu.Lock()
	h.current, h.leaving = nil, s
	h.mu.Unlock()
	return h.quietly(ctx, "", func(ctx context.Context) error {
		err := h.source.HandOver(ctx, row.ID, peer, epoch)
		if errors.Is(err, inventory.ErrConflict) && h.file.Site().Role == site.Active {
			return nil // withdrawn in the last moment
		}
		return err
	})
}

// Copy makes one archive of the site: Temporal's by its child, as that one's
// last deed, then the inventory, the keys, and the list of the images.
func (h *host) Copy(ctx context.Context, id string) (_ site.Copy, err error) {
	h.mu.Lock()
	s := h.leaving
	h.mu.Unlock()
	if s == nil {
		return site.Copy{}, errors.New("there is no site here to copy")
	}
	dir := filepath.Join(h.cfg.DataDir, stagingDir)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return site.Copy{}, err
	}
	if err := s.roomForBackup(dir); err != nil {
		return site.Copy{}, err
	}
	a := archive.NewDraft(id, h.version)
	if err := s.backUpTemporal(ctx, a, dir); err != nil {
		return site.Copy{}, errors.Join(err, s.lastDeed())
	}
	// Its end takes a second, in which machines would wait for nothing.
	ended := make(chan error, 1)
	go func() { ended <- s.lastDeed() }()
	defer func() { err = errors.Join(err, <-ended) }()
	if err := s.backUpInventory(ctx, a, dir); err != nil {
		return site.Copy{}, err
	}
	if err := s.store.Close(); err != nil {
		return site.Copy{}, err
	}
	if err := h.packKeys(a, filepath.Join(dir, archive.KeysName)); err != nil {
		return site.Copy{}, err
	}
	sum := sha256.New()
	size, err := a.WriteTo(sum)
	return site.Copy{
		Digest: hex.EncodeToString(sum.Sum(nil)), Size: size,
		Open: func() (io.ReadCloser, error) {
			r, w := io.Pipe()
			go func() {
				_, err := a.WriteTo(w)
				_ = w.CloseWithError(err) // never fails
			}()
			return r, nil
		},
	}, err
}

// packKeys wraps the keys with what source and target both have of the token.
// The way is TLS; the wrap is for what lies on the disk meanwhile.
func (h *host) packKeys(a *archive.Draft, file string) error {
	token, ok := h.tokens.of(h.file.Site().HandOver.Peer)
	if !ok {
		return fmt.Errorf("the token of the peer is not in %s: %w", h.tokens.path, inventory.ErrNotFound)
	}
	b, err := os.ReadFile(h.cfg.KeyFile)
	if err == nil {
		err = a.Authenticate(h.cfg.KeyFile)
	}
	if err != nil {
		return fmt.Errorf("reading the keys: %w", err)
	}
	return a.AddKeys(inventory.NewSecret(identity.Digest(token)), map[string][]byte{"keys.json": b}, file)
}

// temporalFiles are Temporal's database and what lies beside it.
func (h *host) temporalFiles() []string {
	file := temporalchild.DefaultConfig(filepath.Join(h.cfg.DataDir, "temporal")).File
	return []string{file, file + "-wal", file + "-shm"}
}

// aside ends the name of what was handed over.
func aside(id string) string { return ".handed-over-" + id }

// SetAside renames Temporal's file, the database first: without it nothing
// starts on the rest.
func (h *host) SetAside(id string) error {
	for _, f := range h.temporalFiles() {
		if err := os.Rename(f, f+aside(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return h.syncTemporal()
}

func (h *host) syncTemporal() error {
	err := site.SyncDir(filepath.Join(h.cfg.DataDir, "temporal"))
	if errors.Is(err, fs.ErrNotExist) { // a cluster elsewhere
		return nil
	}
	return err
}

// PutBack undoes SetAside, the database last.
func (h *host) PutBack(id string) error {
	files := h.temporalFiles()
	for i := len(files) - 1; i >= 0; i-- {
		if err := os.Rename(files[i]+aside(id), files[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(h.syncTemporal(), os.RemoveAll(filepath.Join(h.cfg.DataDir, stagingDir)))
}

// Retire destroys the keys, and with them what the databases here still hold
// sealed.
func (h *host) Retire(m site.Mark) error {
	return errors.Join(site.DestroyKeys(h.cfg.KeyFile, m), os.RemoveAll(filepath.Join(h.cfg.DataDir, stagingDir)))
}

// receiver is the target's side.
type receiver struct{ *host }

// Check looks at what would keep this host from being the site.
func (h receiver) Check(context.Context) (free int64, problems []string) {
	free, err := reserve.Free(h.cfg.DataDir)
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, file := range []string{h.cfg.KeyFile, filepath.Join(h.cfg.DataDir, "ingot.db"), filepath.Join(h.cfg.DataDir, "temporal")} {
		if there, err := exists(file); err != nil {
			problems = append(problems, err.Error())
		} else if there {
			problems = append(problems, file+" is there already, where the site's belongs")
		}
	}
	return free, append(problems, h.portProblems()...)
}

// portProblems names the ports of the site that somebody else has.
func (h receiver) portProblems() (problems []string) {
	sockets, err := hostnet.Sockets(h.cfg)
	if err != nil {
		return []string{err.Error()}
	}
	for _, s := range sockets {
		if s.Key == "listen" {
			continue // this server's own, now
		}
		if err := s.Try(); err != nil {
			text := fmt.Sprintf("%s %s (%s): %v", s.Network, s.Addr, s.Key, err)
			if errors.Is(err, syscall.EADDRINUSE) {
				text = fmt.Sprintf("%s %s (%s) is in use by another program", s.Network, s.Addr, s.Key)
			}
			problems = append(problems, text)
		}
	}
	return problems
}

// Receive unpacks and proves a site, and makes it one of the epoch. Whatever is
// there of an earlier one goes first.
func (h receiver) Receive(ctx context.Context, id string, epoch int64, r io.Reader) (map[string]string, error) {
	if err := h.receive(ctx, id, epoch, r); err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, p := range h.places() {
		there, err := exists(p.from)
		if err == nil && there {
			files[p.name], err = fileSum(ctx, p.from)
		}
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (h receiver) receive(ctx context.Context, id string, epoch int64, r io.Reader) error {
	dir := filepath.Join(h.cfg.DataDir, stagingDir)
	if err := h.Discard(id); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	u, err := archive.Unpack(ctx, r, dir, false)
	if err != nil {
		return err
	}
	// The digest is of all that was sent.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	switch {
	case u.ID != id:
		return fmt.Errorf("it is hand-over %q: %w", u.ID, inventory.ErrInvalid)
	case u.Version != h.version:
		return fmt.Errorf("it comes from version %s, and this is %s: %w", u.Version, h.version, inventory.ErrConflict)
	case u.Key == nil:
		return fmt.Errorf("the keys are not in it: %w", inventory.ErrInvalid)
	case u.External != h.cfg.Temporal.Address:
		return fmt.Errorf("its runs live in %s, and this host's configuration says otherwise (temporal.address): %w", cmp.Or(u.External, "an embedded Temporal"), inventory.ErrConflict)
	}
	files, err := u.UnwrapKeys(inventory.NewSecret(h.file.Site().Source.TokenSHA256))
	if err != nil {
		return err
	}
	if err := site.Replace(preparedKeys(h.cfg), files["keys.json"]); err != nil {
		return err
	}
	ring, err := keyring.Load(preparedKeys(h.cfg))
	if err != nil {
		return err
	}
	if err := u.Authenticate(ring, "the keys of the hand-over"); err != nil {
		return err
	}
	if err := u.CheckDatabases(ctx); err != nil {
		return err
	}
	if err := h.own(ctx, &u, ring, epoch); err != nil {
		return err
	}
	return site.SyncDir(dir)
}

// own makes the unpacked databases those of a site of that epoch.
func (h receiver) own(ctx context.Context, u *archive.Unpacked, ring *keyring.Ring, epoch int64) (err error) {
	s, err := u.OpenInventory(ctx, ring)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Owned(ctx, epoch)
}

// Discard removes what Receive has made.
func (h receiver) Discard(string) error {
	err := os.Remove(preparedKeys(h.cfg))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(h.cfg.DataDir, stagingDir)))
}

// A place is where a part of a site lies ready, and where it belongs.
type place struct{ name, from, to string }

// places are those of all parts: the keys first, and the inventory, without
// which nothing starts, last.
func (h *host) places() []place {
	dir := filepath.Join(h.cfg.DataDir, stagingDir)
	return []place{
		{"keys.json", preparedKeys(h.cfg), h.cfg.KeyFile},
		{archive.TemporalName, filepath.Join(dir, archive.TemporalName), temporalchild.DefaultConfig(filepath.Join(h.cfg.DataDir, "temporal")).File},
		{archive.InventoryName, filepath.Join(dir, archive.InventoryName), filepath.Join(h.cfg.DataDir, "ingot.db")},
	}
}

// install puts a site in its place that lies ready and is activated. It may
// have been begun: what is in its place already is what was proven, and is known
// by its digest. Anything else that is missing, or is another, is an error, and
// nothing of it is touched: a server that began with half a site would be none.
func (h *host) install(ctx context.Context, p site.Prepared) error {
	var missing []place
	for _, x := range h.places() {
		want, proven := p.Files[x.name]
		if part, err := h.partOf(p, x); err != nil {
			return err
		} else if !proven && !part {
			continue // its runs live elsewhere
		}
		put, err := inPlace(ctx, x, want)
		if err != nil {
			return err
		}
		if !put {
			missing = append(missing, x)
		}
	}
	for _, x := range missing {
		if err := os.MkdirAll(filepath.Dir(x.to), 0o700); err != nil {
			return err
		}
		if err := os.Rename(x.from, x.to); err != nil {
			return fmt.Errorf("putting the site in its place: %w", err)
		}
		if err := site.SyncDir(filepath.Dir(x.to)); err != nil {
			return err
		}
	}
	if err := site.SyncDir(h.cfg.DataDir); err != nil {
		return err
	}
	_, err := h.file.Change(func(s *site.Site) error { s.Prepared = nil; return nil })
	if err == nil {
		h.log.Info("the site is in its place", "handover", p.ID, "epoch", p.Epoch)
		err = os.RemoveAll(filepath.Join(h.cfg.DataDir, stagingDir))
	}
	return err
}

// partOf tells whether a site that lies ready has a part, where its digests do
// not say so: a release without them has received it.
func (h *host) partOf(p site.Prepared, x place) (bool, error) {
	if len(p.Files) > 0 || x.name != archive.TemporalName {
		return len(p.Files) == 0, nil
	}
	ready, err := exists(x.from)
	if err != nil || ready {
		return ready, err
	}
	return exists(x.to)
}

// inPlace tells whether a part of the site is where it belongs; false: it lies
// ready. want is the SHA-256 that it had when it was proven.
func inPlace(ctx context.Context, x place, want string) (bool, error) {
	for _, at := range []string{x.from, x.to} {
		there, err := exists(at)
		if err != nil {
			return false, err
		}
		if !there {
			continue
		}
		sum, err := fileSum(ctx, at)
		if err != nil {
			return false, err
		}
		if want != "" && sum != want {
			return false, fmt.Errorf("%s has the digest %.12s and not %.12s, as it was when it was proven: %w", at, sum, want, inventory.ErrConflict)
		}
		return at == x.to, nil
	}
	return false, fmt.Errorf("%s is missing: it lies neither in %s nor in %s: %w", x.name, x.from, x.to, inventory.ErrNotFound)
}

// partial is where the file of an image lies until it is whole. The digest is in
// its name: what was begun of another image under that name is not gone on with.
func (h receiver) partial(file, digest string) string {
	return filepath.Join(h.cfg.ImageDir(), partialPrefix+digest[:16]+"-"+file)
}

const partialPrefix = ".upload-peer-"

// forget removes what was begun of a file with other digests, and by releases
// that did not have it in the name.
func (h receiver) forget(file, but string) error {
	all, err := os.ReadDir(h.cfg.ImageDir())
	if err != nil {
		return err
	}
	for _, e := range all {
		rest, ours := strings.CutPrefix(e.Name(), partialPrefix)
		if !ours || rest != file && (len(rest) < 17 || rest[17:] != file) {
			continue
		}
		if path := filepath.Join(h.cfg.ImageDir(), e.Name()); path != but {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// Image tells how much of a file lies here; whole only if its digest is right.
func (h receiver) Image(ctx context.Context, file, digest string) (site.ImageState, error) {
	whole := filepath.Join(h.cfg.ImageDir(), file)
	st, err := os.Stat(whole)
	if err == nil {
		if sum, err := fileSum(ctx, whole); err != nil || sum == digest {
			return site.ImageState{Size: st.Size(), Done: err == nil}, err
		}
		// Another image had that name when it was sent. It goes when the new one is
		// whole and proven.
	} else if !errors.Is(err, fs.ErrNotExist) {
		return site.ImageState{}, err
	}
	st, err = os.Stat(h.partial(file, digest))
	if errors.Is(err, fs.ErrNotExist) {
		return site.ImageState{}, nil
	}
	if err != nil {
		return site.ImageState{}, err
	}
	return site.ImageState{Size: st.Size()}, nil
}

func fileSum(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	sum := sha256.New()
	if _, err := io.Copy(sum, readerOf(ctx, f)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// readerOf reads as long as ctx lives.
func readerOf(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// SendImage appends to a file, or begins anew at offset 0; with its last byte it
// is proven and gets its name.
func (h receiver) SendImage(ctx context.Context, file, digest string, offset, size int64, r io.Reader) (site.ImageState, error) {
	if err := os.MkdirAll(h.cfg.ImageDir(), 0o750); err != nil {
		return site.ImageState{}, err
	}
	free, err := reserve.Free(h.cfg.ImageDir())
	if err != nil {
		return site.ImageState{}, err
	}
	if need := size - offset + h.cfg.MinFree<<20; free < need {
		return site.ImageState{}, fmt.Errorf("image file %q needs %s and %s are free: %w", file, human.Size(need), human.Size(free), inventory.ErrConflict)
	}
	part := h.partial(file, digest)
	if err := h.forget(file, part); err != nil {
		return site.ImageState{}, err
	}
	flags := os.O_WRONLY | os.O_CREATE
	if offset == 0 {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(part, flags, 0o600)
	if err != nil {
		return site.ImageState{}, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() != offset {
		err = fmt.Errorf("image file %q has %d bytes here, and what comes begins at %d: %w", file, st.Size(), offset, inventory.ErrConflict)
	}
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	var n int64
	if err == nil {
		n, err = io.Copy(f, io.LimitReader(r, size-offset))
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil || offset+n < size {
		return site.ImageState{Size: offset + n}, err
	}
	sum, err := fileSum(ctx, part)
	if err != nil {
		return site.ImageState{}, err
	}
	if sum != digest {
		return site.ImageState{}, errors.Join(fmt.Errorf("image file %q came with the digest %.12s and not %.12s: %w", file, sum, digest, inventory.ErrConflict), os.Remove(part))
	}
	if err := errors.Join(os.Chmod(part, 0o644), os.Rename(part, filepath.Join(h.cfg.ImageDir(), file)), site.SyncDir(h.cfg.ImageDir())); err != nil {
		return site.ImageState{}, err
	}
	return site.ImageState{Size: size, Done: true}, nil
}

// mover is what the workflow Migrate asks of this host.
type mover struct{ *host }

// CheckTarget refuses what can be refused before anything is done.
func (h mover) CheckTarget(ctx context.Context, target string) error {
	s, peer, err := h.moving(ctx, target)
	if err != nil {
		return err
	}
	c, err := h.client(peer)
	if err != nil {
		return err
	}
	r, err := c.Check(ctx)
	if err != nil {
		return strangers(err)
	}
	var problems []string
	if r.Version != site.Version || r.Program != h.version {
		problems = append(problems, fmt.Sprintf("it is version %s, and this is %s: both must be the same", r.Program, h.version))
	}
	if r.Temporal != h.cfg.Temporal.Address {
		problems = append(problems, fmt.Sprintf("its runs would live in %s, and those of this site live in %s (temporal.address)", cmp.Or(r.Temporal, "an embedded Temporal"), cmp.Or(h.cfg.Temporal.Address, "an embedded one")))
	}
	if h.cfg.Notify.URL != "" && !r.Notify {
		problems = append(problems, "nobody would be told any more when a person is needed, and notices that wait would never be sent: it has no notify.url, and this server has one (configure it there, or take it out here)")
	}
	need, err := s.databaseSize()
	if err != nil {
		return err
	}
	// They are unpacked, proven and put in their place.
	if need = 2*need + h.cfg.MinFree<<20; r.Role == site.Standby && r.Free < need {
		problems = append(problems, fmt.Sprintf("%s are free there, and %s are needed", human.Size(r.Free), human.Size(need)))
	}
	problems = append(problems, r.Problems...)
	if len(problems) > 0 {
		return fmt.Errorf("%s cannot take over: %s: %w", target, strings.Join(problems, "; "), inventory.ErrConflict)
	}
	return nil
}

// moving is the site, and the peer to which it may go.
func (h mover) moving(ctx context.Context, target string) (*server, site.Peer, error) {
	s := h.site()
	if s == nil {
		return nil, site.Peer{}, fmt.Errorf("this server is %s: %w", h.file.Site().Role, inventory.ErrConflict)
	}
	p, err := h.paired(ctx, target)
	return s, p, err
}

// SyncImages sends the files of the images that the target lacks, by digest,
// each from where it broke off. Progress is told as often as something was sent.
func (h mover) SyncImages(ctx context.Context, target string, progress func(text string)) (sent int, err error) {
	s, peer, err := h.moving(ctx, target)
	if err != nil {
		return 0, err
	}
	c, err := h.client(peer)
	if err != nil {
		return 0, err
	}
	images, err := s.movingImages(ctx)
	if err != nil {
		return 0, err
	}
	for i, img := range images {
		progress(fmt.Sprintf("image %d of %d, %s", i+1, len(images), img.Name))
		did, err := sendImage(ctx, c, h.cfg.ImageDir(), img, progress)
		if err != nil {
			return sent, fmt.Errorf("image %q: %w", img.Name, err)
		}
		if did {
			sent++
		}
	}
	return sent, nil
}

// movingImages returns the images that have a file, and the files that open runs have planned
// and no image has any more.
func (s *server) movingImages(ctx context.Context) ([]inventory.Image, error) {
	all, err := s.store.Images(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(i inventory.Image) bool { return i.File == "" })
	planned, err := s.store.PlannedImages(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range planned {
		if slices.ContainsFunc(all, func(i inventory.Image) bool { return i.SHA256 == p.SHA256 }) {
			continue
		}
		st, err := os.Stat(filepath.Join(s.cfg.ImageDir(), p.SHA256))
		if errors.Is(err, fs.ErrNotExist) {
			continue // its run will say so
		}
		if err != nil {
			return nil, err
		}
		all = append(all, inventory.Image{Name: p.Name, File: p.SHA256, SHA256: p.SHA256, Size: st.Size()})
	}
	return all, nil
}

func sendImage(ctx context.Context, c imagePeer, dir string, img inventory.Image, progress func(string)) (bool, error) {
	st, err := c.Image(ctx, img.File, img.SHA256)
	if err != nil || st.Done {
		return false, err
	}
	from := st.Size
	if from > img.Size {
		from = 0 // that is of something else
	}
	err = sendFrom(ctx, c, dir, img, from, progress)
	if from > 0 && errors.Is(err, inventory.ErrConflict) {
		// What lay there was not the beginning of this file. From its first byte on
		// it is, or the file here is not what the inventory says.
		err = sendFrom(ctx, c, dir, img, 0, progress)
	}
	return true, err
}

// imagePeer is where images are sent.
type imagePeer interface {
	Image(ctx context.Context, file, digest string) (site.ImageState, error)
	SendImage(ctx context.Context, file, digest string, offset, size int64, r io.Reader) (site.ImageState, error)
}

func sendFrom(ctx context.Context, c imagePeer, dir string, img inventory.Image, from int64, progress func(string)) error {
	f, err := os.Open(filepath.Join(dir, img.File))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	here, err := f.Stat()
	if err != nil {
		return err
	}
	if here.Size() != img.Size {
		return fmt.Errorf("its file has %d bytes and the inventory says %d (ingot image verify %s): %w", here.Size(), img.Size, img.Name, inventory.ErrInvalid)
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	done := from
	told := time.Now()
	r := readerFunc(func(p []byte) (int, error) {
		n, err := f.Read(p)
		if done += int64(n); time.Since(told) > time.Second {
			told = time.Now()
			progress(fmt.Sprintf("image %s: %s of %s", img.Name, human.Size(done), human.Size(img.Size)))
		}
		return n, err
	})
	st, err := c.SendImage(ctx, img.File, img.SHA256, from, img.Size, r)
	if err == nil && !st.Done {
		err = fmt.Errorf("the peer has %d of %d bytes: %w", st.Size, img.Size, inventory.ErrUnreachable)
	}
	return err
}

// HandOverState tells whoever waits what became of a hand-over.
func (h mover) HandOverState(_ context.Context, id string) (state, why string, err error) {
	x := h.file.Site()
	switch {
	case x.Activated == id:
		return inventory.HandOverMoved, "", nil
	case x.HandOver != nil && x.HandOver.ID == id && x.HandOver.State == site.Failed:
		return inventory.HandOverFailed, x.HandOver.Why, nil
	}
	return inventory.HandOverPending, "", nil
}

// exists reports whether there is something at path.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
