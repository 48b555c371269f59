package endpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Harvester is a client of a Harvester cluster at its virtual address.
type Harvester struct{}

// Ping is nil once the cluster's front answers "pong": the sign for which
// joining nodes wait.
func (Harvester) Ping(ctx context.Context, e inventory.Endpoint) error {
	b, err := harvester(ctx, e, http.MethodGet, "/ping", nil, nil)
	if err != nil {
		return fmt.Errorf("pinging cluster %q: %w", e.URL, err)
	}
	if strings.TrimSpace(string(b)) != "pong" {
		return fmt.Errorf("pinging cluster %q: it answers %s and not pong: %w", e.URL, clip(b), inventory.ErrUnreachable)
	}
	return nil
}

// Cluster is nil once Harvester itself serves its API, which the installer's
// own console takes for "ready".
func (Harvester) Cluster(ctx context.Context, e inventory.Endpoint) error {
	if _, err := harvester(ctx, e, http.MethodGet, "/v1/harvester/cluster/local", nil, nil); err != nil {
		return fmt.Errorf("asking cluster %q for its state: %w", e.URL, err)
	}
	return nil
}

// sessionTime bounds how long a session may live that nobody ended. Rancher's
// own setting (16 h as it comes) overrules it, so whoever logs in logs out.
const sessionTime = time.Hour

func asJSON() http.Header {
	return http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
}

// LogIn begins a session and returns its token. A cluster keeps a token as long
// as it lives: log in once for many questions, and LogOut after them.
func (Harvester) LogIn(ctx context.Context, e inventory.Endpoint, user string, password inventory.Secret) (token inventory.Secret, err error) {
	fault := func(err error) error { return fmt.Errorf("logging in to cluster %q: %w", e.URL, err) }
	login, err := json.Marshal(map[string]any{
		"username": user, "password": password.Reveal(), "responseType": "json", "description": "ingot", "ttl": sessionTime.Milliseconds(),
	})
	if err != nil {
		return token, fault(err)
	}
	b, err := harvester(ctx, e, http.MethodPost, "/v3-public/localProviders/local?action=login", asJSON(), login)
	if err != nil {
		return token, fault(err)
	}
	var session struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(b, &session); err != nil || session.Token == "" {
		return token, fault(fmt.Errorf("it gave no token: %w", inventory.ErrInvalid))
	}
	return inventory.NewSecret(session.Token), nil
}

// LogOut ends the session of a token, which is worth nothing from then on.
func (Harvester) LogOut(ctx context.Context, e inventory.Endpoint, token inventory.Secret) error {
	if _, err := harvester(ctx, e, http.MethodPost, "/v3/tokens?action=logout", bearer(token), []byte("{}")); err != nil {
		return fmt.Errorf("logging out of cluster %q: %w", e.URL, err)
	}
	return nil
}

// Nodes lists the nodes, by name. A token that is worth nothing any more is
// inventory.ErrRefused.
func (Harvester) Nodes(ctx context.Context, e inventory.Endpoint, token inventory.Secret) ([]inventory.ClusterNode, error) {
	fault := func(err error) error { return fmt.Errorf("listing the nodes of cluster %q: %w", e.URL, err) }
	b, err := harvester(ctx, e, http.MethodGet, "/v1/harvester/nodes", bearer(token), nil)
	if err != nil {
		return nil, fault(err)
	}
	var list struct {
		Data []node `json:"data"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fault(fmt.Errorf("%w: %w", err, inventory.ErrInvalid))
	}
	return clusterNodes(list.Data), nil
}

func bearer(token inventory.Secret) http.Header {
	h := asJSON()
	h.Set("Authorization", "Bearer "+token.Reveal())
	return h
}

// node is what Kubernetes says of a node, alone or through Rancher.
type node struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

func clusterNodes(list []node) []inventory.ClusterNode {
	out := []inventory.ClusterNode{}
	for _, n := range list {
		ready := false
		for _, c := range n.Status.Conditions {
			ready = ready || c.Type == "Ready" && c.Status == "True"
		}
		out = append(out, inventory.ClusterNode{Name: n.Metadata.Name, Ready: ready})
	}
	slices.SortFunc(out, func(a, b inventory.ClusterNode) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func harvester(ctx context.Context, e inventory.Endpoint, method, path string, header http.Header, body []byte) ([]byte, error) {
	conf, err := tlsConfig(e)
	if err != nil {
		return nil, err
	}
	l, err := dial(e, conf)
	if err != nil {
		return nil, err
	}
	defer l.close()
	a, err := l.do(ctx, method, path, header, body)
	if err != nil {
		return nil, err
	}
	if a.status == http.StatusNotFound {
		// The ingress is up before what stands behind it.
		return nil, fmt.Errorf("%s%s answers 404: %w", l.base, path, inventory.ErrUnreachable)
	}
	return a.body, l.wrong(path, a)
}
