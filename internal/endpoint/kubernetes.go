package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/inventory"
)

// Kubernetes is a client of a Kubernetes API server, known by a kubeconfig
// with an embedded CA and an embedded certificate or token.
type Kubernetes struct{}

// fieldManager owns the fields that Apply sets.
const fieldManager = "ingot"

// Ready is nil when the API server says "ok".
func (Kubernetes) Ready(ctx context.Context, kubeconfig inventory.Secret) error {
	k, err := openKube(kubeconfig)
	if err != nil {
		return err
	}
	defer k.close()
	a, err := k.ask(ctx, http.MethodGet, "/readyz", "", nil)
	if err == nil && strings.TrimSpace(string(a.body)) != "ok" {
		err = fmt.Errorf("%s: %w", clip(a.body), inventory.ErrUnreachable)
	}
	if err != nil {
		return fmt.Errorf("asking Kubernetes %q whether it is ready: %w", k.base, err)
	}
	return nil
}

// Nodes lists the nodes by name.
func (Kubernetes) Nodes(ctx context.Context, kubeconfig inventory.Secret) ([]inventory.ClusterNode, error) {
	k, err := openKube(kubeconfig)
	if err != nil {
		return nil, err
	}
	defer k.close()
	a, err := k.ask(ctx, http.MethodGet, "/api/v1/nodes", "", nil)
	if err != nil {
		return nil, fmt.Errorf("listing the nodes of Kubernetes %q: %w", k.base, err)
	}
	var list struct {
		Items []node `json:"items"`
	}
	if err := json.Unmarshal(a.body, &list); err != nil {
		return nil, fmt.Errorf("listing the nodes of Kubernetes %q: %w: %w", k.base, err, inventory.ErrInvalid)
	}
	return clusterNodes(list.Items), nil
}

// Apply makes the objects of a manifest (YAML documents) what they say, by
// server-side apply: doing it again changes nothing. It answers with their
// names, in the manifest's order. What it holds is checked as a whole before
// the first object is sent.
func (Kubernetes) Apply(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error) {
	return eachObject(ctx, kubeconfig, manifest, false, func(k *kube, path string, o object) error {
		_, err := k.ask(ctx, http.MethodPatch, path+"?fieldManager="+fieldManager+"&force=true", "application/apply-patch+yaml", o.body)
		return err
	})
}

// Delete removes the objects of a manifest, the last one first; what is not
// there is no error.
func (Kubernetes) Delete(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error) {
	return eachObject(ctx, kubeconfig, manifest, true, func(k *kube, path string, _ object) error {
		_, err := k.ask(ctx, http.MethodDelete, path+"?propagationPolicy=Foreground", "", nil)
		if errors.Is(err, inventory.ErrNotFound) {
			return nil
		}
		return err
	})
}

// object is one document of a manifest.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	} `yaml:"metadata"`
	body []byte
}

func (o object) String() string {
	if o.Metadata.Namespace == "" {
		return o.Kind + "/" + o.Metadata.Name
	}
	return o.Kind + "/" + o.Metadata.Namespace + "/" + o.Metadata.Name
}

func objects(manifest inventory.Secret) ([]object, error) {
	var out []object
	d := yaml.NewDecoder(strings.NewReader(manifest.Reveal()))
	for n := 1; ; n++ {
		var tree yaml.Node
		err := d.Decode(&tree)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		// The text of a manifest may be a secret, so the parser's words, which
		// quote it, are left out.
		if err != nil {
			return nil, fmt.Errorf("document %d of the manifest is no YAML: %w", n, inventory.ErrInvalid)
		}
		if len(tree.Content) == 0 || tree.Content[0].Tag == "!!null" {
			continue
		}
		var o object
		if tree.Decode(&o) != nil || o.APIVersion == "" || o.Kind == "" || o.Metadata.Name == "" {
			return nil, fmt.Errorf("document %d of the manifest needs apiVersion, kind and metadata.name: %w", n, inventory.ErrInvalid)
		}
		var body bytes.Buffer
		if err := yaml.NewEncoder(&body).Encode(&tree); err != nil {
			return nil, fmt.Errorf("document %d of the manifest: %w", n, inventory.ErrInvalid)
		}
		o.body = body.Bytes()
		out = append(out, o)
	}
}

func eachObject(ctx context.Context, kubeconfig, manifest inventory.Secret, backward bool, f func(*kube, string, object) error) ([]string, error) {
	list, err := objects(manifest)
	if err != nil {
		return nil, err
	}
	k, err := openKube(kubeconfig)
	if err != nil {
		return nil, err
	}
	defer k.close()
	if backward {
		slices.Reverse(list)
	}
	var done []string
	for _, o := range list {
		path, err := k.path(ctx, o)
		if backward && errors.Is(err, inventory.ErrNotFound) {
			continue // its very kind is not there
		}
		if err == nil {
			err = f(k, path, o)
		}
		if err != nil {
			return done, fmt.Errorf("%s at Kubernetes %q: %w", o, k.base, err)
		}
		done = append(done, o.String())
	}
	return done, nil
}

