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
	"path"
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
	maxHTTPBody   = 64 << 10 // enough for the phone-home requests of the metadata server, which also come to port 80
)

// webFiles answers the HTTP requests of machines.
type webFiles struct {
	cfg      *Config
	decider  *decider
	scripts  *scripts
	loaders  *loaders
	spender  *spender
	history  *wire.History
	rec      *wire.Recorder
	requests httpserve.Requests
}

// listen binds the HTTP listeners. Port 80 is often in use. Therefore a port that cannot be bound causes only a
// warning, unless no port can be bound.
func (h *webFiles) listen(ctx context.Context) ([]net.Listener, error) {
	var out []net.Listener
	var errs []error
	for _, addr := range h.cfg.HTTPAddr {
		full := httpserve.WithHost(addr, h.cfg.bindAddress())
		l, err := keptsocket.Listen(ctx, "tcp4", full)
		if err != nil {
			err = fmt.Errorf("binding TCP %s for HTTP: %w (%s)", full, err,
				httpserve.BindRemedy(err, "provisioning HTTP addresses"))
			h.cfg.Log.Warn("an HTTP port cannot be bound", "address", full, "error", err)
			errs = append(errs, err)
			continue
		}
		if len(out) == 0 {
			h.scripts.urls.port.Store(uint32(l.Addr().(*net.TCPAddr).Port))
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

func (h *webFiles) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           h.cfg.Guard.Handler(h.requests.Handler(h.handler())),
		ReadHeaderTimeout: 10 * time.Second, // there is no ReadTimeout, because it would end the context of a long stream
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    maxHTTPHeader,
		ErrorLog:          slog.NewLogLogger(h.cfg.Log.Handler(), slog.LevelWarn),
	}
	httpserve.Limit(srv, maxHTTPConns, func(source netip.Addr) bool { return h.decider.isAwaited(ctx, source) })
	// A stream may last an hour, but shutdown waits only 2 s. The client then resumes with Range, or starts again.
	return httpserve.Run(ctx, "HTTP", srv, httpserve.Track(l), 2*time.Second)
}

// handler serves these paths to machines:
//
//	/ipxe/script/<mac>/auto.ipxe        boot script, or boot-from-disk script
//	/ipxe/script/<mac>/hold.ipxe        the same, for a machine that already runs the hold script
//	/ipxe/binary/<mac>/<loader>         loader of an armed machine
//	/ipxe/binary/<mac>/autoexec.ipxe    the script, under the name that iPXE 2.0 requests
//	/autoexec.ipxe, /ipxe/binary/<file> the same, for the machine that has the source address
//	/auto.ipxe, /<mac>/auto.ipxe        the script, under the paths of Tinkerbell's Smee
//	/boot/<mac>/<token>/vmlinuz         kernel, while the boot is open
//	/boot/<mac>/<token>/initramfs       initramfs, while the boot is open
//	/boot/<mac>/<token>/<image>         a file that an installer boots, while the boot is open
//	/images/<name>                      the current file of an image
//	/images/<sha256>/<name>             the file of an image that has this digest
//	/media/ipxe.iso                     the image for virtual CD drives
//
// Config.Fallback answers all other paths. If a machine may not have a file, it gets the same 404 as for an unknown
// path.
func (h *webFiles) handler() http.Handler {
	var images http.Handler
	if h.cfg.Images != nil {
		images = h.observeImages(imageHandler(h.cfg.Images, h.cfg.Log))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// SetWriteDeadline fails only for a writer without deadlines, as in tests.
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Now().Add(streamStall))
		if r.ContentLength != 0 {
			_ = control.SetReadDeadline(time.Now().Add(30 * time.Second))
			r.Body = http.MaxBytesReader(w, r.Body, maxHTTPBody)
		}
		segments := splitPath(r.URL.Path)
		ours := len(segments) > 0 && (segments[0] == "ipxe" || segments[0] == "boot" || segments[0] == "images" || segments[0] == "media" ||
			len(segments) == 1 && segments[0] == autoexecName || len(segments) <= 2 && segments[len(segments)-1] == scriptName)
		if !ours {
			if h.cfg.Fallback != nil {
				h.cfg.Fallback.ServeHTTP(w, r)
				return
			}
			notFound(w)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		if segments[0] == "images" && (len(segments) == 2 || len(segments) == 3 && sha256Form.MatchString(segments[1])) && images != nil {
			images.ServeHTTP(w, r)
			return
		}
		h.dispatch(w, r, segments)
	})
}

// splitPath returns the non-empty elements of a path. Backslashes count as slashes, because some firmware sends
// backslashes. The elements "." and ".." need no special treatment, because no served name begins with a dot.
func splitPath(p string) []string {
	return strings.FieldsFunc(p, func(c rune) bool { return c == '/' || c == '\\' })
}

