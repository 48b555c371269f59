// Package kubernetes is a client of an installed Kubernetes. It sends only the few requests that Genesis needs, over HTTP.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/inventory"
)

// Client is a client of a Kubernetes API server. Each call gets a kubeconfig, which names the server and must embed the CA, and a
// certificate or token.
type Client struct{}

// fieldManager is the owner of the fields that Apply sets (server-side apply).
const fieldManager = "ingot"

// Ready returns nil if the API server answers "ok" at /readyz.
func (Client) Ready(ctx context.Context, kubeconfig inventory.Secret) error {
	s, err := open(kubeconfig)
	if err != nil {
		return err
	}
	defer s.api.Close()

	a, err := s.ask(ctx, endpoint.Request{Method: http.MethodGet, Path: "/readyz"})
	if err == nil && strings.TrimSpace(string(a.Body)) != "ok" {
		err = fmt.Errorf("%s: %w", endpoint.Clip(a.Body), inventory.ErrUnreachable)
	}
	if err != nil {
		return fmt.Errorf("asking Kubernetes %q whether it is ready: %w", s.address, err)
	}
	return nil
}

// Nodes returns the nodes, sorted by name.
func (Client) Nodes(ctx context.Context, kubeconfig inventory.Secret) ([]inventory.ClusterNode, error) {
	s, err := open(kubeconfig)
	if err != nil {
		return nil, err
	}
	defer s.api.Close()

	var list struct {
		Items []Node `json:"items"`
	}
	if err := s.get(ctx, "/api/v1/nodes", &list); err != nil {
		return nil, fmt.Errorf("listing the nodes of Kubernetes %q: %w", s.address, err)
	}
	return ClusterNodes(list.Items), nil
}

// Apply applies a manifest (YAML documents) by server-side apply, so it may be repeated. It checks the whole
// manifest before it sends the first object. It returns the names of the objects in the manifest's order.
func (Client) Apply(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error) {
	list, err := parseManifest(manifest)
	if err != nil {
		return nil, err
	}
	return eachObject(kubeconfig, list, func(s *server, o object) error {
		path, err := s.pathOf(ctx, o)
		if err != nil {
			return err
		}
		_, err = s.ask(ctx, endpoint.Request{
			Method: http.MethodPatch, Path: path + "?fieldManager=" + fieldManager + "&force=true",
			Header: http.Header{"Content-Type": {"application/apply-patch+yaml"}}, Body: o.body,
		})
		return err
	})
}

// Delete removes the objects of a manifest, the last one first, and returns their names. An object that does not
// exist counts as removed. An object of a kind that the API server does not have is skipped.
func (Client) Delete(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error) {
	list, err := parseManifest(manifest)
	if err != nil {
		return nil, err
	}
	slices.Reverse(list)
	return eachObject(kubeconfig, list, func(s *server, o object) error {
		path, err := s.pathOf(ctx, o)
		if errors.Is(err, inventory.ErrNotFound) {
			return errUnknownKind
		}
		if err == nil {
			_, err = s.ask(ctx, endpoint.Request{Method: http.MethodDelete, Path: path + "?propagationPolicy=Foreground"})
		}
		if errors.Is(err, inventory.ErrNotFound) {
			return nil
		}
		return err
	})
}

// errUnknownKind makes eachObject skip the object.
var errUnknownKind = errors.New("the API server does not know the kind")

// eachObject calls do for each object until a call fails. It returns the names of the objects for which the call succeeded.
func eachObject(kubeconfig inventory.Secret, list []object, do func(*server, object) error) ([]string, error) {
	s, err := open(kubeconfig)
	if err != nil {
		return nil, err
	}
	defer s.api.Close()

	var done []string
	for _, o := range list {
		err := do(s, o)
		if errors.Is(err, errUnknownKind) {
			continue
		}
		if err != nil {
			return done, fmt.Errorf("%s at Kubernetes %q: %w", o, s.address, err)
		}
		done = append(done, o.String())
	}
	return done, nil
}

// A Node is a node in an answer of the API server.
type Node struct {
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

// ClusterNodes converts nodes to those of package inventory and sorts them by name.
func ClusterNodes(list []Node) []inventory.ClusterNode {
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
