package bootsvc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	maxHTTPConns  = 1024
	maxHTTPHeader = 16 << 10
	maxHTTPBody   = 64 << 10 // phone-home of the metadata server, which shares port 80
	awaitedLookup = 200 * time.Millisecond
)

// Handler answers the provisioning listeners:
//
//	/ipxe/script/<mac>/auto.ipxe        boot script, or boot-from-disk script
//	/ipxe/script/<mac>/hold.ipxe        the same, for a machine that waits in a script
//	/ipxe/binary/<mac>/<loader>         loader of an armed machine
//	/ipxe/binary/<mac>/autoexec.ipxe    the script, as iPXE 2.0 asks for it
//	/autoexec.ipxe, /ipxe/binary/<file> the same, for the machine with the source address
//	/auto.ipxe, /<mac>/auto.ipxe        the script, under the addresses of Tinkerbell's Smee
//	/boot/<mac>/<token>/vmlinuz         kernel, while the boot is open
//	/boot/<mac>/<token>/initramfs       initramfs, while the boot is open
//	/boot/<mac>/<token>/<image>         what an installer boots, while its boot is open
//	/images/<name>                      images, the current file
//	/images/<sha256>/<name>             images, the file of a plan
//	/media/ipxe.iso                     the image for virtual CD drives
//
// and passes everything else to Config.Fallback. A refused request gets the same 404
// for any reason.
func (s *Server) Handler() http.Handler {
	var images http.Handler
	if s.cfg.Images != nil {
		images = s.observeImages(ImageHandler(s.cfg.Images, s.log))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// An error means that the writer has no deadlines (in tests).
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Now().Add(streamStall))
		if r.ContentLength != 0 {
			_ = control.SetReadDeadline(time.Now().Add(30 * time.Second))
			r.Body = http.MaxBytesReader(w, r.Body, maxHTTPBody)
		}
		segments := split(r.URL.Path)
		ours := len(segments) > 0 && (segments[0] == "ipxe" || segments[0] == "boot" || segments[0] == "images" || segments[0] == "media" ||
			len(segments) == 1 && segments[0] == autoexecName || len(segments) <= 2 && segments[len(segments)-1] == scriptName)
		if !ours {
			if s.cfg.Fallback != nil {
				s.cfg.Fallback.ServeHTTP(w, r)
				return
			}
			notFound(w)
			return
		}
		if segments[0] == "images" && (len(segments) == 2 || len(segments) == 3 && sha256Form.MatchString(segments[1])) && images != nil {
			images.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		s.dispatch(w, r, segments)
	})
}

// split returns the elements of a path, without empty ones. Backslashes count as
// slashes because some firmware writes them. Dots need no treatment: no served name
// begins with one.
func split(p string) []string {
	return strings.FieldsFunc(p, func(c rune) bool { return c == '/' || c == '\\' })
}

// dispatch serves a path of this package; seg are its elements.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, seg []string) {
	switch {
	case len(seg) == 1 && seg[0] == autoexecName, len(seg) == 3 && seg[0] == "ipxe" && seg[1] == "binary":
		s.serveBinary(w, r, s.identify(bySource(r)), seg[len(seg)-1])
	case len(seg) == 1 && seg[0] == scriptName:
		s.serveScript(w, r, s.identify(bySource(r)), scriptName)
	case len(seg) == 2 && seg[1] == scriptName:
		s.dispatch(w, r, []string{"ipxe", "script", seg[0], scriptName})
	case len(seg) == 4 && seg[0] == "ipxe" && (seg[1] == "binary" || seg[1] == "script"):
		mac, ok := wire.ParseMAC(seg[2])
		if !ok {
			notFound(w)
			return
		}
		req := Request{MAC: mac, Class: wire.ClassIPXE, Arch: wire.ArchUnknown, Brief: true}
		if seg[1] == "script" {
			s.serveScript(w, r, req, seg[3])
			return
		}
		s.serveBinary(w, r, req, seg[3])
	case len(seg) == 2 && seg[0] == "media" && seg[1] == MediaName:
		s.serveMedia(w, r)
	case len(seg) == 4 && seg[0] == "boot":
		s.serveBoot(w, r, seg[1], seg[2], seg[3])
	default:
		notFound(w)
	}
}