// dispatch serves a path that belongs to this package. seg are the elements of the path.
func (h *webFiles) dispatch(w http.ResponseWriter, r *http.Request, seg []string) {
	switch {
	case len(seg) == 1 && seg[0] == autoexecName, len(seg) == 3 && seg[0] == "ipxe" && seg[1] == "binary":
		h.serveBinary(w, r, h.decider.network.identify(bySource(r)), seg[len(seg)-1])
	case len(seg) == 1 && seg[0] == scriptName:
		h.serveScript(w, r, h.decider.network.identify(bySource(r)), scriptName)
	case len(seg) == 2 && seg[1] == scriptName:
		h.dispatch(w, r, []string{"ipxe", "script", seg[0], scriptName})
	case len(seg) == 4 && seg[0] == "ipxe" && (seg[1] == "binary" || seg[1] == "script"):
		mac, ok := wire.ParseMAC(seg[2])
		if !ok {
			notFound(w)
			return
		}
		req := Request{MAC: mac, Class: wire.ClassIPXE, Arch: wire.ArchUnknown, Brief: true}
		if seg[1] == "script" {
			h.serveScript(w, r, req, seg[3])
			return
		}
		h.serveBinary(w, r, req, seg[3])
	case len(seg) == 2 && seg[0] == "media" && seg[1] == MediaName:
		h.serveMedia(w, r)
	case len(seg) == 4 && seg[0] == "boot":
		h.serveBoot(w, r, seg[1], seg[2], seg[3])
	default:
		notFound(w)
	}
}

