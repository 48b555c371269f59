package wire

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

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// Limits on what the server keeps of packets to the syslog port (security S48). The inventory limits how many lines of
// a machine are stored.
const (
	maxSyslogPacket  = 2048 // bytes to read of a packet
	maxSyslogText    = 512  // characters of a line
	maxSyslogProgram = 48
)

// syslogPort is the only port to which DHCP clients send syslog messages: option 7 (RFC 2132 §3.9) contains no port.
const syslogPort = 514

var severities = [8]string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"} // RFC 5424 §6.2.1

// Secrets that a machine may print: secret URL paths, boot tokens, claims and nonces, which are all long hexadecimal
// numbers, and the user name and password in a URL.
var (
	capabilityPath = regexp.MustCompile(`/c/([^/\s]*)/[^/\s]+`)
	longHex        = regexp.MustCompile(`[0-9A-Fa-f]{40,}`)
	urlUser        = regexp.MustCompile(`://[^/\s@]+@`)
	claimArgument  = regexp.MustCompile(`ingot\.claim=\S*`)
)

// redact replaces secrets in a text.
func redact(s string) string {
	s = capabilityPath.ReplaceAllString(s, "/c/$1/SECRET")
	s = claimArgument.ReplaceAllString(s, "ingot.claim=SECRET")
	s = urlUser.ReplaceAllString(s, "://")
	return longHex.ReplaceAllString(s, "HEX")
}

var (
	syslogPriority = regexp.MustCompile(`^<([0-9]{1,3})>`)
	syslogTime     = regexp.MustCompile(`^[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} `)   // RFC 3164 §4.1.2
	syslogTag      = regexp.MustCompile(`^(?:[^\s:\[\]]+ )?([A-Za-z0-9_./-]+)(?:\[[^\]\s]*\])?: ?`) // optional host, then tag
)

// parseSyslog parses a message of RFC 5424 or RFC 3164, or any other text. It drops the time and the host, which the
// sender may get wrong. Without a priority, the severity is notice (RFC 3164 §4.3.3). The result contains no control
// characters and no secrets. ok is false if the message has no text.
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

// skipStructuredData returns the text after the structured data of RFC 5424 §6.3, or all of s if the structured data
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

// Syslog receives the syslog messages of machines.
type Syslog struct {
	rec *Recorder
	// machineAt returns the name of the machine with a source address, or "".
	machineAt func(context.Context, netip.Addr) string
	named     atomic.Bool // whether DHCP may name this server to clients
	unknown   atomic.Int64
}

// NewSyslog returns a server that records lines with r. machineAt returns the name of the machine with a source
// address, or "" if there is none.
func NewSyslog(r *Recorder, machineAt func(context.Context, netip.Addr) string) *Syslog {
	return &Syslog{rec: r, machineAt: machineAt}
}

// IsNamed reports whether DHCP may name this server in option 7: only if it listens on port 514, because clients use
// no other port.
func (s *Syslog) IsNamed() bool { return s.named.Load() }

// UnknownSenders returns how many messages came from hosts that are not in the inventory.
func (s *Syslog) UnknownSenders() int64 { return s.unknown.Load() }

// Listen binds a UDP address. If that fails, it logs a warning and returns nil, because many hosts run a syslog daemon
// on this port.
func (s *Syslog) Listen(ctx context.Context, addr string) *net.UDPConn {
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(ctx, "udp4", addr)
	if err != nil {
		err = fmt.Errorf("binding UDP %s for syslog: %w (%s)", addr, err, httpserve.BindRemedy(err, "netboot.syslog"))
		s.rec.log.Warn("the syslog port cannot be bound, so Ingot keeps no syslog messages of machines", "address", addr, "error", err)
		return nil
	}
	conn := pc.(*net.UDPConn)
	s.named.Store(conn.LocalAddr().(*net.UDPAddr).Port == syslogPort) // clients know no other port
	return conn
}

// Serve reads messages until ctx ends, with a single goroutine. If messages come faster than it reads, the kernel
// drops some.
func (s *Syslog) Serve(ctx context.Context, conn *net.UDPConn) error {
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
			s.rec.log.Warn("reading syslog", "error", err)
			_ = clock.Sleep(ctx, time.Second)
			continue
		}
		s.handle(ctx, buf[:n], Unmap(from.Addr()))
	}
}

// handle queues a message if its source address belongs to a machine of the inventory. It counts messages of other
// senders.
func (s *Syslog) handle(ctx context.Context, b []byte, from netip.Addr) {
	defer s.rec.guard.Recover("a syslog message")
	machine := s.machineAt(ctx, from)
	if machine == "" {
		s.unknown.Add(1)
		return
	}
	if x, ok := parseSyslog(b); ok {
		x.Machine, x.At = machine, s.rec.now()
		s.rec.syslog(x)
	}
}
