package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	maxStreams   = 64
	coalesce     = 200 * time.Millisecond
	commentEvery = 15 * time.Second
	statusEvery  = 5 * time.Second
	streamWrite  = 10 * time.Second // until a client that does not read is dropped
	// streamLife ends streams, so that one does not outlive its session for
	// long: the browser comes back by itself, if it may.
	streamLife = time.Hour
	// recentRuns is how many runs a stream shows beside each machine's latest.
	recentRuns = 100
	// recentOperations is how many operations a stream shows.
	recentOperations = 20
)

// message is one event of a stream.
type message struct {
	event string // machine | workflow | progress | operation | status | removed
	key   string
	data  []byte
	// body is data without what moves all the time: a workflow whose body is
	// the same while its data is not has made progress.
	body []byte
}

// snapshots makes what streams show, once for all of them and at most every
// 200 ms; more seldom when that is a quarter of the time it takes.
type snapshots struct {
	mu       sync.Mutex
	messages []message
	at       time.Time
	cost     time.Duration
	id       int64
}

// snapshot returns what is to be seen now, and its number.
func (s *Server) snapshot(ctx context.Context) ([]message, int64, error) {
	s.shots.mu.Lock()
	defer s.shots.mu.Unlock()
	begun := time.Now()
	if begun.Sub(s.shots.at) < max(coalesce, 4*s.shots.cost)/2 {
		return s.shots.messages, s.shots.id, nil
	}
	ms, err := s.makeSnapshot(ctx)
	if err != nil {
		return nil, 0, err
	}
	// Numbers grow over restarts, too.
	s.shots.id = max(s.shots.id+1, begun.UnixMilli())
	s.shots.messages, s.shots.at, s.shots.cost = ms, begun, time.Since(begun)
	return ms, s.shots.id, nil
}

func (s *Server) makeSnapshot(ctx context.Context) ([]message, error) {
	ms, err := s.cfg.Store.Machines(ctx)
	if err != nil {
		return nil, err
	}
	vs, err := s.views(ctx, ms)
	if err != nil {
		return nil, err
	}
	ws, err := s.cfg.Store.Workflows(ctx, inventory.WorkflowFilter{Limit: recentRuns})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range ws {
		seen[ws[i].Run] = true
		ws[i] = s.summary(ws[i])
	}
	for _, v := range vs {
		if v.Workflow != nil && !seen[v.Workflow.Run] {
			ws = append(ws, *v.Workflow)
		}
	}
	out := make([]message, 0, len(vs)+len(ws)+1)
	for _, v := range vs {
		m, err := newMessage("machine", v.Name, v)
		if err != nil {
			return nil, err
		}
		// A sign of life is worth sending every ten seconds, progress not at
		// all: the workflow's message tells it.
		v.LastSeen = v.LastSeen.Truncate(flushEvery)
		if v.Workflow != nil {
			w := still(*v.Workflow)
			v.Workflow = &w
		}
		if m.body, err = json.Marshal(v); err != nil {
			return nil, fmt.Errorf("encoding machine %q: %w", v.Name, err)
		}
		out = append(out, m)
	}
	for _, w := range ws {
		m, err := newMessage("workflow", w.Run, w)
		if err != nil {
			return nil, err
		}
		if m.body, err = json.Marshal(still(w)); err != nil {
			return nil, fmt.Errorf("encoding run %q: %w", w.Run, err)
		}
		out = append(out, m)
	}
	ops, err := s.cfg.Store.Operations(ctx, inventory.OperationFilter{Limit: recentOperations})
	if err != nil {
		return nil, err
	}
	for _, o := range ops {
		o.Input = nil
		m, err := newMessage("operation", o.Run, o)
		if err != nil {
			return nil, err
		}
		m.body = m.data
		out = append(out, m)
	}
	st, err := s.statusNow(ctx)
	if err != nil {
		return nil, err
	}
	m, err := newMessage("status", "", st)
	if err != nil {
		return nil, err
	}
	st.Time, st.UptimeSeconds = time.Time{}, st.UptimeSeconds/10 // a sign of life
	st.Space = slices.Clone(st.Space)
	for i := range st.Space {
		st.Space[i].FreeBytes = 0
	}
	if m.body, err = json.Marshal(st); err != nil {
		return nil, fmt.Errorf("encoding the status: %w", err)
	}
	return append(out, m), nil
}