// bySource returns a Request for the source address. It ignores X-Forwarded-For:
// booting machines do not use a proxy, and the header can be forged.
func bySource(r *http.Request) Request {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return Request{Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
	}
	return Request{Address: wire.Unmap(a.Addr()), Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
}

// decided looks the machine up. It returns nil if the answer must be 404.
func (s *Server) decided(ctx context.Context, req Request) (*inventory.Machine, Decision) {
	if req.MAC == "" && !req.Address.IsValid() {
		return nil, Decision{Verdict: Unknown}
	}
	m, _, d, err := s.lookup(ctx, req)
	if err != nil {
		s.log.Error("looking up a booting machine", "mac", req.MAC, "error", err)
	}
	if d.Verdict == Unknown {
		return nil, d
	}
	return &m, d
}

// decidedHTTP is decided, and also keeps the connection of an armed machine if all
// connections are in use. The machine is recognized by its address, because its MAC is
// known to the whole network.
func (s *Server) decidedHTTP(r *http.Request, req Request) (*inventory.Machine, Decision) {
	m, d := s.decided(r.Context(), req)
	if m == nil && s.admitVisitor(r.Context(), req.MAC, bySource(r).Address) {
		m, d = s.decided(r.Context(), req)
	}
	s.rememberHTTP(r, cmp.Or(d.Interface.MAC, req.MAC), r.URL.Path, d)
	if m != nil && d.Armed() && reserved(*m, bySource(r).Address) {
		httpserve.Prefer(r.Context())
	}
	return m, d
}

// rememberHTTP remembers a request of a client that boots.
func (s *Server) rememberHTTP(r *http.Request, mac, path string, d Decision) {
	s.History.Add(mac, wire.Entry{
		At: s.now(), Where: "HTTP from " + r.RemoteAddr,
		Request: plaintext.ASCII(r.Method+" "+path[:min(len(path), wire.MaxText)], wire.MaxText), // keeps no long path in memory
		Reply:   "verdict " + string(d.Verdict),
	})
}

// reserved reports whether an interface of m has that address.
func reserved(m inventory.Machine, a netip.Addr) bool {
	return a.IsValid() && slices.ContainsFunc(m.Interfaces, func(i inventory.Interface) bool { return i.Address == a })
}

func (s *Server) serveScript(w http.ResponseWriter, r *http.Request, req Request, name string) {
	m, d := s.decidedHTTP(r, req)
	if name != scriptName && name != autoexecName && name != holdName {
		notFound(w)
		return
	}
	if m == nil {
		if req.MAC == neighbours.CheckMAC {
			writeScript(w, r, s.checkScript())
			return
		}
		if name != holdName && s.anonymous(req) {
			writeScript(w, r, s.chainScript())
			return
		}
		notFound(w)
		return
	}
	script, ok, err := s.script(r.Context(), *m, d, name == autoexecName)
	if err == nil && !ok && name == holdName {
		// A 404 keeps iPXE in its hold loop; `exit 1` makes the firmware try the next boot device.
		script, ok = "#!ipxe\nexit 1\n", true
	}
	if err != nil {
		s.log.With(d.logKeys()...).Error("rendering a boot script", "error", err)
		http.Error(w, "the boot script cannot be rendered, see the server's log", http.StatusInternalServerError)
		return
	}
	if r.Method == http.MethodGet {
		s.rec.Event(d.event(scriptEvent(d), "by HTTP"))
	}
	if !ok {
		notFound(w)
		return
	}
	writeScript(w, r, script)
}

func writeScript(w http.ResponseWriter, r *http.Request, script string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(script)))
	if r.Method == http.MethodGet {
		_, _ = io.WriteString(w, script) // a disconnected client asks again
	}
}

func (s *Server) serveBinary(w http.ResponseWriter, r *http.Request, req Request, name string) {
	if name == autoexecName {
		s.serveScript(w, r, req, name)
		return
	}
	m, d := s.decidedHTTP(r, req)
	if m != nil && !d.ServesLoader() && req.Address.IsValid() && r.Method == http.MethodGet {
		s.rec.Event(d.event(diskEvent(d), name+" by HTTP")) // another DHCP server named the loader: the first request of this boot
	}
	if m == nil && !s.anonymous(req) || m != nil && !d.ServesLoader() {
		notFound(w)
		return
	}
	f, info, err := s.openLoader(name)
	if err != nil {
		notFound(w)
		return
	}
	s.serveAsset(w, r, d, f, info, inventory.EventLoader)
}

// MediaName is the file in LoaderDir that BMCs insert into virtual CD drives: iPXE, which asks DHCP like
// the loaders.
const MediaName = "ipxe.iso"

// serveMedia serves MediaName to everyone, because a BMC does not say which machine is its own. It
// holds no secret, and decides nothing.
func (s *Server) serveMedia(w http.ResponseWriter, r *http.Request) {
	f, info, err := s.openLoader(MediaName)
	if err != nil {
		notFound(w)
		return
	}
	s.serveAsset(w, r, Decision{}, f, info, "")
}

