package api

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

type agentStore interface {
	Redeem(ctx context.Context, o inventory.Owner, boot int, h action.Hello, tokenFor func(nonce string) string, secretsUntil time.Time) (inventory.Agent, error)
	AgentByToken(ctx context.Context, tokenSHA256 []byte) (inventory.Agent, error)
	AgentUsed(ctx context.Context, o inventory.Owner, boot int) error
	Agent(ctx context.Context, o inventory.Owner) (inventory.Agent, error)
	MachineAgent(ctx context.Context, machine string) (inventory.Agent, error)
	NextAssignment(ctx context.Context, o inventory.Owner) (inventory.Assignment, error)
	Delivered(ctx context.Context, o inventory.Owner, k action.Key) error
	Stops(ctx context.Context, o inventory.Owner) ([]action.Key, error)
	Report(ctx context.Context, o inventory.Owner, boot int, r action.Result) (fresh bool, err error)
	TouchAgents(ctx context.Context, seen []inventory.AgentSeen) error
	AppendLog(ctx context.Context, o inventory.Owner, k action.Key, text string) error
	ClaimConflict(ctx context.Context, o inventory.Owner, boot int, message string, facts json.RawMessage) error
	Watch(machine string) (ch <-chan struct{}, cancel func())
}

// bodyTime is how long the body of an agent's request may take.
const bodyTime = 30 * time.Second

// Limits of what an agent may send, in bytes.
const (
	maxHello     = action.MaxHello // security S7
	maxHeartbeat = 64 << 10
	maxReport    = 256 << 10
	maxLogTail   = 16 << 10
	maxMessage   = 8 << 10
)

// maxWait is how long a poll may be held.
const maxWait = time.Minute

// token derives the bearer token of the agent that redeemed the claim of o's
// boot with nonce: the same each time, so that an answer that was lost can be
// given again although only the token's hash is kept.
func (s *Server) token(o inventory.Owner, boot int, nonce string) string {
	m := hmac.New(sha256.New, s.cfg.ClaimKey)
	fmt.Fprintf(m, "token\x00%s\x00%s\x00%d\x00%d\x00%s", o.Machine, o.Run, o.Epoch, boot, nonce)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// agentBody reads what an agent sent. Fields that this build does not know are
// ignored: the agent may be of the next release.
func agentBody(c *gin.Context, v any, limit int64) error {
	// A body that trickles in holds a connection that anybody on the wire can
	// open. The deadline ends with the body: long polls come without one.
	rc := http.NewResponseController(c.Writer)
	if err := rc.SetReadDeadline(time.Now().Add(bodyTime)); err == nil {
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }() // a connection that is gone needs none
	}
	if err := json.NewDecoder(http.MaxBytesReader(c.Writer, c.Request.Body, limit)).Decode(v); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return err
		}
		return invalid("", "", "reading the body: %v", err)
	}
	return nil
}

// claim redeems the claim of a boot. Wrong, closed and unknown get the same
// answer after the same work (security S3).
func (s *Server) claim(c *gin.Context) {
	var h action.Hello
	if err := agentBody(c, &h, maxHello); err != nil {
		s.fail(c, err)
		return
	}
	if b, err := hex.DecodeString(h.Nonce); err != nil || len(b) < 16 || len(b) > 64 {
		s.fail(c, invalid("nonce", "", "is not 128 to 512 bits in hex"))
		return
	}
	g, err := s.cfg.Store.Grant(c.Request.Context(), h.Machine)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		s.fail(c, err)
		return
	}
	ours := inventory.Equal(inventory.Claim(s.cfg.ClaimKey, g.Owner, g.Boot), h.Claim)
	if !ours || g.Run == "" || g.Boot == 0 {
		notFound(c)
		return
	}
	if err := speaks(h.Protocol); err != nil {
		if s.told.first(g, "protocol") {
			s.cfg.Log.Warn("an agent speaks another protocol", "machine", g.Machine, "run", g.Run, "boot", g.Boot, "protocol", h.Protocol)
		}
		s.fail(c, err)
		return
	}
	strange, err := s.contradicts(c, g, h)
	if errors.Is(err, inventory.ErrNotFound) {
		notFound(c)
		return
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	if strange {
		refuse(c, http.StatusConflict, "claim-conflict", "the hardware is not the machine's", "")
		return
	}
	now := s.cfg.Now()
	a, err := s.cfg.Store.Redeem(c.Request.Context(), g.Owner, g.Boot, h, func(nonce string) string { return s.token(g.Owner, g.Boot, nonce) }, now.Add(s.cfg.SecretsFor))
	switch {
	case errors.Is(err, inventory.ErrNotFound), errors.Is(err, inventory.ErrFenced):
		notFound(c)
		return
	case errors.Is(err, inventory.ErrConflict):
		if s.told.first(g, "second agent") {
			s.cfg.Log.Warn("a second agent claimed a boot", "machine", g.Machine, "run", g.Run, "boot", g.Boot)
		}
		refuse(c, http.StatusConflict, "claim-conflict", "another agent has redeemed this boot's claim", "")
		return
	case err != nil:
		s.fail(c, err)
		return
	}
	s.agents.saw(a, now)
	c.JSON(http.StatusOK, action.Welcome{
		Protocol: action.Protocol, Token: s.token(a.Owner, a.Boot, a.Nonce), Run: a.Run, Epoch: a.Epoch, Boot: a.Boot,
		Heartbeat: action.Seconds(max(s.cfg.Heartbeat/time.Second, 1)), Time: now.UTC(),
	})
}

