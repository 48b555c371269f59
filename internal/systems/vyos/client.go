package vyos

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/inventory"
)

// Client is a client of the HTTP API of VyOS 1.4 and 1.5: POST with the form
// fields data and key.
type Client struct{}

// relayPath is the configuration path of the DHCP relay.
var relayPath = []string{"service", "dhcp-relay"}

// RelayServers returns the servers to which the router relays DHCP.
func (c Client) RelayServers(ctx context.Context, e inventory.Endpoint, key inventory.Secret) ([]string, error) {
	tree, err := c.Configuration(ctx, e, key, relayPath...)
	if err != nil {
		return nil, err
	}
	servers := []string{}
	switch v := tree["server"].(type) {
	case string:
		servers = append(servers, v)
	case []any:
		for _, x := range v {
			if s, ok := x.(string); ok {
				servers = append(servers, s)
			}
		}
	}
	return servers, nil
}

// SetRelayServer adds a server to the relay, or removes it, and saves the configuration. If nothing would change, the error is ErrInvalid
// as for an invalid change, because VyOS answers both with the same status.
func (c Client) SetRelayServer(
	ctx context.Context, e inventory.Endpoint, key inventory.Secret, server string, listed bool,
) error {
	op := "set"
	if !listed {
		op = "delete"
	}
	return c.configure(ctx, e, key, op, append(slices.Clone(relayPath), "server", server))
}

// Configuration returns the running configuration under path as a tree; the tree is empty if nothing is configured there. A leaf with one
// value is a string, and a leaf with several values a list of strings.
func (Client) Configuration(
	ctx context.Context, e inventory.Endpoint, key inventory.Secret, path ...string,
) (map[string]any, error) {
	if path == nil {
		path = []string{}
	}
	a, status, err := ask(ctx, e, key, "/retrieve", map[string]any{"op": "showConfig", "path": path})
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of router %q: %w", e.URL, err)
	}
	if !a.Success {
		if status == http.StatusBadRequest && strings.Contains(a.reason(), "path is empty") {
			return map[string]any{}, nil
		}
		return nil, fmt.Errorf("reading the configuration of router %q: %q: %w", e.URL, a.reason(), inventory.ErrInvalid)
	}

	var tree map[string]any
	if err := json.Unmarshal(a.Data, &tree); err != nil {
		return nil, fmt.Errorf("reading the configuration of router %q: %w: %w", e.URL, err, inventory.ErrInvalid)
	}
	return tree, nil
}

// configure commits one change and saves the configuration, so that the change survives a reboot.
func (Client) configure(
	ctx context.Context, e inventory.Endpoint, key inventory.Secret, op string, path []string,
) error {
	for _, step := range []struct {
		route string
		data  any
	}{
		{"/configure", []any{map[string]any{"op": op, "path": path}}},
		{"/config-file", map[string]any{"op": "save"}},
	} {
		a, _, err := ask(ctx, e, key, step.route, step.data)
		if err != nil {
			return fmt.Errorf("configuring router %q: %w", e.URL, err)
		}
		if !a.Success {
			return fmt.Errorf("configuring router %q: %s answers %q: %w", e.URL, step.route, a.reason(), inventory.ErrInvalid)
		}
	}
	return nil
}

// answer is the body of every answer of VyOS, even if the answer is an error.
type answer struct {
	Success bool            `json:"success"`
	Data    json.RawMessage `json:"data"`
	Error   *string         `json:"error"`
}

func (a answer) reason() string {
	if a.Error == nil {
		return ""
	}
	return strings.TrimSpace(*a.Error)
}

// ask sends one request and returns the answer of VyOS and its HTTP status. It returns an error if no answer of VyOS came, or if the status
// means that VyOS refused the key or failed. Any other status is not an error.
func ask(
	ctx context.Context, e inventory.Endpoint, key inventory.Secret, route string, data any,
) (a answer, status int, err error) {
	b, err := json.Marshal(data)
	if err != nil {
		return a, 0, err
	}
	form := url.Values{"data": {string(b)}, "key": {key.Reveal()}}
	got, err := endpoint.Ask(ctx, e, endpoint.Request{
		Method: http.MethodPost, Path: route, Body: []byte(form.Encode()),
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}},
	})
	if err != nil {
		return a, 0, err
	}

	refused := got.Status == http.StatusUnauthorized || got.Status == http.StatusForbidden
	unreadable := json.Unmarshal(got.Body, &a) != nil
	if refused || unreadable || got.Status >= 500 {
		err = got.Err()
	}
	if err == nil && unreadable {
		err = fmt.Errorf("%s answers %s, which is not an answer of VyOS: %w", route, endpoint.Clip(got.Body), inventory.ErrInvalid)
	}
	return a, got.Status, err
}