func (s *Server) serveBoot(w http.ResponseWriter, r *http.Request, macText, token, name string) {
	mac, ok := wire.ParseMAC(macText)
	if !ok {
		notFound(w)
		return
	}
	m, d := s.decided(r.Context(), Request{MAC: mac, Class: wire.ClassIPXE, Arch: wire.ArchUnknown})
	s.rememberHTTP(r, mac, "/boot/"+mac+"/TOKEN/"+name, d) // without the token, which opens the boot's files
	if m == nil || !s.bootOpen(d, token) {
		notFound(w)
		return
	}
	if d.Armed() { // a guest's token proves nothing: any MAC gets one
		httpserve.Prefer(r.Context())
	}
	if d.Verdict == Installer {
		s.serveInstaller(w, r, d, name)
		return
	}
	f, info, kind, err := s.openAgentOS(name)
	if err != nil {
		notFound(w)
		return
	}
	s.serveAsset(w, r, d, f, info, kind)
}

// beginTransfer notes that a file is being sent to the machine of d, until end is called.
func (s *Server) beginTransfer(d Decision) (end func()) {
	if d.Interface.MAC == "" || !d.Armed() {
		return func() {}
	}
	return s.History.BeginTransfer(d.Interface.MAC)
}

// bootOpen reports whether token opens the files of the boot that d decides.
func (s *Server) bootOpen(d Decision, token string) bool {
	return d.servesAgent() && inventory.Equal(token, inventory.BootToken(s.cfg.ClaimKey, d.Owner, d.Boot))
}

// openAgentOS opens a file of the agent OS, "vmlinuz" or "initramfs". kind is the event of
// its delivery.
func (s *Server) openAgentOS(name string) (f *os.File, info os.FileInfo, kind string, err error) {
	path, kind := s.cfg.KernelPath, inventory.EventKernel
	if name == "initramfs" {
		path, kind = s.cfg.InitramfsPath, inventory.EventInitrd
	} else if name != "vmlinuz" {
		return nil, nil, "", inventory.ErrNotFound
	}
	if f, err = os.Open(path); err == nil {
		f, info, err = regular(f)
	}
	if err != nil {
		s.log.Error("opening the agent OS", "file", path, "error", err)
	}
	return f, info, kind, err
}

// serveAsset serves f and closes it. If the whole file was sent, it records an event of the
// kind, unless that is empty.
func (s *Server) serveAsset(w http.ResponseWriter, r *http.Request, d Decision, f *os.File, info os.FileInfo, kind string) {
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	defer s.beginTransfer(d)()
	sw, began := newStreamWriter(w), s.now()
	serveFile(sw, r, info.Name(), f)
	if kind != "" && r.Method == http.MethodGet && sw.written == info.Size() && (sw.status == 0 || sw.status == http.StatusOK ||
		sw.status == http.StatusPartialContent) {
		s.rec.Transfer(d.event(kind, fmt.Sprintf("%d bytes by HTTP", info.Size())), began)
	}
}

// listenHTTP binds the HTTP listeners. Port 80 is often in use, so a port that cannot
// be bound is only a warning if another one works.
func (s *Server) listenHTTP(ctx context.Context) ([]net.Listener, error) {
	var out []net.Listener
	var errs []error
	for _, addr := range s.cfg.HTTPAddr {
		full := httpserve.WithHost(addr, s.cfg.bind())
		l, err := keptsocket.Listen(ctx, "tcp4", full)
		if err != nil {
			err = fmt.Errorf("binding TCP %s for HTTP: %w (%s)", full, err,
				httpserve.BindRemedy(err, "provisioning HTTP addresses"))
			s.log.Warn("an HTTP port cannot be bound", "address", full, "error", err)
			errs = append(errs, err)
			continue
		}
		if len(out) == 0 {
			s.httpPort.Store(uint32(l.Addr().(*net.TCPAddr).Port))
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

func (s *Server) serveHTTP(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.guard.Handler(s.requests.Handler(s.Handler())),
		ReadHeaderTimeout: 10 * time.Second, // no ReadTimeout: it would end the context of a long stream
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    maxHTTPHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	httpserve.Limit(srv, maxHTTPConns, func(source netip.Addr) bool { return s.awaited(ctx, source) })
	// Streams may last an hour; a disconnected client resumes by Range, or retries.
	return httpserve.Run(ctx, "HTTP", srv, httpserve.Track(l), 2*time.Second)
}

// awaited reports whether an address is reserved for a machine with an open netboot or
// secrets window, whose connections have priority. It is called for a new connection
// while all connections are in use.
func (s *Server) awaited(ctx context.Context, source netip.Addr) bool {
	defer s.guard.Recover("the source of a connection")
	ctx, cancel := context.WithTimeout(ctx, awaitedLookup)
	defer cancel()
	_, g, d, err := s.lookup(ctx, Request{Address: source, Class: wire.ClassIPXE, Arch: wire.ArchUnknown})
	return err == nil && (d.Armed() || d.Owner.Run != "" && s.now().Before(g.SecretsUntil))
}
