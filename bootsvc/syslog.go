package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/internal/clock"
	"github.com/ingotmetal/ingot/internal/httpserve"
	"github.com/ingotmetal/ingot/internal/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// Limits of what packets to the syslog port can make the server keep (security S48). How many lines
// of a machine are stored is a limit of the inventory.
const (
	maxSyslogPacket  = 2048 // bytes that are read of a packet
	maxSyslogText    = 512  // characters of a line
	maxSyslogProgram = 48
	maxPendingSyslog = 4096 // lines between two writes
	maxSyslogEach    = 200  // of one machine
)

// syslogPort is the only port that clients know: DHCP option 7 (RFC 2132 §3.9) has none.
const syslogPort = 514

var severities = [8]string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"} // RFC 5424 §6.2.1

// Secrets that a machine may print: capability paths, boot tokens, claims and nonces, which are all
// long hexadecimal numbers, and the user of a URL.
var (
	capabilityPath = regexp.MustCompile(`/c/([^/\s]*)/[^/\s]+`)
	longHex        = regexp.MustCompile(`[0-9A-Fa-f]{40,}`)
	urlUser        = regexp.MustCompile(`://[^/\s@]+@`)
	claimArgument  = regexp.MustCompile(`ingot\.claim=\S*`)
)

// redact cuts secrets out of a text.
func redact(s string) string {
	s = capabilityPath.ReplaceAllString(s, "/c/$1/SECRET")
	s = claimArgument.ReplaceAllString(s, "ingot.claim=SECRET")
	s = urlUser.ReplaceAllString(s, "://")
	return longHex.ReplaceAllString(s, "HEX")
}

var (
	syslogPriority = regexp.MustCompile(`^<([0-9]{1,3})>`)
	syslogTime     = regexp.MustCompile(`^[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} `)   // RFC 3164 §4.1.2
	syslogTag      = regexp.MustCompile(`^(?:[^\s:\[\]]+ )?([A-Za-z0-9_./-]+)(?:\[[^\]\s]*\])?: ?`) // host, then tag
)

// parseSyslog reads a message of RFC 5424 or RFC 3164, or any text, without its time and host, which
// the sender may get wrong. A message without a priority has the severity notice (RFC 3164 §4.3.3).
// The result has no control characters and no secrets. ok is false for a message without text.
func parseSyslog(b []byte) (x inventory.SyslogLine, ok bool) {
	text := redact(plaintext.ASCII(string(b), maxSyslogPacket))
	x.Severity = severities[5]
	if m := syslogPriority.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1]) // three digits
		x.Severity = severities[n%8]
		text = text[len(m[0]):]
	}

	if rest, is := strings.CutPrefix(text, "1 "); is { // RFC 5424 §6: VERSION TIMESTAMP HOSTNAME APP-NAME PROCID MSGID
		if f := strings.SplitN(rest, " ", 6); len(f) == 6 {
			x.Program, text = f[2], skipStructuredData(f[5])
		}
	} else {
		text = text[len(syslogTime.FindString(text)):]
		if m := syslogTag.FindStringSubmatch(text); m != nil {
			x.Program, text = m[1], text[len(m[0]):]
		}
	}

	if x.Program == "-" {
		x.Program = ""
	}
	x.Program = x.Program[:min(len(x.Program), maxSyslogProgram)]
	text = strings.TrimSpace(text)
	x.Text = text[:min(len(text), maxSyslogText)]
	return x, x.Text != ""
}

// skipStructuredData returns what follows the structured data of RFC 5424 §6.3, or all of s if that
// has no end.
func skipStructuredData(s string) string {
	if rest, is := strings.CutPrefix(s, "-"); is {
		return rest
	}
	inside := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && inside:
			i++
		case c == '[' && !inside:
			inside = true
		case c == ']' && inside:
			inside = false
		case !inside:
			return s[i:]
		}
	}
	if inside {
		return s
	}
	return ""
}

// syslogQueue are lines that are not written yet. recorder.mu protects it.
type syslogQueue struct {
	lines []inventory.SyslogLine
	of    map[string]int // lines of each machine

	dropped, unknown atomic.Int64
}

// syslog queues a line of a machine. If there are too many, it is dropped and counted.
func (r *recorder) syslog(x inventory.SyslogLine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := &r.lines
	if len(q.lines) >= maxPendingSyslog || q.of[x.Machine] >= maxSyslogEach {
		q.dropped.Add(1)
		return
	}
	if q.of == nil {
		q.of = map[string]int{}
	}
	q.of[x.Machine]++
	q.lines = append(q.lines, x)
	signal(r.wakeSyslog)
}

// flushSyslog writes the lines. If that fails, they are lost: what matters is an event, and a disk
// that is full is not filled by this.
func (r *recorder) flushSyslog(ctx context.Context) {
	defer r.guard.Recover("lines of syslog")
	r.mu.Lock()
	lines := r.lines.lines
	r.lines.lines, r.lines.of = nil, nil
	r.mu.Unlock()
	if len(lines) == 0 {
		return
	}
	if err := r.journal.PutSyslog(ctx, lines); err != nil {
		r.lines.dropped.Add(int64(len(lines)))
		r.log.Warn("writing what machines sent by syslog; it is lost", "error", err, "lines", len(lines))
	}
}

// listenSyslog binds the syslog port. Many hosts have a syslog daemon, so a port that cannot be bound
// is a warning, and the result is nil.
func (s *Server) listenSyslog(ctx context.Context) *net.UDPConn {
	if s.cfg.SyslogAddr == "" {
		return nil
	}
	full := httpserve.WithHost(s.cfg.SyslogAddr, s.cfg.bind())
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(ctx, "udp4", full)
	if err != nil {
		err = fmt.Errorf("binding UDP %s for syslog: %w (%s)", full, err, httpserve.BindRemedy(err, "netboot.syslog"))
		s.log.Warn("the syslog port cannot be bound: what machines send there is not kept", "address", full, "error", err)
		return nil
	}
	conn := pc.(*net.UDPConn)
	s.logServer.Store(conn.LocalAddr().(*net.UDPAddr).Port == syslogPort) // clients know no other port
	return conn
}

// serveSyslog reads messages until ctx ends. One goroutine reads them: the kernel drops what comes
// faster.
func (s *Server) serveSyslog(ctx context.Context, conn *net.UDPConn) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, maxSyslogPacket)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("reading syslog: %w", err)
		case err != nil:
			s.log.Warn("reading syslog", "error", err)
			_ = clock.Sleep(ctx, time.Second)
			continue
		}
		s.handleSyslog(ctx, buf[:n], unmap(from.Addr()))
	}
}

// handleSyslog queues a message of a machine of the inventory, which is known by its source address.
// Other senders are counted.
func (s *Server) handleSyslog(ctx context.Context, b []byte, from netip.Addr) {
	defer s.guard.Recover("a message by syslog")
	ctx, cancel := context.WithTimeout(ctx, dhcpLookup)
	defer cancel()
	_, _, d, err := s.lookup(ctx, s.identify(Request{Address: from, Class: ClassNone, Arch: ArchUnknown}))
	if err != nil || d.Machine == "" {
		s.rec.lines.unknown.Add(1)
		return
	}
	if x, ok := parseSyslog(b); ok {
		x.Machine, x.At = d.Machine, s.now()
		s.rec.syslog(x)
	}
}