// bySource returns a Request that identifies the client by the source address of r. It ignores X-Forwarded-For, because
// booting machines use no proxy, and the header can be forged.
func bySource(r *http.Request) Request {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return Request{Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
	}
	return Request{Address: wire.Unmap(a.Addr()), Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
}

// find calls decider.find. If the machine is armed, find also lets it keep its connection when all connections are in
// use. For this, the request must come from the machine's reserved address: a MAC alone proves nothing, because every
// host on the network can learn it.
func (h *webFiles) find(r *http.Request, req Request) (*inventory.Machine, Decision) {
	source := bySource(r).Address
	m, d := h.decider.find(r.Context(), req, source)
	h.remember(r, cmp.Or(d.Interface.MAC, req.MAC), r.URL.Path, d)
	if m != nil && d.Armed() && hasAddress(*m, source) {
		httpserve.Prefer(r.Context())
	}
	return m, d
}

// remember adds a request to the history of the client with this MAC.
func (h *webFiles) remember(r *http.Request, mac, path string, d Decision) {
	h.history.Add(mac, wire.Entry{
		At: h.cfg.Now(), Where: "HTTP from " + r.RemoteAddr,
		Request: plaintext.ASCII(r.Method+" "+path[:min(len(path), wire.MaxText)], wire.MaxText), // do not copy more of a long path
		Reply:   "verdict " + string(d.Verdict),
	})
}

// hasAddress reports whether the address a is reserved for an interface of m.
func hasAddress(m inventory.Machine, a netip.Addr) bool {
	return a.IsValid() && slices.ContainsFunc(m.Interfaces, func(i inventory.Interface) bool { return i.Address == a })
}

func (h *webFiles) serveScript(w http.ResponseWriter, r *http.Request, req Request, name string) {
	m, d := h.find(r, req)
	if name != scriptName && name != autoexecName && name != holdName {
		notFound(w)
		return
	}
	if m == nil {
		if req.MAC == neighbours.CheckMAC {
			writeScript(w, r, h.scripts.checkScript())
			return
		}
		if name != holdName && h.decider.network.isAnonymous(req) {
			writeScript(w, r, h.scripts.chainScript())
			return
		}
		notFound(w)
		return
	}
	script, ok, err := h.scripts.render(r.Context(), *m, d, name == autoexecName)
	if err == nil && !ok && name == holdName {
		// With a 404, iPXE would stay in its hold loop. With `exit 1`, the firmware tries the next boot device.
		script, ok = "#!ipxe\nexit 1\n", true
	}
	if err != nil {
		h.cfg.Log.With(d.logKeys()...).Error("rendering a boot script", "error", err)
		http.Error(w, "the boot script cannot be rendered; see the server's log", http.StatusInternalServerError)
		return
	}
	if r.Method == http.MethodGet {
		h.rec.Event(d.event(scriptEvent(d), "by HTTP"))
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
		_, _ = io.WriteString(w, script) // ignore the error: a client that has disconnected asks again
	}
}

func (h *webFiles) serveBinary(w http.ResponseWriter, r *http.Request, req Request, name string) {
	if name == autoexecName {
		h.serveScript(w, r, req, name)
		return
	}
	m, d := h.find(r, req)
	if m != nil && !d.ServesLoader() && req.Address.IsValid() && r.Method == http.MethodGet {
		h.rec.Event(d.event(diskEvent(d), name+" by HTTP")) // another DHCP server named the loader, so this is the first request of this boot
	}
	if m == nil && !h.decider.network.isAnonymous(req) || m != nil && !d.ServesLoader() {
		notFound(w)
		return
	}
	f, info, err := h.loaders.open(name)
	if err != nil {
		notFound(w)
		return
	}
	h.serveAsset(w, r, d, f, info, inventory.EventLoader)
}

// MediaName is the file in LoaderDir that a BMC inserts into a virtual CD drive. It contains iPXE. Like the other
// loaders, this iPXE asks DHCP for its script.
const MediaName = "ipxe.iso"

// serveMedia serves MediaName to every client, because the request of a BMC does not say for which machine it is. This
// is safe: the file contains no secret, and does not allow a machine to netboot.
func (h *webFiles) serveMedia(w http.ResponseWriter, r *http.Request) {
	f, info, err := h.loaders.open(MediaName)
	if err != nil {
		notFound(w)
		return
	}
	h.serveAsset(w, r, Decision{}, f, info, "")
}

func (h *webFiles) serveBoot(w http.ResponseWriter, r *http.Request, macText, token, name string) {
	mac, ok := wire.ParseMAC(macText)
	if !ok {
		notFound(w)
		return
	}
	m, d := h.decider.find(r.Context(), Request{MAC: mac, Class: wire.ClassIPXE, Arch: wire.ArchUnknown}, netip.Addr{})
	h.remember(r, mac, "/boot/"+mac+"/TOKEN/"+name, d) // leave out the token, with which anyone could fetch the files of this boot
	if m == nil || !h.scripts.urls.isOpen(d, token) {
		notFound(w)
		return
	}
	if d.Armed() { // not for a guest, because any MAC can get the token of a guest
		httpserve.Prefer(r.Context())
	}
	if d.Verdict == Installer {
		h.serveInstaller(w, r, d, name)
		return
	}
	f, info, kind, err := h.loaders.openAgentOS(name)
	if err != nil {
		notFound(w)
		return
	}
	h.serveAsset(w, r, d, f, info, kind)
}

// serveAsset serves the file f and closes it. If it has sent the whole file, it records an event of this kind, unless
// kind is empty.
func (h *webFiles) serveAsset(w http.ResponseWriter, r *http.Request, d Decision, f *os.File, info os.FileInfo, kind string) {
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	defer beginTransfer(h.history, d)()
	sw, began := newStreamWriter(w), h.cfg.Now()
	serveFile(sw, r, info.Name(), f)
	if kind != "" && r.Method == http.MethodGet && sw.written == info.Size() && (sw.status == 0 || sw.status == http.StatusOK ||
		sw.status == http.StatusPartialContent) {
		h.rec.Transfer(d.event(kind, fmt.Sprintf("%d bytes by HTTP", info.Size())), began)
	}
}

// serveInstaller serves one image of the installer of d's run. Once it has sent the last payload of the installer
// completely, it records that the boot is spent, so that the machine is sent to its disk.
func (h *webFiles) serveInstaller(w http.ResponseWriter, r *http.Request, d Decision, name string) {
	i, err := h.scripts.installers.find(r.Context(), d)
	if err == nil && !slices.Contains(i.Images(), name) {
		notFound(w)
		return
	}
	var f planned
	if err == nil {
		f, err = h.scripts.installers.open(r.Context(), i, name)
	}
	var size int64
	if err == nil {
		defer f.Close() // the file was only read, so an error loses no data
		if size, err = f.Seek(0, io.SeekEnd); err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
	}
	if err != nil {
		h.cfg.Log.With(d.logKeys()...).Error("opening an image of an installer", "image", name, "error", err)
		notFound(w)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	if sha256Form.MatchString(f.SHA256) {
		w.Header().Set("ETag", `"`+f.SHA256+`"`)
	}
	defer beginTransfer(h.history, d)()
	sw, began := newStreamWriter(w), h.cfg.Now()
	serveFile(sw, r, name, f)
	if r.Method != http.MethodGet || !sentToEnd(sw, size) {
		return
	}
	kind := inventory.EventInitrd
	if name == i.Kernel {
		kind = inventory.EventKernel
	}
	h.rec.Transfer(d.event(kind, fmt.Sprintf("%s, %d bytes by HTTP", name, size)), began)
	if name == i.Payload {
		h.spender.spend(context.WithoutCancel(r.Context()), d, name)
	}
}

// sentToEnd reports whether w has sent the last byte of a file of size bytes. The answer may be the whole file, or a
// range that ends with the last byte.
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

// observeImages calls Config.Delivered after each answer to a machine that a run owns. It recognizes the machine by the
// source address of the request.
func (h *webFiles) observeImages(images http.Handler) http.Handler {
	if h.cfg.Delivered == nil {
		return images
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sw, began := newStreamWriter(w), h.cfg.Now()
		images.ServeHTTP(sw, r)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), awaitedLookup)
		defer cancel()
		source := bySource(r)
		_, g, _, err := h.decider.lookup(ctx, source)
		if err != nil || g.Run == "" || g.ByOperator() {
			return
		}
		h.cfg.Delivered(Delivery{
			Owner: g.Owner, Boot: g.Boot, Method: r.Method, Image: path.Base(r.URL.Path), Client: source.Address,
			Status: cmp.Or(sw.status, http.StatusOK), Bytes: sw.written, Began: began, Ended: h.cfg.Now(),
		})
	})
}
