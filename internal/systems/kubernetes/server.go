package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/inventory"
)

// A server is a connection to an API server.
type server struct {
	api     *endpoint.Client
	address string
	token   inventory.Secret
	kinds   map[string][]resource // the kinds of each API version for which the server was asked
}

type resource struct {
	Name       string `json:"name"` // plural
	Kind       string `json:"kind"`
	Namespaced bool   `json:"namespaced"`
}

// pathOf returns the URL path of an object. It needs the kinds of the object's API version, for which it asks the API server the first time
// only.
func (s *server) pathOf(ctx context.Context, o object) (string, error) {
	path := "/apis/" + o.APIVersion
	if !strings.Contains(o.APIVersion, "/") {
		path = "/api/" + o.APIVersion
	}
	if _, known := s.kinds[o.APIVersion]; !known {
		var list struct {
			Resources []resource `json:"resources"`
		}
		if err := s.get(ctx, path, &list); err != nil {
			return "", err
		}
		s.kinds[o.APIVersion] = list.Resources
	}

	for _, r := range s.kinds[o.APIVersion] {
		if r.Kind != o.Kind || strings.Contains(r.Name, "/") {
			continue
		}
		if r.Namespaced {
			path += "/namespaces/" + url.PathEscape(cmp.Or(o.Metadata.Namespace, "default"))
		}
		return path + "/" + r.Name + "/" + url.PathEscape(o.Metadata.Name), nil
	}
	return "", fmt.Errorf("the API server does not know kind %s of %s: %w", o.Kind, o.APIVersion, inventory.ErrNotFound)
}

// get sends a GET request for path and decodes the answer, which is JSON. The argument into is a pointer to the result.
func (s *server) get(ctx context.Context, path string, into any) error {
	a, err := s.ask(ctx, endpoint.Request{Method: http.MethodGet, Path: path})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(a.Body, into); err != nil {
		return fmt.Errorf("reading %s: %w: %w", path, err, inventory.ErrInvalid)
	}
	return nil
}

// ask sends one request. If the status is not a success, the error contains the API server's message.
func (s *server) ask(ctx context.Context, r endpoint.Request) (endpoint.Answer, error) {
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Set("Accept", "application/json")
	if !s.token.IsZero() {
		r.Header.Set("Authorization", "Bearer "+s.token.Reveal())
	}
	a, err := s.api.Do(ctx, r)
	if err != nil {
		return a, err
	}

	var explained struct {
		Message string `json:"message"`
	}
	if a.Status >= 300 && json.Unmarshal(a.Body, &explained) == nil && explained.Message != "" {
		a.Body = []byte(explained.Message)
	}
	return a, a.Err()
}
