package harvester

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/internal/systems/kubernetes"
	"github.com/ingotmetal/ingot/inventory"
)

// Client is a client of a Harvester cluster at its virtual address.
type Client struct{}

// sessionTime is the lifetime that is requested for a session, in case that LogOut is not called. Rancher's own limit (16 h by default)
// overrides it, so always call LogOut.
const sessionTime = time.Hour

// Ready returns nil once other nodes can join: the cluster's ingress answers "pong", and Harvester serves its API.
// Harvester's own console uses the same test.
func (Client) Ready(ctx context.Context, e inventory.Endpoint) error {
	b, err := ask(ctx, e, endpoint.Request{Method: http.MethodGet, Path: "/ping"})
	if err != nil {
		return fmt.Errorf("pinging cluster %q: %w", e.URL, err)
	}
	if strings.TrimSpace(string(b)) != "pong" {
		return fmt.Errorf("pinging cluster %q: the answer is %s instead of pong: %w",
			e.URL, endpoint.Clip(b), inventory.ErrUnreachable)
	}

	_, err = ask(ctx, e, endpoint.Request{Method: http.MethodGet, Path: "/v1/harvester/cluster/local"})
	if err != nil {
		return fmt.Errorf("asking cluster %q for its state: %w", e.URL, err)
	}
	return nil
}

// LogIn starts a session and returns its token. The cluster stores each token until it expires, so log in once for
// several requests and then call LogOut.
func (Client) LogIn(
	ctx context.Context, e inventory.Endpoint, user string, password inventory.Secret,
) (inventory.Secret, error) {
	login, err := json.Marshal(map[string]any{
		"username": user, "password": password.Reveal(), "responseType": "json",
		"description": "ingot", "ttl": sessionTime.Milliseconds(),
	})
	var b []byte
	if err == nil {
		b, err = ask(ctx, e, endpoint.Request{
			Method: http.MethodPost, Path: "/v3-public/localProviders/local?action=login", Header: jsonHeader(), Body: login,
		})
	}
	var session struct {
		Token string `json:"token"`
	}
	if err == nil && (json.Unmarshal(b, &session) != nil || session.Token == "") {
		err = fmt.Errorf("the answer contains no token: %w", inventory.ErrInvalid)
	}
	if err != nil {
		return inventory.Secret{}, fmt.Errorf("logging in to cluster %q: %w", e.URL, err)
	}
	return inventory.NewSecret(session.Token), nil
}

// LogOut ends the session of a token. After that, the cluster does not accept the token.
func (Client) LogOut(ctx context.Context, e inventory.Endpoint, token inventory.Secret) error {
	_, err := ask(ctx, e, endpoint.Request{
		Method: http.MethodPost, Path: "/v3/tokens?action=logout", Header: authorized(token), Body: []byte("{}"),
	})
	if err != nil {
		return fmt.Errorf("logging out of cluster %q: %w", e.URL, err)
	}
	return nil
}

// Nodes returns the nodes, sorted by name. For a token that has expired, the error is ErrRefused.
func (Client) Nodes(
	ctx context.Context, e inventory.Endpoint, token inventory.Secret,
) ([]inventory.ClusterNode, error) {
	b, err := ask(ctx, e, endpoint.Request{
		Method: http.MethodGet, Path: "/v1/harvester/nodes", Header: authorized(token),
	})
	var list struct {
		Data []kubernetes.Node `json:"data"`
	}
	if err == nil {
		if err = json.Unmarshal(b, &list); err != nil {
			err = fmt.Errorf("%w: %w", err, inventory.ErrInvalid)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the nodes of cluster %q: %w", e.URL, err)
	}
	return kubernetes.ClusterNodes(list.Data), nil
}

func jsonHeader() http.Header {
	return http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
}

func authorized(token inventory.Secret) http.Header {
	h := jsonHeader()
	h.Set("Authorization", "Bearer "+token.Reveal())
	return h
}

// ask sends one request and returns the body of the answer. For status 404, the error is ErrUnreachable, because the ingress is up before
// the services behind it.
func ask(ctx context.Context, e inventory.Endpoint, r endpoint.Request) ([]byte, error) {
	a, err := endpoint.Ask(ctx, e, r)
	if err != nil {
		return nil, err
	}
	if a.Status == http.StatusNotFound {
		return nil, fmt.Errorf("%s answers 404: %w", a.URL, inventory.ErrUnreachable)
	}
	return a.Body, a.Err()
}
