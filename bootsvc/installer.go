package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// Installers provides the boots of other installers.
type Installers interface {
	// Plan returns the plan of a run. Only its installer is used.
	Plan(ctx context.Context, run string) (inventory.Plan, error)
	// SpendBoot records that the last payload of a boot was completely delivered.
	// From then on the machine is sent to its disk. It returns inventory.ErrFenced
	// if the boot is no longer the current one.
	SpendBoot(ctx context.Context, o inventory.Owner, boot int, payload string) error
}

// installer returns the installer of d's run.
func (s *Server) installer(ctx context.Context, d Decision) (inventory.Installer, error) {
	if s.cfg.Installers == nil || s.cfg.Images == nil {
		return inventory.Installer{}, fmt.Errorf("finding the installer of machine %q: this server does not serve installers: %w",
			d.Machine, inventory.ErrUnsupported)
	}
	p, err := s.cfg.Installers.Plan(ctx, d.Owner.Run)
	if err == nil && p.Installer == nil {
		err = inventory.ErrNotFound
	}
	if err != nil {
		return inventory.Installer{}, fmt.Errorf("finding the installer of machine %q: %w", d.Machine, err)
	}
	i := *p.Installer
	// If the site has moved since the plan was made, replace the old server's URL.
	i.Parameters = slices.Clone(i.Parameters)
	for n, a := range i.Parameters {
		i.Parameters[n] = inventory.Rebase(a, p.ImagesURL, s.Base()+"/images")
	}
	return i, nil
}

// installerScript returns the script that boots the installer of d's run. Its only
// secret is the capability path (security S44).
func (s *Server) installerScript(ctx context.Context, m inventory.Machine, d Decision, autoexec bool) (string, error) {
	i, err := s.installer(ctx, d)
	if err != nil {
		return "", err
	}
	for _, name := range slices.Compact(i.Images()) {
		f, err := s.openPlanned(ctx, i, name)
		if err != nil {
			return "", err
		}
		_ = f.Close() // nothing was read
	}
	line, err := s.installerLine(m, d, i)
	if err != nil {
		return "", err
	}
	base := s.bootURL(d)
	var load strings.Builder
	fmt.Fprintf(&load, "kernel %s%s %s || goto again\n", base, i.Kernel, line)
	for _, name := range i.Initrds {
		fmt.Fprintf(&load, "initrd --name %s %s%s || goto again\n", name, base, name)
	}
	return s.netbootScript(d, "Ingot boots the installer of "+m.Name, load.String(), autoexec), nil
}

// installerLine returns the kernel command line of an installer.
func (s *Server) installerLine(m inventory.Machine, d Decision, i inventory.Installer) (string, error) {
	for _, name := range i.Images() {
		if !fileName(name) || !imageName.MatchString(name) {
			return "", fmt.Errorf("image %q cannot stand in a boot script: %w", name, inventory.ErrInvalid)
		}
	}
	if _, ok := wire.ParseMAC(d.Interface.MAC); !ok || !machineName.MatchString(m.Name) {
		return "", fmt.Errorf("machine %q, MAC %q cannot stand in a boot script: %w", m.Name, d.Interface.MAC, inventory.ErrInvalid)
	}
	var args []string
	for _, name := range i.Initrds {
		args = append(args, "initrd="+name)
	}
	for _, a := range append(slices.Clone(i.Parameters), m.KernelArgs...) {
		a, err := inventory.Resolve(a, func(ref string) (string, error) {
			switch ref {
			case inventory.RefBootURL:
				return s.bootURL(d), nil
			case inventory.RefDocumentsURL, inventory.RefWebhookURL, inventory.RefMetadataURL:
				v, _ := cloudinit.Reference(ref, s.cfg.MetadataURL, s.cfg.ClaimKey, d.Owner) // it knows these three
				return v, nil
			}
			return "", fmt.Errorf("not allowed on a kernel command line: %w", inventory.ErrInvalid)
		})
		if err != nil {
			return "", err
		}
		if why := inventory.InstallerParameterProblem(a); why != "" { // a may name a capability: it is not shown
			return "", fmt.Errorf("a kernel parameter of the installer of machine %s %s: %w", m.Name, why, inventory.ErrInvalid)
		}
		args = append(args, a)
	}
	line := strings.Join(args, " ")
	if len(line) >= maxCommandLine {
		return "", fmt.Errorf("the kernel command line of machine %s has %d characters; the limit is %d: %w", m.Name,
			len(line), maxCommandLine-1, inventory.ErrInvalid)
	}
	return line, nil
}

// installerReasons describes the installer of d's run, and why it cannot be booted.
func (s *Server) installerReasons(ctx context.Context, d Decision) []string {
	i, err := s.installer(ctx, d)
	if err != nil {
		return []string{"but it cannot be booted: " + err.Error()}
	}
	out := []string{fmt.Sprintf("the installer: kernel %s, initramfs %s; the boot is spent when %s was delivered whole",
		i.Kernel, strings.Join(i.Initrds, " and "), i.Payload)}
	for _, name := range slices.Compact(i.Images()) {
		f, err := s.openPlanned(ctx, i, name)
		if err != nil {
			out = append(out, fmt.Sprintf("but image %s cannot be served: %v", name, err))
			continue
		}
		_ = f.Close() // nothing was read
	}
	return out
}

