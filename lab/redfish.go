package lab

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// RedfishPort is the port of a Redfish service in the lab.
const RedfishPort = 443

// RedfishShape is the manufacturer whose implementation a Redfish service resembles.
type RedfishShape string

// The shapes.
const (
	// RedfishDell13 applies a boot device by a job after the answer, and refuses Once, like the
	// 13th generation of Dell's servers.
	RedfishDell13 RedfishShape = "dell13"
	// RedfishDell applies a boot device by a job after the answer.
	RedfishDell RedfishShape = "dell"
	// RedfishHPE refuses BootSourceOverrideMode, and a reset that does not fit the power state.
	RedfishHPE RedfishShape = "hpe"
	// RedfishSupermicro wants If-Match with the present ETag, has four sessions, and refuses
	// Inserted and WriteProtected in InsertMedia. OpenBMC is similar.
	RedfishSupermicro RedfishShape = "supermicro"
)

// redfishSessions is the number of sessions that each shape has at a time.
var redfishSessions = map[RedfishShape]int{RedfishSupermicro: 4}

// jobReads is how many reads of the system, or of a virtual drive, a job takes.
const jobReads = 2

// RedfishFault is what happens to matching requests.
type RedfishFault struct {
	Method  string          // "" matches all
	Path    string          // a pattern of path.Match, such as "/redfish/v1/Systems/*"; "" matches all
	Count   int             // how many requests it happens to; 0 = all
	Status  int             // the answer's status; the request is not carried out
	Delay   time.Duration   // before anything else happens
	Wait    <-chan struct{} // nothing happens before it is closed; nil = do not wait
	Lie     bool            // a write answers with success and is not carried out
	Misread bool            // a read of one of States answers with another state
	Drop    bool            // the connection is closed; the request is not carried out
	Lose    bool            // the request is carried out, and the connection closed without an answer
	Merge   map[string]any  // properties that replace those of a successful answer
}

// Drive is the virtual drive of a Chassis. Without one, a Redfish service only remembers the medium.
type Drive interface {
	InsertCD(ctx context.Context, url string) error
	EjectCD(ctx context.Context) error
}

// Redfish simulates a management controller that speaks Redfish (DSP0266, DSP0268), as an
// http.Handler: sessions, power, boot override, virtual media, reset of the controller, Secure Boot
// state and sensors.
type Redfish struct {
	Address     string // in a lab; on RedfishPort
	User        string
	Password    string // the first one
	Fingerprint string // of the TLS key in a lab: sha256: and the digest of the SubjectPublicKeyInfo
	// SessionsOnly switches HTTP Basic authentication off.
	SessionsOnly bool

	shape   RedfishShape
	chassis Chassis
	machine *Machine

	mu       sync.Mutex
	accepts  string // the password now
	faults   []RedfishFault
	sessions map[string]redfishSession // by token
	made     int
	refused  int // log-ins
	most     int // sessions at a time, since the last call of Sessions
	calls    []string
	received int // requests
	struck   int // requests that a fault happened to
	boot     redfishBoot
	job      redfishBoot       // the boot override of the job
	jobReads int               // reads until the job is done; 0 = no job
	changes  int               // of the system, for its ETag
	media    map[string]string // URL of the inserted medium by path of the drive
	task     map[string]string // what a task will insert, by path of the drive
	// taskReads are the reads of a drive until the task is done.
	taskReads int
	resets    int       // of the controller
	accounts  int       // changes of accounts, for their ETag
	started   time.Time // of the controller
	downTill  time.Time
}

type redfishSession struct{ id, user, origin string }

type redfishBoot struct{ target, enabled, mode string }

// NewRedfish returns a Redfish service that controls c. In a lab, Spec.Controller creates it.
func NewRedfish(c Chassis, shape RedfishShape, user, password string) *Redfish {
	return &Redfish{
		User: user, Password: password, accepts: password, shape: shape, chassis: c, sessions: map[string]redfishSession{}, started: time.Now(),
		boot: redfishBoot{"None", "Disabled", "UEFI"}, media: map[string]string{}, task: map[string]string{},
	}
}

// Pretend replaces the simulated faults. The first one that matches a request happens to it.
func (r *Redfish) Pretend(faults ...RedfishFault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = faults
}

// Calls returns the requests since the last call of Calls that were carried out: "PATCH
// /redfish/v1/Systems/1".
func (r *Redfish) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.calls
	r.calls = nil
	return out
}

// Struck returns how many requests a simulated fault has happened to.
func (r *Redfish) Struck() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.struck
}

// Sessions returns the number of open sessions, and the most that were open at a time since the last
// call of Sessions.
func (r *Redfish) Sessions() (now, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, most = len(r.sessions), r.most
	r.most = now
	return now, most
}

// Refused returns how many log-ins were refused: by session, and by HTTP Basic authentication.
func (r *Redfish) Refused() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// Media returns the URLs of the inserted media, with a space between them.
func (r *Redfish) Media() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Values(r.media)), " ")
}

