package api

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// KeyedRequestStore holds requests with an Idempotency-Key, and their answers.
type KeyedRequestStore interface {
	BeginKeyedRequest(ctx context.Context, r inventory.KeyedRequest) (inventory.KeyedRequest, error)
	AnswerKeyedRequest(ctx context.Context, r inventory.KeyedRequest) error
}

const keyHeader = "Idempotency-Key"

const (
	maxKey        = 255     // characters
	maxKeptAnswer = 8 << 10 // bytes
)

// isUnkeyed reports whether a POST route ignores the Idempotency-Key. It does if the path is unknown, if the route only
// reads, if its answer is secret or too large to be stored, or if a repetition does no harm (a log-out, a stored backup).
func isUnkeyed(path string) bool {
	switch path {
	case "", "/v1/backup", "/v1/backups", "/v1/bmc/check", "/v1/genesis/:name/plan", "/v1/images/:name/verify",
		"/v1/login-links", "/v1/logout", "/v1/templates/lint", "/v1/templates/:name/render", "/v1/temporal-ui-links", "/v1/tokens":
		return true
	}
	return false
}

// keyedRequests ensures that a POST request with an Idempotency-Key is carried out only once. It answers a repetition
// with the stored answer (draft-ietf-httpapi-idempotency-key-header).
//
// The request is stored before it is carried out, and its answer is stored afterwards. No answer is stored if the
// server was killed in between, or if the answer was 5xx. A repetition is then carried out, but must not repeat the
// effect of the first attempt. Three rules ensure this: engine.Runs.StartedBy finds a run that the request has started;
// the store makes a change of the inventory once for each keyed request; Temporal accepts a signal or an update once
// for each keyed request.
type keyedRequests struct {
	store       KeyedRequestStore
	runs        *engine.Runs
	fingerprint []byte // HMAC key of the fingerprints; with a plain hash of a body, an attacker could guess a password in the body
	log         *slog.Logger

	mu       sync.Mutex
	underWay map[string]bool // by KeyedRequest.ID
}

func newKeyedRequests(store KeyedRequestStore, runs *engine.Runs, claimKey []byte, log *slog.Logger) *keyedRequests {
	m := hmac.New(sha256.New, claimKey)
	m.Write([]byte("keyed request\x00"))
	return &keyedRequests{store: store, runs: runs, fingerprint: m.Sum(nil), log: log, underWay: map[string]bool{}}
}

// handle is the middleware that precedes the handlers of all routes.
func (k *keyedRequests) handle(c *gin.Context) {
	if c.Request.Method != http.MethodPost || len(c.Request.Header.Values(keyHeader)) == 0 || isUnkeyed(c.FullPath()) {
		return
	}
	r, err := k.read(c)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	if !k.enter(r.ID) {
		c.Header("Retry-After", "1")
		httpapi.Fail(c, httpapi.Refuse(http.StatusConflict, httpapi.CodeUnderWay,
			"the first request with this Idempotency-Key is still under way", "send the request again later, with the same key"))
		return
	}
	defer k.leave(r.ID)

	found, err := k.store.BeginKeyedRequest(c.Request.Context(), r)
	switch {
	case errors.Is(err, inventory.ErrTooManyKeys):
		httpapi.Fail(c, httpapi.Refuse(http.StatusServiceUnavailable, httpapi.CodeTooManyKeys, err.Error(),
			"send the request without Idempotency-Key"))
		return
	case err != nil:
		httpapi.Fail(c, err)
		return
	case found.Fingerprint != r.Fingerprint:
		httpapi.Fail(c, httpapi.Refuse(http.StatusUnprocessableEntity, httpapi.CodeInvalid,
			"this Idempotency-Key was used for another request", "give each request a key of its own"))
		return
	}
	k.answer(c, found)
}

// read returns the id and the fingerprint of the request. It reads the body and restores it, so that the handler can
// read it again.
func (k *keyedRequests) read(c *gin.Context) (inventory.KeyedRequest, error) {
	key, err := parseKey(c.Request.Header.Values(keyHeader))
	if err != nil {
		return inventory.KeyedRequest{}, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, maxPush))
	if err != nil {
		return inventory.KeyedRequest{}, err
	}
	c.Request.Body = io.NopCloser(bytes.NewReader(body))

	m := hmac.New(sha256.New, k.fingerprint)
	m.Write([]byte(c.Request.Method + " " + c.Request.URL.EscapedPath() + "?" + c.Request.URL.RawQuery + "\x00"))
	m.Write(body)

	return inventory.KeyedRequest{
		ID: keyedID(callerOf(c.Request.Context()).ID, key), Fingerprint: hex.EncodeToString(m.Sum(nil)),
	}, nil
}

// keyedID returns the id of a keyed request. All requests of one token with the same Idempotency-Key have the same id.
// token is the ID of the token.
func keyedID(token, key string) string {
	id := sha256.Sum256([]byte(token + "\x00" + key))
	return hex.EncodeToString(id[:])
}

// parseKey returns the key from the values of the header Idempotency-Key. The header must have one value: a string as
// in RFC 8941, which is printable ASCII in double quotes.
func parseKey(values []string) (string, error) {
	text := strings.TrimSpace(values[0])
	quoted := len(values) == 1 && len(text) > 2 && text[0] == '"' && text[len(text)-1] == '"'
	var key strings.Builder
	for i := 1; quoted && i < len(text)-1; i++ {
		switch b := text[i]; {
		case b == '\\' && i+1 < len(text)-1 && (text[i+1] == '"' || text[i+1] == '\\'):
			i++
			key.WriteByte(text[i])
		case b < ' ' || b > '~' || b == '"' || b == '\\':
			quoted = false
		default:
			key.WriteByte(b)
		}
	}
	if !quoted || key.Len() > maxKey {
		return "", inventory.Invalid(keyHeader, `send one, in double quotes: Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"`,
			"must be 1 to %d printable characters in double quotes", maxKey)
	}
	return key.String(), nil
}