// planned is an open image and its record.
type planned struct {
	io.ReadSeekCloser
	inventory.Image
}

// openPlanned opens an image of an installer by the digest in the plan, even if the
// image has been replaced since.
func (s *Server) openPlanned(ctx context.Context, i inventory.Installer, name string) (planned, error) {
	sum, pinned := i.Digests[name]
	if !pinned && i.Digests != nil {
		return planned{}, fmt.Errorf("image %q is not in the plan: %w", name, inventory.ErrNotFound)
	}
	f, image, err := s.cfg.Images.OpenImage(ctx, name, sum)
	return planned{f, image}, err
}

// serveInstaller serves one image of d's installer. After the last payload, it records
// that the boot is spent.
func (s *Server) serveInstaller(w http.ResponseWriter, r *http.Request, d Decision, name string) {
	i, err := s.installer(r.Context(), d)
	if err == nil && !slices.Contains(i.Images(), name) {
		notFound(w)
		return
	}
	var f planned
	if err == nil {
		f, err = s.openPlanned(r.Context(), i, name)
	}
	var size int64
	if err == nil {
		defer f.Close() // only read from
		if size, err = f.Seek(0, io.SeekEnd); err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
	}
	if err != nil {
		s.log.With(d.logKeys()...).Error("opening an image of an installer", "image", name, "error", err)
		notFound(w)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	if sha256Form.MatchString(f.SHA256) {
		w.Header().Set("ETag", `"`+f.SHA256+`"`)
	}
	defer s.beginTransfer(d)()
	sw, began := newStreamWriter(w), s.now()
	serveFile(sw, r, name, f)
	if r.Method != http.MethodGet || !sentToEnd(sw, size) {
		return
	}
	kind := inventory.EventInitrd
	if name == i.Kernel {
		kind = inventory.EventKernel
	}
	s.rec.Transfer(d.event(kind, fmt.Sprintf("%s, %d bytes by HTTP", name, size)), began)
	if name == i.Payload {
		s.spend(context.WithoutCancel(r.Context()), d, name)
	}
}

// sentToEnd reports whether w sent a file of that size up to its last byte. A resumed
// range counts as well.
func sentToEnd(w *streamWriter, size int64) bool {
	switch w.status {
	case 0, http.StatusOK:
		return w.written == size
	case http.StatusPartialContent:
		var first, last, of int64
		_, err := fmt.Sscanf(w.Header().Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &of)
		return err == nil && of == size && last == size-1 && w.written == last-first+1
	}
	return false
}

// Recording that a boot is spent is retried for as long as a window may stay open
// without its run.
const (
	firstSpend   = 250 * time.Millisecond // before the first retry
	longestSpend = 15 * time.Second       // between two retries
	spendFor     = 30 * time.Minute
	maxUnspent   = 256 // boots in the queue for retries
)

// unspent is a boot that is spent, which is not recorded yet.
type unspent struct {
	Decision
	payload string
}

// spend records that d's boot is spent: until then, a machine with the network first
// in its boot order would boot the installer again. The machine may have disconnected,
// so ctx must not be the request's. spendLate retries until the server stops.
func (s *Server) spend(ctx context.Context, d Decision, payload string) {
	u := unspent{d, payload}
	if s.spendOnce(ctx, u) {
		return
	}
	select {
	case s.unspent <- u:
	default:
		s.log.With(d.logKeys()...).Error("recording that a boot is spent: given up, too many boots wait for a retry")
	}
}

// spendOnce records that a boot is spent. It returns false if that must be retried.
func (s *Server) spendOnce(ctx context.Context, u unspent) bool {
	err := s.cfg.Installers.SpendBoot(ctx, u.Owner, u.Boot, u.payload)
	log := s.log.With(u.logKeys()...)
	switch {
	case err == nil:
		log.Info("the last payload of an installer was delivered", "payload", u.payload)
	case errors.Is(err, inventory.ErrFenced):
		log.Error("recording that a boot is spent", "error", err)
	default:
		log.Warn("recording that a boot is spent, will be tried again", "error", err)
		return false
	}
	return true
}

// spendLate retries what spend could not record, until ctx ends, and then once more.
func (s *Server) spendLate(ctx context.Context) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	again := func(u unspent) {
		waiting.Go(func() {
			defer s.guard.Recover("a delivered payload")
			s.spendAgain(ctx, u)
		})
	}
	for {
		select {
		case u := <-s.unspent:
			again(u)
		case <-ctx.Done():
			for len(s.unspent) > 0 {
				again(<-s.unspent)
			}
			return nil
		}
	}
}

func (s *Server) spendAgain(ctx context.Context, u unspent) {
	for wait, waited := firstSpend, time.Duration(0); waited <= spendFor; wait = min(2*wait, longestSpend) {
		if clock.Sleep(ctx, wait) != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			s.spendOnce(last, u)
			return
		}
		if s.spendOnce(ctx, u) {
			return
		}
		waited += wait
	}
	s.log.With(u.logKeys()...).Error("recording that a boot is spent: given up")
}