// told is what the log has been told of boots already.
type told struct {
	mu    sync.Mutex
	lines map[string]struct{}
}

// maxTold bounds what told remembers.
const maxTold = 4096

// first tells whether the log is to hear of what about the boot of g, or has
// been told: whoever has read a claim off the wire decides how often he comes.
func (t *told) first(g inventory.Grant, what string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := fmt.Sprintf("%s\x00%d\x00%d\x00%s", g.Machine, g.Epoch, g.Boot, what)
	_, known := t.lines[line]
	if len(t.lines) >= maxTold || t.lines == nil {
		t.lines = map[string]struct{}{}
	}
	t.lines[line] = struct{}{}
	return !known
}

// speaks refuses an agent of another protocol, and says which of the two is older.
func speaks(protocol int) error {
	switch {
	case protocol < action.Protocol:
		return invalid("protocol", "put the agent OS of this release into the configured directory and boot the machine again",
			"the agent speaks protocol %d, this server protocol %d: the agent OS is too old", protocol, action.Protocol)
	case protocol > action.Protocol:
		return invalid("protocol", "upgrade the server, or boot the agent OS of its release",
			"the agent speaks protocol %d, this server protocol %d: the agent OS is newer than the server", protocol, action.Protocol)
	}
	return nil
}

// contradicts tells whether the hardware that claims g cannot be its machine:
// none of its network interfaces is one that the inventory names. Then the
// boot's agent loses its token, and the run is told, so that a person is asked.
func (s *Server) contradicts(c *gin.Context, g inventory.Grant, h action.Hello) (bool, error) {
	m, err := s.cfg.Store.Machine(c.Request.Context(), g.Machine)
	if err != nil {
		return false, err
	}
	macs := []string{h.MAC}
	for _, n := range h.Facts.NICs {
		macs = append(macs, n.MAC)
	}
	told := false
	for _, mac := range macs {
		if mac == "" {
			continue
		}
		told = true
		if k, err := inventory.ParseMAC(mac); err == nil {
			if _, ok := m.InterfaceByMAC(k); ok {
				return false, nil
			}
		}
	}
	if !told {
		return false, nil
	}
	if s.told.first(g, "strange hardware") {
		s.cfg.Log.Warn("strange hardware claimed a boot", "machine", g.Machine, "run", g.Run, "boot", g.Boot, "mac", clean(h.MAC, 32))
	}
	detail, err := json.Marshal(h.Facts)
	if err != nil {
		return true, fmt.Errorf("encoding the facts of %q: %w", g.Machine, err)
	}
	return true, s.cfg.Store.ClaimConflict(c.Request.Context(), g.Owner, g.Boot, "the hardware has none of the machine's MAC addresses", detail)
}

// agent returns whose token the request carries, or answers: 401 when nobody
// knows it (this site may have lost its data) and 403 when it was revoked while
// its run goes on (a second agent came for the boot, or a later boot's): on
// both the agent stops writing, stays and keeps asking. 410 only when the grant
// says that its run is over.
func (s *Server) agent(c *gin.Context) (inventory.Agent, bool) {
	token, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !ok || token == "" {
		refuse(c, http.StatusUnauthorized, codeUnauthorized, "an agent's token is needed", "")
		return inventory.Agent{}, false
	}
	sum := sha256.Sum256([]byte(token))
	a, err := s.cfg.Store.AgentByToken(c.Request.Context(), sum[:])
	switch {
	case errors.Is(err, inventory.ErrNotFound):
		refuse(c, http.StatusUnauthorized, codeUnauthorized, "nobody knows this token", "")
		return a, false
	case err != nil:
		s.agentFail(c, err)
		return a, false
	}
	if !a.Used {
		if err := s.cfg.Store.AgentUsed(c.Request.Context(), a.Owner, a.Boot); err != nil {
			s.agentFail(c, err)
			return a, false
		}
	}
	httpserve.Prefer(c.Request.Context())
	s.agents.saw(a, s.cfg.Now())
	return a, true
}

// agentFail is fail for agents: fenced means that the run is over, a conflict
// that the token was revoked.
func (s *Server) agentFail(c *gin.Context, err error) {
	if errors.Is(err, inventory.ErrConflict) {
		refuse(c, http.StatusForbidden, codeForbidden, "hold: this boot's token was revoked, because another agent came with its claim or a later boot began", "")
		return
	}
	if errors.Is(err, inventory.ErrFenced) {
		c.AbortWithStatusJSON(http.StatusGone, action.Farewell{Reason: "the run is over, or another one owns the machine"})
		return
	}
	s.fail(c, err)
}