// enter returns false if a request with this id is under way. Otherwise it marks the id as under way and returns true.
func (k *keyedRequests) enter(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.underWay[id] {
		return false
	}
	k.underWay[id] = true
	return true
}

func (k *keyedRequests) leave(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.underWay, id)
}

// answer sends the stored answer of a request. If no answer is stored, it looks for a run that an earlier attempt of
// the request may have started. If there is none, it carries the request out.
func (k *keyedRequests) answer(c *gin.Context, r inventory.KeyedRequest) {
	if r.Status == 0 && r.Workflow != "" {
		err := k.findRun(c.Request.Context(), &r)
		if r.Status != 0 {
			k.keep(c.Request.Context(), r)
		}
		if err != nil {
			httpapi.Fail(c, err)
			return
		}
	}
	if r.Answer != nil {
		k.recall(c.Request.Context(), r)
		c.Data(r.Status, "application/json; charset=utf-8", r.Answer)
		c.Abort()
		return
	}
	k.carryOut(c, r)
}

// findRun looks for a run that an earlier attempt of the request has started. If it finds one, it sets the answer of r.
// If there is none, it does not change r. After an error, it sets the error as the answer and also returns it.
func (k *keyedRequests) findRun(ctx context.Context, r *inventory.KeyedRequest) error {
	run, err := k.runs.StartedBy(ctx, *r)
	if err != nil {
		r.Status, r.Answer = encodeError(err)
		return err
	}
	if run == "" {
		return nil
	}
	r.Status = http.StatusAccepted
	r.Answer, err = json.Marshal(apitypes.Started{Workflow: r.Workflow, Run: run, Job: workflows.JobOf(r.Workflow)})
	return err
}

// recall tells this process about the run in a stored answer. This is necessary if the run has no record yet and the
// process was restarted since. Errors are only logged.
func (k *keyedRequests) recall(ctx context.Context, r inventory.KeyedRequest) {
	var started apitypes.Started
	if r.Status != http.StatusAccepted || json.Unmarshal(r.Answer, &started) != nil || started.Run == "" {
		return
	}
	if err := k.runs.Recall(ctx, started.Workflow, started.Run); err != nil {
		k.log.Warn("looking for a run that was started earlier", "run", started.Run, "error", err)
	}
}

// carryOut calls the handler of the route and stores the answer. If the first answer was too large to be stored, each
// repetition calls the handler again. The handler then finds that its change is already made, and returns the answer
// again.
func (k *keyedRequests) carryOut(c *gin.Context, r inventory.KeyedRequest) {
	ctx := c.Request.Context()
	c.Request = c.Request.WithContext(inventory.WithKeyedRequest(ctx, r.ID))
	sent := &answerCopy{ResponseWriter: c.Writer, body: []byte{}}
	c.Writer = sent
	c.Next()
	if r.Status != 0 {
		return
	}

	r.Status, r.Answer = sent.Status(), sent.body
	if failed := c.Errors.Last(); failed != nil && !sent.Written() {
		r.Status, r.Answer = encodeError(failed.Err)
	}
	if ctx.Err() != nil && r.Status >= http.StatusBadRequest {
		return // the client has disconnected, and the resulting error of the handler must not become the stored answer
	}
	k.keep(ctx, r)
}

// encodeError returns the status and the body of the answer for err. If the body is too large to be stored, encodeError
// leaves out the list of problems and shortens the text.
func encodeError(err error) (int, []byte) {
	status, body := httpapi.BodyOf(err)
	text, err := json.Marshal(body)
	if refusal, ok := body.(httpapi.ErrorBody); ok && len(text) > maxKeptAnswer {
		refusal.Error, refusal.Problems = plaintext.Head(refusal.Error, maxKeptAnswer/8), nil
		text, err = json.Marshal(refusal)
	}
	if err != nil {
		return http.StatusInternalServerError, nil
	}
	return status, text
}

// keep stores the answer of a request, so that repetitions get the same answer. If the answer is too large, keep stores
// only its status. A 5xx is not stored, because the client is meant to repeat the request. An error is only logged: a
// repetition then looks for the effect of the request.
func (k *keyedRequests) keep(ctx context.Context, r inventory.KeyedRequest) {
	if r.Status >= http.StatusInternalServerError {
		return
	}
	if len(r.Answer) > maxKeptAnswer {
		r.Answer = nil
	}
	if err := k.store.AnswerKeyedRequest(context.WithoutCancel(ctx), r); err != nil {
		k.log.Warn("storing the answer of a request with an Idempotency-Key", "error", err)
	}
}

// answerCopy keeps a copy of the first maxKeptAnswer+1 bytes of an answer. If the copy has this last byte, the answer
// is too large to be stored.
type answerCopy struct {
	gin.ResponseWriter
	body []byte
}

// Write implements http.ResponseWriter.
func (a *answerCopy) Write(b []byte) (int, error) {
	a.body = append(a.body, b[:min(len(b), maxKeptAnswer+1-len(a.body))]...)
	return a.ResponseWriter.Write(b)
}

// WriteString implements io.StringWriter.
func (a *answerCopy) WriteString(s string) (int, error) { return a.Write([]byte(s)) }
