package talos

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	timeout       = 30 * time.Second
	maxKubeconfig = 1 << 20
)

// Client is a client of the Talos API (TCP 50000). Each call gets the address of the node and a talosconfig with
// the trusted authority and the client certificate.
type Client struct{}

// Version returns the Talos version of the node, such as v1.13.0. The node authenticates with a certificate of the
// authority in its machine configuration, so an answer proves that the node runs with that configuration.
func (Client) Version(ctx context.Context, address string, talosconfig inventory.Secret) (string, error) {
	var tag string
	err := call(ctx, address, talosconfig, func(ctx context.Context, c machine.MachineServiceClient) error {
		v, err := c.Version(ctx, &emptypb.Empty{})
		if err != nil {
			return err
		}
		for _, m := range v.GetMessages() {
			tag = m.GetVersion().GetTag()
		}
		return nil
	})
	return tag, wrap("asking Talos %q for its version", address, err)
}

// Bootstrap makes the node the first member of its cluster's etcd, which happens once in the life of a cluster. already reports that the
// cluster was bootstrapped before this call.
func (Client) Bootstrap(ctx context.Context, address string, talosconfig inventory.Secret) (already bool, err error) {
	err = call(ctx, address, talosconfig, func(ctx context.Context, c machine.MachineServiceClient) error {
		_, err := c.Bootstrap(ctx, &machine.BootstrapRequest{})
		return err
	})
	if status.Code(err) == codes.AlreadyExists {
		return true, nil
	}
	return false, wrap("bootstrapping Talos %q", address, err)
}

// Kubeconfig returns an administrator's kubeconfig for the node's cluster. If server is not "", it becomes the URL of the API server in the
// kubeconfig. Talos itself writes the cluster's endpoint there: a name or load balancer that may not exist yet.
func (Client) Kubeconfig(
	ctx context.Context, address string, talosconfig inventory.Secret, server string,
) (inventory.Secret, error) {
	var packed bytes.Buffer
	err := call(ctx, address, talosconfig, func(ctx context.Context, c machine.MachineServiceClient) error {
		s, err := c.Kubeconfig(ctx, &emptypb.Empty{})
		if err != nil {
			return err
		}
		for {
			d, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if e := d.GetMetadata().GetError(); e != "" {
				return status.Error(codes.Unavailable, e)
			}
			packed.Write(d.GetBytes())
			if packed.Len() > maxKubeconfig {
				return fmt.Errorf("the kubeconfig is larger than %d bytes: %w", maxKubeconfig, inventory.ErrInvalid)
			}
		}
	})
	if err != nil {
		return inventory.Secret{}, wrap("fetching the kubeconfig of Talos %q", address, err)
	}
	text, err := unpack(&packed)
	if err == nil && server != "" {
		text, err = replaceServer(text, server)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", err, inventory.ErrInvalid)
		return inventory.Secret{}, wrap("fetching the kubeconfig of Talos %q", address, err)
	}
	return inventory.NewSecret(text), nil
}

// unpack returns the kubeconfig in the tar.gz archive that Talos sends.
func unpack(r io.Reader) (string, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return "", err
	}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("the archive contains no kubeconfig")
		}
		if err != nil {
			return "", err
		}
		if h.Typeflag != tar.TypeReg || !strings.HasSuffix(h.Name, "kubeconfig") {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(t, maxKubeconfig))
		return string(b), err
	}
}

// replaceServer returns the kubeconfig with server as the URL of every cluster.
func replaceServer(text, server string) (string, error) {
	var f map[string]any
	if yaml.Unmarshal([]byte(text), &f) != nil {
		return "", errors.New("the kubeconfig is not YAML") // the parser's error would quote the kubeconfig
	}
	clusters, _ := f["clusters"].([]any)
	for _, c := range clusters {
		named, _ := c.(map[string]any)
		if inner, ok := named["cluster"].(map[string]any); ok {
			inner["server"] = server
		}
	}
	b, err := yaml.Marshal(f)
	return string(b), err
}

// call connects to a node, calls f with a context that ends after timeout, and closes the connection.
func call(
	ctx context.Context, address string, talosconfig inventory.Secret,
	f func(context.Context, machine.MachineServiceClient) error,
) error {
	conf, err := credentialsOf(talosconfig)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", err, inventory.ErrInvalid)
	}
	dialer := net.Dialer{Control: func(_, at string, _ syscall.RawConn) error { return inventory.MayDial(host, at) }}

	// Dial the address as given, without gRPC's resolver and without the proxy from the environment.
	c, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(conf)), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return fmt.Errorf("%w: %w", err, inventory.ErrInvalid)
	}
	defer func() { _ = c.Close() }() // the call has ended
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return f(ctx, machine.NewMachineServiceClient(c))
}

// credentialsOf returns the TLS configuration from the current context of a talosconfig. Errors of the parser are left out of its errors,
// because they may quote the talosconfig.
func credentialsOf(talosconfig inventory.Secret) (*tls.Config, error) {
	var f struct {
		Context  string `yaml:"context"`
		Contexts map[string]struct {
			CA  string `yaml:"ca"`
			Crt string `yaml:"crt"`
			Key string `yaml:"key"`
		} `yaml:"contexts"`
	}
	bad := func(what string) (*tls.Config, error) {
		return nil, fmt.Errorf("reading the talosconfig: %s: %w", what, inventory.ErrInvalid)
	}
	if yaml.Unmarshal([]byte(talosconfig.Reveal()), &f) != nil {
		return bad("it is not YAML")
	}
	c, ok := f.Contexts[f.Context]
	if !ok {
		return bad(fmt.Sprintf("the current context %q does not exist", f.Context))
	}
	var pem [3][]byte
	for n, s := range []string{c.CA, c.Crt, c.Key} {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil || len(b) == 0 {
			return bad("the current context needs ca, crt and key in base64")
		}
		pem[n] = b
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !conf.RootCAs.AppendCertsFromPEM(pem[0]) {
		return bad("ca of the current context contains no certificate")
	}
	pair, err := tls.X509KeyPair(pem[1], pem[2])
	if err != nil {
		// Talos writes ED25519 PRIVATE KEY instead of PRIVATE KEY into the PEM header; the key is PKCS #8.
		key := bytes.ReplaceAll(pem[2], []byte("ED25519 PRIVATE KEY"), []byte("PRIVATE KEY"))
		if pair, err = tls.X509KeyPair(pem[1], key); err != nil {
			return bad("crt and key of the current context do not belong together")
		}
	}
	conf.Certificates = []tls.Certificate{pair}
	return conf, nil
}

// wrap adds to a gRPC error the operation that failed, and the error of package inventory that matches the gRPC status.
func wrap(format, address string, err error) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, address)
	s, isStatus := status.FromError(err)
	if !isStatus {
		return fmt.Errorf("%s: %w", what, err)
	}
	kind := inventory.ErrUnreachable // the node is starting, restarting or waiting for something
	switch s.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		kind = inventory.ErrRefused
	case codes.InvalidArgument, codes.Unimplemented, codes.OutOfRange:
		kind = inventory.ErrInvalid
	case codes.Unavailable:
		// A node that was not wiped has a certificate of another cluster's authority.
		for _, t := range []string{
			"unknown authority", "certificate is not valid", "doesn't contain any IP SANs",
			"certificate is valid for", "bad certificate", "unknown certificate",
		} {
			if strings.Contains(s.Message(), t) {
				kind = inventory.ErrRefused
			}
		}
	}
	return fmt.Errorf("%s: %s: %w", what, s.Message(), kind)
}
