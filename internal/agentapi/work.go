package agentapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// agentKey is the context key under which authenticate stores the agent.
type agentKey struct{}

func agentOf(ctx context.Context) inventory.Agent { return ctx.Value(agentKey{}).(inventory.Agent) }

// authenticate stores the agent with the request's token in the context, or ends the request with an error. 401 means
// that the token is unknown; this server may have lost its data. 403 means that the token was revoked while the run
// continues, because of a second agent for the boot or because of a later boot. After 401 or 403, the agent stops
// writing but stays up and keeps asking. 410 means that, according to the grant, the run has ended or no longer owns
// the machine.
func (s *server) authenticate(c *gin.Context) {
	a, err := s.findAgent(c)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), agentKey{}, a))
}

func (s *server) findAgent(c *gin.Context) (inventory.Agent, error) {
	ctx := c.Request.Context()
	token, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !ok || token == "" {
		return inventory.Agent{}, unauthorized("the request needs an agent's bearer token")
	}
	sum := sha256.Sum256([]byte(token))
	a, err := s.Stores.Agents.AgentByToken(ctx, sum[:])
	if errors.Is(err, inventory.ErrNotFound) {
		return a, unauthorized("unknown token")
	}
	if err == nil && !a.Used {
		err = s.Stores.Agents.AgentUsed(ctx, a.Owner, a.Boot)
	}
	if err != nil {
		return a, refuseAgent(err)
	}

	httpserve.Prefer(ctx)
	s.Agents.Saw(a, s.Now())
	return a, nil
}

func unauthorized(text string) error {
	return httpapi.Refuse(http.StatusUnauthorized, httpapi.CodeUnauthorized, text, "")
}

// refuseAgent converts an error of the inventory to the error for an agent. ErrConflict, which means that the token
// was revoked, becomes 403. ErrFenced, which means that the run has ended or no longer owns the machine, becomes 410.
func refuseAgent(err error) error {
	switch {
	case errors.Is(err, inventory.ErrConflict):
		return httpapi.Refuse(http.StatusForbidden, httpapi.CodeForbidden,
			"hold: the token was revoked: a later boot began, or another agent claimed this boot", "")
	case errors.Is(err, inventory.ErrFenced):
		return httpapi.Refusal{
			Status: http.StatusGone,
			Body:   action.Farewell{Reason: "the run has ended, or another run owns the machine"},
		}
	}
	return err
}

// maxWait limits how long a request for work may wait.
const maxWait = time.Minute

// next returns the agent's assignment. If there is none, it waits for one as long as the query parameter wait allows,
// and then returns 204.
func (s *server) next(c *gin.Context) {
	wait, err := parseWait(c.Query("wait"))
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	a := agentOf(c.Request.Context())
	// Watch before the first look, so that no assignment is missed between the two.
	changed, cancel := s.Stores.Changes.Watch(a.Machine)
	defer cancel()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()

	for {
		work, found, err := s.findWork(c, a)
		if err != nil {
			httpapi.Fail(c, err)
			return
		}
		if found {
			c.JSON(http.StatusOK, work)
			return
		}

		select {
		case <-changed:
		case <-deadline.C:
			c.Status(http.StatusNoContent)
			return
		case <-s.Stopping:
			c.Status(http.StatusNoContent)
			return
		case <-c.Request.Context().Done():
			c.Abort()
			return
		}
	}
}

// findWork returns the next assignment of an agent, if there is one, and records that it was delivered.
func (s *server) findWork(c *gin.Context, a inventory.Agent) (work action.Assignment, found bool, err error) {
	ctx := c.Request.Context()
	next, err := s.Stores.Work.NextAssignment(ctx, a.Owner)
	if errors.Is(err, inventory.ErrNotFound) {
		return work, false, nil
	}
	if err != nil {
		return work, false, refuseAgent(err)
	}
	// An assignment for another boot is not for this agent.
	if next.Boot != 0 && next.Boot != a.Boot {
		return work, false, nil
	}
	// The token may have been revoked while the request waited.
	if _, err := s.findAgent(c); err != nil {
		return work, false, err
	}
	if err := s.Stores.Work.Delivered(ctx, a.Owner, next.Key); err != nil {
		return work, false, refuseAgent(err)
	}

	s.Agents.Assigned(a)
	work = next.Payload
	work.Key, work.Run = next.Key, a.Run

	return work, true, nil
}

