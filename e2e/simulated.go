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
	"github.com/ingotmetal/ingot/lab"
)

// Simulated is a machine without firmware: it fetches its boot script as iPXE
// would and speaks the agent's protocol, from inside the lab's network.
type Simulated struct {
	Name, MAC string
	Facts     action.Facts

	plain, agent *http.Client
	base         string // of the agent's routes
	token        string
}

// Simulate returns a machine that the inventory already knows under name and mac.
func (s *Site) Simulate(name, mac string) *Simulated {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return s.DialContext(ctx, lab.Server, network, addr)
	}
	return &Simulated{
		Name: name, MAC: mac,
		plain: &http.Client{Transport: &http.Transport{DialContext: dial}},
		agent: &http.Client{Transport: &http.Transport{DialContext: dial}},
	}
}

var argument = regexp.MustCompile(`ingot\.(server|pin|claim)=(\S+)`)

// ErrNotArmed is what Boot returns when the machine is sent to its disk.
var ErrNotArmed = errors.New("the boot script has no claim")

// Arguments fetches the boot script and returns what it tells the agent:
// server, pin and claim. ErrNotArmed: the machine is sent to its disk.
func (m *Simulated) Arguments(ctx context.Context) (map[string]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("http://%s:7080/ipxe/script/%s/auto.ipxe", lab.ServerAddress, m.MAC), nil)
	if err != nil {
		return nil, err
	}
	res, err := m.plain.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	script, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	args := map[string]string{}
	for _, a := range argument.FindAllStringSubmatch(string(script), -1) {
		args[a[1]] = a[2]
	}
	if args["claim"] == "" {
		return nil, ErrNotArmed
	}
	return args, nil
}

// Boot fetches the boot script and redeems its claim.
func (m *Simulated) Boot(ctx context.Context) (action.Welcome, error) {
	var w action.Welcome
	args, err := m.Arguments(ctx)
	if err != nil {
		return w, err
	}
	m.base = args["server"]
	m.agent.Transport.(*http.Transport).TLSClientConfig = pinned(args["pin"])
	var nonce [16]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return w, err
	}
	hello := action.Hello{Protocol: action.Protocol, Machine: m.Name, Claim: args["claim"], Nonce: hex.EncodeToString(nonce[:]), MAC: m.MAC, Facts: m.Facts}
	status, err := m.call(ctx, http.MethodPost, "/agent/v1/claim", hello, &w)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("claiming: status %d", status)
	}
	m.token = w.Token
	return w, err
}

// pinned trusts the key with that digest and nothing else.
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

// Next waits for an assignment; nil when there was none for 30 s.
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

// Heartbeat says that the agent lives.
func (m *Simulated) Heartbeat(ctx context.Context, h action.Heartbeat) (action.Orders, error) {
	var o action.Orders
	_, err := m.call(ctx, http.MethodPost, "/agent/v1/heartbeat", h, &o)
	return o, err
}

func (m *Simulated) call(ctx context.Context, method, path string, body, into any) (int, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, m.base+path, r)
	if err != nil {
		return 0, err
	}
	if m.token != "" {
		req.Header.Set("Authorization", "Bearer "+m.token)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := m.agent.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || into == nil || res.StatusCode != http.StatusOK {
		return res.StatusCode, err
	}
	return res.StatusCode, json.Unmarshal(b, into)
}