// Insert inserts the medium at url into the n-th virtual drive, as an operator does at the controller's own page. Only
// the service remembers it.
func (r *Redfish) Insert(n int, url string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.media[r.drivePaths()[n]] = url
}

// Override returns the boot override: target, enabled and mode.
func (r *Redfish) Override() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.boot.target + " " + r.boot.enabled + " " + r.boot.mode
}

// Resets returns how often the controller was reset.
func (r *Redfish) Resets() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resets
}

// Unplug removes the service's address from the lab's network; Plug adds it again.
func (r *Redfish) Unplug(ctx context.Context) error {
	return r.machine.lab.ipBatch(ctx, BMCs, "addr del "+r.Address+"/24 dev eth0")
}

// Plug adds the service's address to the network.
func (r *Redfish) Plug(ctx context.Context) error {
	return r.machine.lab.ipBatch(ctx, BMCs, "addr replace "+r.Address+"/24 dev eth0")
}

// install serves the service in the lab until it is closed.
func (r *Redfish) install(ctx context.Context) error {
	if err := r.Plug(ctx); err != nil {
		return err
	}
	// It fetches virtual media from the server.
	if err := r.machine.lab.ipBatch(ctx, BMCs, "route replace "+ServerAddress+" via "+ServerBMCAddr); err != nil {
		return err
	}
	cert, fingerprint, err := selfSigned(r.Address)
	if err != nil {
		return err
	}
	r.Fingerprint = fingerprint
	l := r.machine.lab
	s, err := l.Listen(ctx, BMCs, net.JoinHostPort(r.Address, strconv.Itoa(RedfishPort)))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	if !l.onClose(server.Close) {
		return errors.Join(ErrClosed, s.Close())
	}
	go func() {
		err := server.Serve(tls.NewListener(s, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
		if !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("serving a Redfish service", "machine", r.machine.spec.Name, "error", err)
		}
	}()
	return nil
}

// redfishAnswer is the answer to a request.
type redfishAnswer struct {
	status int
	body   map[string]any
	header map[string]string
}

func redfishOK(body map[string]any) redfishAnswer {
	return redfishAnswer{status: http.StatusOK, body: body}
}

// redfishError is an answer in the form of DSP0266, section 8.6.
func redfishError(status int, message string, args ...any) redfishAnswer {
	text := fmt.Sprintf(message, args...)
	return redfishAnswer{status: status, body: map[string]any{"error": map[string]any{
		"code": "Base.1.8.GeneralError", "message": "A general error has occurred. See ExtendedInfo for more information.",
		"@Message.ExtendedInfo": []any{map[string]any{"MessageId": "Base.1.8.GeneralError", "Message": text}},
	}}}
}

// ServeHTTP answers a request.
func (r *Redfish) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(io.LimitReader(q.Body, 1<<20))
	if a, ok := r.deflect(q); ok {
		a.write(w)
		return
	}
	fault := r.fault(q)
	if !fault.pause(q.Context()) {
		return
	}
	r.mu.Lock()
	down := time.Now().Before(r.downTill)
	r.mu.Unlock()
	if err != nil || fault.Drop || down {
		panic(http.ErrAbortHandler)
	}
	a := redfishAnswer{}
	switch {
	case fault.Status != 0:
		a = redfishError(fault.Status, "a simulated fault")
	case fault.Lie && q.Method != http.MethodGet && !strings.HasSuffix(q.URL.Path, "/Sessions"):
		a.status = http.StatusNoContent
	default:
		a = r.answer(q, body)
	}
	if fault.Lose {
		panic(http.ErrAbortHandler)
	}
	if a.status < 300 && a.body != nil {
		if fault.Misread && q.Method == http.MethodGet {
			r.misread(strings.TrimSuffix(q.URL.Path, "/"), a.body)
		}
		maps.Copy(a.body, fault.Merge)
	}
	if a.status < 300 {
		r.twist(q, &a)
	}
	a.write(w)
}