// parseWait parses a duration such as "30s", or "30" for seconds. It returns 0 for "", and at most maxWait.
func parseWait(v string) (time.Duration, error) {
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		n, err := strconv.Atoi(v)
		if err != nil {
			return 0, inventory.Invalid("wait", "for example 30s", "invalid duration %q", v)
		}
		d = time.Duration(n) * time.Second
	}

	return min(max(d, 0), maxWait), nil
}

// report stores the result of an attempt. It returns 204 only after the result is on disk. The write to the store wakes
// the engine's Pump, which sends the result to the run.
func (s *server) report(ctx context.Context, r action.Result) (httpapi.Empty, error) {
	a := agentOf(ctx)
	if r.Key.Epoch != a.Epoch {
		return httpapi.Empty{}, refuseAgent(
			fmt.Errorf(
				"refusing the result of action %s: it belongs to epoch %d, and the agent to epoch %d: %w",
				r.Key,
				r.Key.Epoch,
				a.Epoch,
				inventory.ErrFenced,
			),
		)
	}
	if err := checkResult(r); err != nil {
		return httpapi.Empty{}, err
	}

	// The reason of a failure is at the end of a long log, but at the start of a long message: keep these parts.
	r.Log, r.Message = plaintext.Tail(r.Log, engine.MaxLogTail), plaintext.Head(r.Message, maxMessage)
	// Log lines of heartbeats that are not flushed yet come before the log of the result.
	waiting := s.Agents.TakeLog(a, r.Key)
	r.Log = engine.JoinLog(waiting, r.Log)
	if _, err := s.Stores.Work.Report(ctx, a.Owner, a.Boot, r); err != nil {
		s.Agents.GiveBackLog(a, r.Key, waiting)
		return httpapi.Empty{}, refuseAgent(err)
	}
	s.Agents.Finished(a, r.Key)
	s.Log.With(a.LogKeys(a.Boot)...).Info("an action has ended", "action", r.Key.Action, "attempt", r.Key.Attempt, "state", string(r.State))

	return httpapi.Empty{}, nil
}

func checkResult(r action.Result) error {
	var problems inventory.Problems
	switch r.State {
	case action.Success, action.Failed, action.Timeout, action.Stopped:
	default:
		problems.Add("state", "", "invalid final state %q; must be SUCCESS, FAILED, TIMEOUT or STOPPED", plaintext.Line(string(r.State), 32))
	}
	if r.ID == "" || len(r.ID) > 128 {
		problems.Add("id", "", "must have 1 to 128 bytes")
	}
	if r.Key.Action < 0 || r.Key.Attempt < 1 {
		problems.Add("key", "", "invalid key %s; its action must be at least 0, and its attempt at least 1", r.Key)
	}

	return problems.Err()
}

// heartbeat records an agent's heartbeat, and returns which attempts the agent must stop.
func (s *server) heartbeat(ctx context.Context, h action.Heartbeat) (action.Orders, error) {
	a := agentOf(ctx)
	stops, err := s.Stores.Work.Stops(ctx, a.Owner)
	if err != nil {
		return action.Orders{}, refuseAgent(err)
	}
	s.Agents.Beat(a, h, s.Now())

	return action.Orders{Stop: stops}, nil
}

// image serves the file of an image to an agent.
func (s *server) image(c *gin.Context) {
	if err := s.serveImage(c); err != nil {
		httpapi.Fail(c, err)
	}
}

func (s *server) serveImage(c *gin.Context) error {
	i, err := s.Stores.Images.Image(c.Request.Context(), c.Param("name"))
	if errors.Is(err, inventory.ErrNotFound) || err == nil && i.File == "" {
		return httpapi.NotFound()
	}
	if err != nil {
		return err
	}
	f, err := s.OpenImage(i)
	if errors.Is(err, inventory.ErrNotFound) {
		return httpapi.NotFound()
	}
	if err != nil {
		return err
	}
	defer f.Close()

	h := c.Writer.Header()
	h.Set("ETag", `"`+i.SHA256+`"`)
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "no-transform")
	// Send no modification time, so that If-Range must compare the digest.
	http.ServeContent(c.Writer, c.Request, "", time.Time{}, f)

	return nil
}

// runtime serves the archive with the container runtime. The signed order contains its SHA-256.
func (s *server) runtime(c *gin.Context) {
	f, err := os.Open(s.RuntimePath)
	if errors.Is(err, os.ErrNotExist) {
		err = httpapi.Refuse(http.StatusNotFound, httpapi.CodeNotFound, "this server has no container runtime", "ingot doctor")
	}
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	defer f.Close()
	var changed time.Time
	if st, err := f.Stat(); err == nil {
		changed = st.ModTime()
	}
	c.Writer.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(c.Writer, c.Request, "", changed, f)
}
