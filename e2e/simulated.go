package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// Simulated is a machine without firmware: it fetches its boot script as iPXE would and
// speaks the agent's protocol, from inside the lab's network.
type Simulated struct {
	Name, MAC string
	Facts     action.Facts

	plain, agent *http.Client
	server       string // URL of the server for machines
	base         string // base URL of the agent's routes
	token        string
	patient      bool // sends a request again that was not answered, as the agent does
}

// Simulate returns a simulated machine that is in the inventory under name and mac.
func (s *Site) Simulate(name, mac string) *Simulated {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return s.DialContext(ctx, s.Namespace, network, addr)
	}
	return &Simulated{
		Name: name, MAC: mac, server: s.Address,
		plain: &http.Client{Transport: &http.Transport{DialContext: dial}},
		agent: &http.Client{Transport: &http.Transport{DialContext: dial}},
	}
}

var argument = regexp.MustCompile(`ingot\.(server|pin|claim|plan)=(\S+)`)

// ErrNotArmed is returned by Boot if the machine must boot its disk.
var ErrNotArmed = errors.New("the boot script has no claim")

// Script fetches the boot script.
func (m *Simulated) Script(ctx context.Context) (string, error) {
	return m.Fetch(ctx, "/ipxe/script/"+m.MAC+"/auto.ipxe")
}

// Fetch fetches a file from the server's HTTP port for machines. A status of 5xx is an error.
func (m *Simulated) Fetch(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:7080%s", m.server, path), nil)
	if err != nil {
		return "", err
	}
	res, err := m.plain.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 500 {
		err = fmt.Errorf("fetching %s: %s", path, res.Status)
	}
	return string(body), err
}

// Arguments fetches the boot script and returns its arguments for the agent: server, pin and
// claim. ErrNotArmed means that the machine must boot its disk.
func (m *Simulated) Arguments(ctx context.Context) (map[string]string, error) {
	script, err := m.Script(ctx)
	if err != nil {
		return nil, err
	}
	args := map[string]string{}
	for _, a := range argument.FindAllStringSubmatch(script, -1) {
		args[a[1]] = a[2]
	}
	if args["claim"] == "" {
		return nil, ErrNotArmed
	}
	return args, nil
}

// Boot fetches the boot script and redeems its claim.
func (m *Simulated) Boot(ctx context.Context) (action.Welcome, error) {
	args, err := m.Arguments(ctx)
	if err != nil {
		return action.Welcome{}, err
	}
	return m.claim(ctx, args)
}

// claim redeems the claim in a boot script's arguments, and uses the token that it gets.
func (m *Simulated) claim(ctx context.Context, args map[string]string) (action.Welcome, error) {
	var w action.Welcome
	a, err := m.Redeem(ctx, args, Nonce())
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("claiming: status %d", a.Status)
	}
	if err == nil {
		err = json.Unmarshal(a.Body, &w)
	}
	m.token = w.Token
	return w, err
}

// Nonce returns a new nonce, as an agent creates one for each boot.
func Nonce() string {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never returns an error: it ends the program instead
	return hex.EncodeToString(nonce[:])
}

// Answer is the server's answer.
type Answer struct {
	Status int
	Body   []byte
}

func (a Answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Body) }

// Welcome reads the answer to a claim.
func (a Answer) Welcome() (w action.Welcome, err error) {
	if a.Status != http.StatusOK {
		return w, fmt.Errorf("claiming: %s", a)
	}
	return w, json.Unmarshal(a.Body, &w)
}

// agentFlags returns the flags that pass the script's arguments to a worker-agent process.
func agentFlags(args map[string]string) []string {
	flags := []string{"-server", args["server"], "-pin", args["pin"], "-claim", args["claim"]}
	if args["plan"] != "" { // agents from before signed orders do not have this flag
		flags = append(flags, "-plan", args["plan"])
	}
	return flags
}

// Redeem presents the claim in a boot script's arguments, which may be old. Use selects the
// token that it returns.
func (m *Simulated) Redeem(ctx context.Context, args map[string]string, nonce string) (Answer, error) {
	m.meet(args)
	hello := m.hello(args, nonce)
	return m.Ask(ctx, http.MethodPost, "/agent/v1/claim", hello)
}