// still is w without what moves while an action runs.
func still(w inventory.Workflow) inventory.Workflow {
	w.Actions = append([]inventory.ActionRecord{}, w.Actions...)
	for i := range w.Actions {
		w.Actions[i].Done, w.Actions[i].Total, w.Actions[i].Message, w.Actions[i].Seconds = 0, 0, "", 0
	}
	return w
}

func newMessage(event, key string, v any) (message, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return message{}, fmt.Errorf("encoding a %s: %w", event, err)
	}
	return message{event: event, key: key, data: data}, nil
}

// stream sends what is to be seen as server-sent events: everything at first,
// then what changed, at most every 200 ms. A client that comes back gets
// everything again, so that nothing it missed matters.
func (s *Server) stream(c *gin.Context) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		s.fail(c, fmt.Errorf("%d pages are watching already: %w", maxStreams, errUnavailable))
		return
	}
	stored, cancelStored := s.cfg.Store.Subscribe()
	defer cancelStored()
	moved, cancelMoved := s.agents.changed.Subscribe()
	defer cancelMoved()

	h := c.Writer.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	c.Status(http.StatusOK)
	out := sender{w: c.Writer, rc: http.NewResponseController(c.Writer), seed: maphash.MakeSeed(), sent: map[string]sums{}}

	comment, often := time.NewTicker(commentEvery), time.NewTicker(statusEvery)
	defer comment.Stop()
	defer often.Stop()
	life := time.NewTimer(streamLife)
	defer life.Stop()
	for {
		ms, id, err := s.snapshot(c.Request.Context())
		if err != nil {
			if c.Request.Context().Err() == nil {
				s.cfg.Log.Warn("making a snapshot", "error", err)
			}
			return // the browser comes back by itself
		}
		if err := out.changes(ms, id); err != nil {
			return // it has gone
		}
		pause := time.NewTimer(s.shots.pause())
		select {
		case <-pause.C:
		case <-s.stopping:
			pause.Stop()
			return
		case <-c.Request.Context().Done():
			pause.Stop()
			return
		}
	wait:
		for {
			select {
			case <-stored:
				break wait
			case <-moved:
				break wait
			case <-often.C: // windows expire and time passes without a write
				break wait
			case <-comment.C:
				if err := out.write(": still here\n\n"); err != nil {
					return
				}
			case <-life.C:
				return
			case <-s.stopping:
				return
			case <-c.Request.Context().Done():
				return
			}
		}
	}
}

func (s *snapshots) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(coalesce, 4*s.cost)
}

// sums are the hashes of what a client has: its memory is bounded by the
// number of things, not by their size.
type sums struct{ data, body uint64 }

type sender struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	seed maphash.Seed
	sent map[string]sums
	any  bool
}

// changes sends those messages that the client does not have.
func (o *sender) changes(ms []message, id int64) error {
	var b bytes.Buffer
	now := make(map[string]sums, len(ms))
	for _, m := range ms {
		k := m.event + "\x00" + m.key
		sum := sums{maphash.Bytes(o.seed, m.data), maphash.Bytes(o.seed, m.body)}
		old, had := o.sent[k]
		event := m.event
		switch {
		case had && old == sum:
			now[k] = sum
			continue
		case had && old.body == sum.body && m.event != "workflow":
			now[k] = old
			continue
		case had && old.body == sum.body:
			event = "progress"
		}
		now[k] = sum
		fmt.Fprintf(&b, "id: %d\nevent: %s\ndata: %s\n\n", id, event, m.data)
	}
	for k := range o.sent {
		if _, ok := now[k]; ok {
			continue
		}
		kind, key, _ := strings.Cut(k, "\x00")
		gone := gin.H{"name": key, "deleted": true}
		switch kind {
		case "workflow":
			gone = gin.H{"run": key, "deleted": true}
			kind = "removed" // a record may also have become too old to be shown
		case "operation":
			gone = gin.H{"run": key, "deleted": true}
		}
		data, err := json.Marshal(gone)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "id: %d\nevent: %s\ndata: %s\n\n", id, kind, data)
	}
	o.sent = now
	if b.Len() == 0 && o.any {
		return nil
	}
	o.any = true
	return o.write(b.String())
}

func (o *sender) write(text string) error {
	// A writer without deadlines (a test's recorder) does not block.
	_ = o.rc.SetWriteDeadline(time.Now().Add(streamWrite))
	if _, err := o.w.Write([]byte(text)); err != nil {
		return err
	}
	return o.rc.Flush()
}