// next holds the request until there is an assignment.
func (s *Server) next(c *gin.Context) {
	a, ok := s.agent(c)
	if !ok {
		return
	}
	wait, err := waitQuery(c.Query("wait"))
	if err != nil {
		s.fail(c, err)
		return
	}
	// Subscribed before the first look, so that nothing falls between them.
	changed, cancel := s.cfg.Store.Watch(a.Machine)
	defer cancel()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		as, err := s.cfg.Store.NextAssignment(c.Request.Context(), a.Owner)
		// An assignment of an earlier boot died with that boot's agent.
		if err == nil && (as.Boot == 0 || as.Boot == a.Boot) {
			// Its token may have been revoked while the request was held.
			if _, ok := s.agent(c); !ok {
				return
			}
			if err := s.cfg.Store.Delivered(c.Request.Context(), a.Owner, as.Key); err != nil {
				s.agentFail(c, err)
				return
			}
			s.agents.assigned(a)
			as.Payload.Key, as.Payload.Run = as.Key, a.Run
			c.JSON(http.StatusOK, as.Payload)
			return
		}
		if err != nil && !errors.Is(err, inventory.ErrNotFound) {
			s.agentFail(c, err)
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			c.Status(http.StatusNoContent)
			return
		case <-s.stopping:
			c.Status(http.StatusNoContent)
			return
		case <-c.Request.Context().Done():
			c.Abort()
			return
		}
	}
}

// waitQuery reads 30 or 30s.
func waitQuery(v string) (time.Duration, error) {
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		n, e := strconv.Atoi(v)
		if e != nil {
			return 0, invalid("wait", "for example 30s", "%q is no time", v)
		}
		d = time.Duration(n) * time.Second
	}
	return min(max(d, 0), maxWait), nil
}

// report takes a result: when it answers 204, the result is on disk. The
// store's notifier wakes the pump.
func (s *Server) report(c *gin.Context) {
	a, ok := s.agent(c)
	if !ok {
		return
	}
	var r action.Result
	if err := agentBody(c, &r, maxReport); err != nil {
		s.fail(c, err)
		return
	}
	if r.Key.Epoch != a.Epoch {
		s.agentFail(c, fmt.Errorf("reporting %s: the agent is of epoch %d: %w", r.Key, a.Epoch, inventory.ErrFenced))
		return
	}
	var problems inventory.Problems
	switch r.State {
	case action.Success, action.Failed, action.Timeout, action.Stopped:
	default:
		problems.Add("state", "", "%q does not end an attempt", clean(string(r.State), 32))
	}
	if r.ID == "" || len(r.ID) > 128 {
		problems.Add("id", "", "is missing or longer than 128 bytes")
	}
	if r.Key.Action < 0 || r.Key.Attempt < 1 {
		problems.Add("key", "", "%s names no attempt", r.Key)
	}
	if err := problems.Err(); err != nil {
		s.fail(c, err)
		return
	}
	// The end of a log says what went wrong; the start of a message does.
	r.Log, r.Message = tail(r.Log, maxLogTail), head(r.Message, maxMessage)
	// Lines that heartbeats brought and no flush has written come before it.
	waiting := s.agents.take(a, r.Key)
	r.Log = join(waiting, r.Log)
	if _, err := s.cfg.Store.Report(c.Request.Context(), a.Owner, a.Boot, r); err != nil {
		s.agents.giveBack(a, r.Key, waiting)
		s.agentFail(c, err)
		return
	}
	s.agents.finished(a, r.Key)
	c.Status(http.StatusNoContent)
}

// heartbeat takes a sign of life and answers with orders. It stays in memory:
// a thousand agents must not cost a thousand commits.
func (s *Server) heartbeat(c *gin.Context) {
	a, ok := s.agent(c)
	if !ok {
		return
	}
	var h action.Heartbeat
	if err := agentBody(c, &h, maxHeartbeat); err != nil {
		s.fail(c, err)
		return
	}
	stops, err := s.cfg.Store.Stops(c.Request.Context(), a.Owner)
	if err != nil {
		s.agentFail(c, err)
		return
	}
	s.agents.beat(a, h, s.cfg.Now())
	c.JSON(http.StatusOK, action.Orders{Stop: stops})
}

// head and tail cut text at a rune's boundary, to at most n bytes.
func head(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

func tail(text string, n int) string {
	if len(text) <= n {
		return text
	}
	i := len(text) - n
	for i < len(text) && !utf8.RuneStart(text[i]) {
		i++
	}
	return text[i:]
}

// clean makes a machine's text fit for a log line.
func clean(text string, n int) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '.'
		}
		return r
	}, head(text, n))
}
