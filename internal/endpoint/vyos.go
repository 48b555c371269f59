package endpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// VyOS is a client of the HTTP API of VyOS 1.4 and 1.5: POST with the form
// fields data and key.
type VyOS struct{}

// vyosAnswer is what every route answers, errors included.
type vyosAnswer struct {
	Success bool            `json:"success"`
	Data    json.RawMessage `json:"data"`
	Error   *string         `json:"error"`
}

// Configuration returns the running configuration under path as a tree; what
// is not configured is an empty one. A value that is set once is a string, one
// that is set more often a list of strings.
func (VyOS) Configuration(ctx context.Context, e inventory.Endpoint, key inventory.Secret, path ...string) (map[string]any, error) {
	if path == nil {
		path = []string{}
	}
	var tree map[string]any
	a, status, err := vyos(ctx, e, key, "/retrieve", map[string]any{"op": "showConfig", "path": path})
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of router %q: %w", e.URL, err)
	}
	if !a.Success {
		if status == http.StatusBadRequest && strings.Contains(a.reason(), "path is empty") {
			return map[string]any{}, nil
		}
		return nil, fmt.Errorf("reading the configuration of router %q: %q: %w", e.URL, a.reason(), inventory.ErrInvalid)
	}
	if err := json.Unmarshal(a.Data, &tree); err != nil {
		return nil, fmt.Errorf("reading the configuration of router %q: %w: %w", e.URL, err, inventory.ErrInvalid)
	}
	return tree, nil
}

// Configure makes all changes in one commit and saves the configuration, so
// that it outlives a reboot. What is so already changes nothing.
func (VyOS) Configure(ctx context.Context, e inventory.Endpoint, key inventory.Secret, changes ...inventory.RouterCommand) error {
	list := []map[string]any{}
	for _, c := range changes {
		op := "set"
		if c.Delete {
			op = "delete"
		}
		list = append(list, map[string]any{"op": op, "path": c.Path})
	}
	for _, step := range []struct {
		route string
		data  any
	}{{"/configure", list}, {"/config-file", map[string]any{"op": "save"}}} {
		a, _, err := vyos(ctx, e, key, step.route, step.data)
		if err != nil {
			return fmt.Errorf("configuring router %q: %w", e.URL, err)
		}
		if !a.Success {
			return fmt.Errorf("configuring router %q: %s answers %q: %w", e.URL, step.route, a.reason(), inventory.ErrInvalid)
		}
	}
	return nil
}

func (a vyosAnswer) reason() string {
	if a.Error == nil {
		return ""
	}
	return strings.TrimSpace(*a.Error)
}

// vyos sends one request. An answer that VyOS itself gave is returned whatever
// its status, but for a key that is refused.
func vyos(ctx context.Context, e inventory.Endpoint, key inventory.Secret, route string, data any) (vyosAnswer, int, error) {
	conf, err := tlsConfig(e)
	if err != nil {
		return vyosAnswer{}, 0, err
	}
	l, err := dial(e, conf)
	if err != nil {
		return vyosAnswer{}, 0, err
	}
	defer l.close()
	b, err := json.Marshal(data)
	if err != nil {
		return vyosAnswer{}, 0, err
	}
	form := url.Values{"data": {string(b)}, "key": {key.Reveal()}}
	got, err := l.do(ctx, http.MethodPost, route, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte(form.Encode()))
	if err != nil {
		return vyosAnswer{}, 0, err
	}
	if got.status == http.StatusUnauthorized || got.status == http.StatusForbidden {
		return vyosAnswer{}, 0, l.wrong(route, got)
	}
	var a vyosAnswer
	if err := json.Unmarshal(got.body, &a); err != nil {
		if err := l.wrong(route, got); err != nil {
			return vyosAnswer{}, 0, err
		}
		return vyosAnswer{}, 0, fmt.Errorf("%s answers %s, which is not of VyOS: %w", route, clip(got.body), inventory.ErrInvalid)
	}
	if got.status >= 500 {
		return vyosAnswer{}, 0, l.wrong(route, got)
	}
	return a, got.status, nil
}