func (a redfishAnswer) write(w http.ResponseWriter) {
	for k, v := range a.header {
		w.Header().Set(k, v)
	}
	w.Header().Set("OData-Version", "4.0")
	if a.body == nil {
		w.WriteHeader(a.status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_ = json.NewEncoder(w).Encode(a.body) // the client may be gone
}

// pause waits as long as the fault says. It reports whether the client is still there.
func (f RedfishFault) pause(ctx context.Context) bool {
	ready := f.Wait
	if ready == nil {
		closed := make(chan struct{})
		close(closed)
		ready = closed
	}
	select {
	case <-ready:
	case <-ctx.Done():
		return false
	}
	select {
	case <-time.After(f.Delay):
	case <-ctx.Done():
		return false
	}
	return true
}

// fault returns the fault that happens to a request.
func (r *Redfish) fault(q *http.Request) RedfishFault {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, f := range r.faults {
		matches, err := path.Match(f.Path, strings.TrimSuffix(q.URL.Path, "/"))
		if f.Count < 0 || f.Method != "" && f.Method != q.Method || f.Path != "" && (err != nil || !matches) {
			continue
		}
		if f.Count > 0 {
			if r.faults[i].Count--; r.faults[i].Count == 0 {
				r.faults[i].Count = -1 // used up
			}
		}
		r.struck++
		return f
	}
	return RedfishFault{}
}

// answer authenticates a request and carries it out.
func (r *Redfish) answer(q *http.Request, body []byte) redfishAnswer {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := strings.TrimSuffix(q.URL.Path, "/")
	var data map[string]any
	if len(body) > 0 && json.Unmarshal(body, &data) != nil {
		return redfishError(http.StatusBadRequest, "The request body is not valid JSON.")
	}
	const sessions = "/redfish/v1/SessionService/Sessions"
	switch {
	case p == "/redfish" && q.Method == http.MethodGet:
		return redfishOK(map[string]any{"v1": "/redfish/v1/"})
	case p == "/redfish/v1" && q.Method == http.MethodGet:
		return redfishOK(r.root())
	case p == sessions && q.Method == http.MethodPost:
		return r.logIn(q, data)
	}
	if !r.authentic(q) {
		return redfishError(http.StatusUnauthorized, "There is no valid session established.")
	}
	r.calls = append(r.calls, q.Method+" "+p)

	if id, ok := strings.CutPrefix(p, sessions+"/"); ok {
		return r.session(q.Method, id)
	}
	switch q.Method {
	case http.MethodGet:
		body, ok := r.resource(p)
		if !ok {
			body, ok = r.otherResource(p)
		}
		if ok {
			a := redfishOK(body)
			switch p {
			case r.bootPath():
				a.header = map[string]string{"ETag": r.etag()}
			case redfishAccount:
				a.header = map[string]string{"ETag": r.accountTag()}
			}
			return a
		}
		return redfishError(http.StatusNotFound, "The resource at the URI %s was not found.", p)
	case http.MethodPatch:
		switch p {
		case r.bootPath():
			return r.setBoot(q.Header.Get("If-Match"), data)
		case r.settingsPath():
			if r.shape == RedfishStaleSettings {
				return redfishAnswer{status: http.StatusNoContent}
			}
		case r.systemPath():
			return redfishError(http.StatusBadRequest, "Boot properties are changed in %s.", r.bootPath())
		}
		if p == redfishAccount {
			return r.setAccount(q.Header.Get("If-Match"), data)
		}
	case http.MethodPost:
		return r.act(q.Context(), p, data)
	}
	return redfishError(http.StatusMethodNotAllowed, "%s is not allowed for %s.", q.Method, p)
}

// logIn opens a session.
func (r *Redfish) logIn(q *http.Request, data map[string]any) redfishAnswer {
	user, _ := data["UserName"].(string)
	password, _ := data["Password"].(string)
	if !r.knows(user, password) {
		r.refused++
		return redfishError(http.StatusUnauthorized, "While attempting to establish a connection, the service was denied access.")
	}
	if limit := redfishSessions[r.shape]; limit > 0 && len(r.sessions) >= limit {
		return redfishError(http.StatusServiceUnavailable, "The session establishment failed due to the number of simultaneous "+
			"sessions exceeding the limit of the implementation.")
	}
	origin, _, _ := net.SplitHostPort(q.RemoteAddr)
	r.made++
	s, token := redfishSession{strconv.Itoa(r.made), user, origin}, random(16)
	r.sessions[token] = s
	r.most = max(r.most, len(r.sessions))
	return redfishAnswer{http.StatusCreated, sessionResource(s), map[string]string{
		"X-Auth-Token": token, "Location": "/redfish/v1/SessionService/Sessions/" + s.id,
	}}
}

func (r *Redfish) knows(user, password string) bool {
	return user == r.User && subtle.ConstantTimeCompare([]byte(password), []byte(r.accepts)) == 1
}

func (r *Redfish) authentic(q *http.Request) bool {
	if token := q.Header.Get("X-Auth-Token"); token != "" {
		_, ok := r.sessions[token]
		return ok
	}
	user, password, sent := q.BasicAuth()
	ok := sent && !r.SessionsOnly && r.knows(user, password)
	if sent && !ok {
		r.refused++
	}
	return ok
}

// session reads or deletes a session.
func (r *Redfish) session(method, id string) redfishAnswer {
	for token, s := range r.sessions {
		switch {
		case s.id != id:
		case method == http.MethodGet:
			return redfishOK(sessionResource(s))
		case method == http.MethodDelete:
			delete(r.sessions, token)
			return redfishAnswer{status: http.StatusNoContent}
		}
	}
	return redfishError(http.StatusNotFound, "There is no session %s.", id)
}

func sessionResource(s redfishSession) map[string]any {
	return map[string]any{
		"@odata.id": "/redfish/v1/SessionService/Sessions/" + s.id, "@odata.type": "#Session.v1_3_0.Session", "Id": s.id,
		"Name": "User Session", "UserName": s.user, "ClientOriginIPAddress": s.origin,
	}
}

// etag is the ETag of the system, accountTag the one of the user's account.
func (r *Redfish) etag() string       { return r.formatTag(strconv.Itoa(r.changes)) }
func (r *Redfish) accountTag() string { return r.formatTag("account-" + strconv.Itoa(r.accounts)) }