// kube is a connection to an API server.
type kube struct {
	*link
	token inventory.Secret
	kinds map[string][]resource // by API version
}

type resource struct {
	Name       string `json:"name"` // plural
	Kind       string `json:"kind"`
	Namespaced bool   `json:"namespaced"`
}

// path finds out under which path the object lies.
func (k *kube) path(ctx context.Context, o object) (string, error) {
	base := "/apis/" + o.APIVersion
	if !strings.Contains(o.APIVersion, "/") {
		base = "/api/" + o.APIVersion
	}
	if _, known := k.kinds[o.APIVersion]; !known {
		a, err := k.ask(ctx, http.MethodGet, base, "", nil)
		if err != nil {
			return "", err
		}
		var list struct {
			Resources []resource `json:"resources"`
		}
		if err := json.Unmarshal(a.body, &list); err != nil {
			return "", fmt.Errorf("reading the kinds of %s: %w: %w", o.APIVersion, err, inventory.ErrInvalid)
		}
		k.kinds[o.APIVersion] = list.Resources
	}
	for _, r := range k.kinds[o.APIVersion] {
		if r.Kind != o.Kind || strings.Contains(r.Name, "/") {
			continue
		}
		path := base
		if r.Namespaced {
			ns := o.Metadata.Namespace
			if ns == "" {
				ns = "default"
			}
			path += "/namespaces/" + url.PathEscape(ns)
		}
		return path + "/" + r.Name + "/" + url.PathEscape(o.Metadata.Name), nil
	}
	return "", fmt.Errorf("it knows no kind %s of %s: %w", o.Kind, o.APIVersion, inventory.ErrNotFound)
}

func (k *kube) ask(ctx context.Context, method, path, contentType string, body []byte) (answer, error) {
	h := http.Header{"Accept": {"application/json"}}
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	if !k.token.IsZero() {
		h.Set("Authorization", "Bearer "+k.token.Reveal())
	}
	a, err := k.do(ctx, method, path, h, body)
	if err != nil {
		return a, err
	}
	if a.status >= 300 {
		// An API server explains itself in a Status object.
		var s struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(a.body, &s) == nil && s.Message != "" {
			a.body = []byte(s.Message)
		}
	}
	path, _, _ = strings.Cut(path, "?")
	return a, k.wrong(path, a)
}

// kubeconfigFile is what is read of a kubeconfig.
type kubeconfigFile struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string `yaml:"name"`
		Cluster struct {
			Server     string `yaml:"server"`
			CA         string `yaml:"certificate-authority-data"`
			ServerName string `yaml:"tls-server-name"`
		} `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User struct {
			Certificate string `yaml:"client-certificate-data"`
			Key         string `yaml:"client-key-data"`
			Token       string `yaml:"token"`
		} `yaml:"user"`
	} `yaml:"users"`
}

func openKube(kubeconfig inventory.Secret) (*kube, error) {
	bad := func(what string) (*kube, error) {
		return nil, fmt.Errorf("reading the kubeconfig: %s: %w", what, inventory.ErrInvalid)
	}
	var f kubeconfigFile
	if yaml.Unmarshal([]byte(kubeconfig.Reveal()), &f) != nil {
		return bad("it is no YAML") // the parser's words would quote it
	}
	var cluster, user string
	for _, c := range f.Contexts {
		if c.Name == f.Current {
			cluster, user = c.Context.Cluster, c.Context.User
		}
	}
	k := &kube{kinds: map[string][]resource{}}
	e, conf := inventory.Endpoint{}, (*tls.Config)(nil)
	for _, c := range f.Clusters {
		if c.Name != cluster {
			continue
		}
		ca, err := base64.StdEncoding.DecodeString(c.Cluster.CA)
		if err != nil || len(ca) == 0 {
			return bad("the cluster has no certificate-authority-data")
		}
		e = inventory.Endpoint{URL: c.Cluster.Server, CA: string(ca)}
		if conf, err = tlsConfig(e); err != nil {
			return nil, err
		}
		conf.ServerName = c.Cluster.ServerName
	}
	if conf == nil {
		return bad("its current-context names no cluster in it")
	}
	for _, u := range f.Users {
		if u.Name != user {
			continue
		}
		k.token = inventory.NewSecret(u.User.Token)
		if u.User.Certificate == "" {
			continue
		}
		cert, err := base64.StdEncoding.DecodeString(u.User.Certificate)
		key, err2 := base64.StdEncoding.DecodeString(u.User.Key)
		if err != nil || err2 != nil {
			return bad("the user's certificate or key is no base64")
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return bad("the user's certificate and key do not fit each other")
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	if k.token.IsZero() && len(conf.Certificates) == 0 {
		return bad("its current-context names no user with a certificate or a token in it")
	}
	var err error
	k.link, err = dial(e, conf)
	return k, err
}