// RedeemWithoutAnswer presents the claim and does not read the answer; the returned function drops
// the connection.
func (m *Simulated) RedeemWithoutAnswer(ctx context.Context, args map[string]string, nonce string) (drop func() error, err error) {
	m.meet(args)
	b, err := json.Marshal(m.hello(args, nonce))
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.base+"/agent/v1/claim", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	transport := m.agent.Transport.(*http.Transport)
	raw, err := transport.DialContext(ctx, "tcp", req.URL.Host)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, transport.TLSClientConfig)
	if err := req.Write(c); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return raw.Close, nil
}

func (m *Simulated) meet(args map[string]string) {
	m.base = args["server"]
	m.agent.Transport.(*http.Transport).TLSClientConfig = pinned(args["pin"])
}

func (m *Simulated) hello(args map[string]string, nonce string) action.Hello {
	return action.Hello{Protocol: action.Protocol, Machine: m.Name, Claim: args["claim"], Nonce: nonce, MAC: m.MAC, Facts: m.Facts}
}

// Use sets the token of all further requests, and returns the previous one.
func (m *Simulated) Use(token string) (before string) {
	before, m.token = m.token, token
	return before
}

// pinned trusts only the key with that digest.
func pinned(pin string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // the key's digest is compared instead of a name
		VerifyConnection: func(c tls.ConnectionState) error {
			sum := sha256.Sum256(c.PeerCertificates[0].RawSubjectPublicKeyInfo)
			if strings.TrimPrefix(pin, "sha256:") != hex.EncodeToString(sum[:]) {
				return errors.New("the server's key is not the pinned one")
			}
			return nil
		},
	}
}

// Next waits for an assignment; it returns nil if there was none for 30 s.
func (m *Simulated) Next(ctx context.Context) (*action.Assignment, error) {
	var a action.Assignment
	status, err := m.call(ctx, http.MethodGet, "/agent/v1/next?wait=30s", nil, &a)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusOK:
		return &a, nil
	case status == http.StatusNoContent:
		return nil, nil
	}
	return nil, fmt.Errorf("asking for work: status %d", status)
}

// Report reports the end of an attempt.
func (m *Simulated) Report(ctx context.Context, r action.Result) error {
	status, err := m.call(ctx, http.MethodPost, "/agent/v1/report", r, nil)
	if err == nil && status != http.StatusNoContent {
		err = fmt.Errorf("reporting: status %d", status)
	}
	return err
}

// Done reports success of an assignment.
func (m *Simulated) Done(ctx context.Context, a *action.Assignment) error {
	now := time.Now()
	return m.Report(ctx, action.Result{Key: a.Key, ID: m.Name + "-" + a.Key.String(), State: action.Success, Started: now, Ended: now})
}

// Heartbeat sends a sign of life of the agent.
func (m *Simulated) Heartbeat(ctx context.Context, h action.Heartbeat) (action.Orders, error) {
	var o action.Orders
	_, err := m.call(ctx, http.MethodPost, "/agent/v1/heartbeat", h, &o)
	return o, err
}

// Ask sends a request to the agent's routes and returns the raw answer.
func (m *Simulated) Ask(ctx context.Context, method, path string, body any) (Answer, error) {
	var a Answer
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return a, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, m.base+path, r)
	if err != nil {
		return a, err
	}
	if m.token != "" {
		req.Header.Set("Authorization", "Bearer "+m.token)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := m.agent.Do(req)
	if err != nil && m.patient {
		select {
		case <-time.After(time.Second):
			return m.Ask(ctx, method, path, body)
		case <-ctx.Done():
		}
	}
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	a.Status = res.StatusCode
	a.Body, err = io.ReadAll(res.Body)
	return a, err
}

func (m *Simulated) call(ctx context.Context, method, path string, body, into any) (int, error) {
	a, err := m.Ask(ctx, method, path, body)
	if err != nil || into == nil || a.Status != http.StatusOK {
		return a.Status, err
	}
	return a.Status, json.Unmarshal(a.Body, into)
}
