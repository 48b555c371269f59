package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// authority signs the certificates of one of a configuration's two CAs.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pool *x509.CertPool
}

func newAuthority(p keyPair) (*authority, error) {
	der, err := pemOf(p.Crt)
	if err != nil {
		return nil, fmt.Errorf("reading a CA's certificate: %w", err)
	}
	a := &authority{pool: x509.NewCertPool()}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("reading a CA's certificate: %w", err)
	}
	a.pool.AddCert(a.cert)
	if der, err = pemOf(p.Key); err != nil {
		return nil, fmt.Errorf("reading a CA's key: %w", err)
	}
	var key any
	if key, err = x509.ParsePKCS8PrivateKey(der); err != nil {
		if key, err = x509.ParseECPrivateKey(der); err != nil {
			if key, err = x509.ParsePKCS1PrivateKey(der); err != nil {
				return nil, errors.New("reading a CA's key: it is neither PKCS #8 nor EC nor RSA")
			}
		}
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("reading a CA's key: it cannot sign")
	}
	a.key = signer
	return a, nil
}

// issue makes a key pair with a certificate. It is valid for years in both directions, because a machine without a battery has a
// wrong clock.
func (a *authority) issue(subject pkix.Name, usage x509.ExtKeyUsage, names []string, ips []net.IP) (tls.Certificate, error) {
	var key crypto.Signer
	var err error
	if _, ed := a.key.(ed25519.PrivateKey); ed {
		_, key, err = ed25519.GenerateKey(rand.Reader)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber:          serial,
		Subject:               subject,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(365 * 24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{usage},
		DNSNames:              names,
		IPAddresses:           ips,
		BasicConstraintsValid: true,
	}, a.cert, key.Public(), a.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key}, nil
}

// serverCertificate issues a certificate for this node's names and present addresses.
func (a *authority) serverCertificate(hostname string, more []string) (tls.Certificate, error) {
	names, ips := []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	if hostname != "" {
		names = append(names, hostname)
	}
	for _, c := range addresses() {
		if ip, _, err := net.ParseCIDR(c); err == nil {
			ips = append(ips, ip)
		}
	}
	for _, m := range more {
		if ip := net.ParseIP(m); ip != nil {
			ips = append(ips, ip)
		} else if m != "" {
			names = append(names, m)
		}
	}
	return a.issue(pkix.Name{CommonName: hostname}, x509.ExtKeyUsageServerAuth, names, ips)
}

// talosAPI is the part of machine.MachineService that the lab uses; see Talos' api/machine/machine.proto.
type talosAPI struct {
	machine.UnimplementedMachineServiceServer
	t *talos
}

// serveAPI answers on port 50000 with mutual TLS by the machine CA.
func (t *talos) serveAPI(ctx context.Context, stopped chan<- error) error {
	ca, err := newAuthority(t.config.Machine.CA)
	if err != nil {
		return fmt.Errorf("machine.ca: %w", err)
	}
	cert, err := ca.serverCertificate(t.config.hostname, t.config.Machine.CertSANs)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", ":50000")
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool,
	})))
	machine.RegisterMachineServiceServer(s, &talosAPI{t: t})
	go func() { stopped <- s.Serve(l) }()
	t.h.say("API on port 50000")
	return nil
}

// admin refuses clients that may only read.
func admin(ctx context.Context) error {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 || !slices.Contains(info.State.PeerCertificates[0].Subject.Organization, "os:admin") {
		return status.Error(codes.PermissionDenied, "not authorized")
	}
	return nil
}

const talosVersion = "v1.13.0"

func (a *talosAPI) metadata() *common.Metadata {
	return &common.Metadata{Hostname: a.t.config.hostname}
}

// Version implements machine.MachineService.
func (a *talosAPI) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	return &machine.VersionResponse{Messages: []*machine.Version{{
		Metadata: a.metadata(),
		Version:  &machine.VersionInfo{Tag: talosVersion, Sha: "lab", GoVersion: runtime.Version(), Os: "linux", Arch: "amd64"},
		Platform: &machine.PlatformInfo{Name: "metal", Mode: "metal"},
		Features: &machine.FeaturesInfo{Rbac: true},
	}}}, nil
}

// Hostname implements machine.MachineService.
func (a *talosAPI) Hostname(context.Context, *emptypb.Empty) (*machine.HostnameResponse, error) {
	return &machine.HostnameResponse{Messages: []*machine.Hostname{{Metadata: a.metadata(), Hostname: a.t.config.hostname}}}, nil
}

// ServiceList implements machine.MachineService: etcd is preparing until Bootstrap.
func (a *talosAPI) ServiceList(context.Context, *emptypb.Empty) (*machine.ServiceListResponse, error) {
	a.t.mu.Lock()
	up := a.t.state.Bootstrapped
	a.t.mu.Unlock()
	etcd := &machine.ServiceInfo{Id: "etcd", State: "Preparing", Health: &machine.ServiceHealth{Unknown: true}}
	if up {
		etcd.State, etcd.Health = "Running", &machine.ServiceHealth{Healthy: true}
	}
	running := &machine.ServiceHealth{Healthy: true}
	return &machine.ServiceListResponse{Messages: []*machine.ServiceList{{Metadata: a.metadata(), Services: []*machine.ServiceInfo{
		{Id: "apid", State: "Running", Health: running},
		etcd,
		{Id: "kubelet", State: "Running", Health: running},
		{Id: "machined", State: "Running", Health: running},
		{Id: "trustd", State: "Running", Health: running},
	}}}}, nil
}

// Bootstrap implements machine.MachineService: AlreadyExists from the second call on.
func (a *talosAPI) Bootstrap(ctx context.Context, req *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	if err := admin(ctx); err != nil {
		return nil, err
	}
	if req.GetRecoverEtcd() {
		return nil, status.Error(codes.Unimplemented, "no snapshot can be recovered here")
	}
	h := a.t.h
	if h.fails("bootstrap") {
		h.say("Bootstrap refused: told to fail")
		return nil, status.Error(codes.Unavailable, "told to fail")
	}
	already := false
	err := a.t.update(func(s *talosState) error {
		s.Bootstraps++
		already, s.Bootstrapped = s.Bootstrapped, true
		return nil
	})
	switch {
	case err != nil:
		return nil, status.Errorf(codes.Internal, "keeping the state: %v", err)
	case already:
		h.say("Bootstrap refused: etcd data directory is not empty")
		return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	h.say("Bootstrap")
	go a.t.runKubernetes(context.WithoutCancel(ctx))
	if h.fails("bootstrap-answer") { // the effect without the answer
		return nil, status.Error(codes.Unavailable, "told to lose the answer")
	}
	return &machine.BootstrapResponse{Messages: []*machine.Bootstrap{{Metadata: a.metadata()}}}, nil
}

// Kubeconfig implements machine.MachineService: a tar.gz with the one file.
func (a *talosAPI) Kubeconfig(_ *emptypb.Empty, stream grpc.ServerStreamingServer[common.Data]) error {
	if err := admin(stream.Context()); err != nil {
		return err
	}
	text, err := a.t.kubeconfig()
	if err != nil {
		return status.Errorf(codes.Internal, "making a kubeconfig: %v", err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	err = w.WriteHeader(&tar.Header{Name: "kubeconfig", Mode: 0o600, Size: int64(len(text)), ModTime: time.Now()})
	if err == nil {
		_, err = w.Write(text)
	}
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		return status.Errorf(codes.Internal, "packing a kubeconfig: %v", err)
	}
	return stream.Send(&common.Data{Metadata: a.metadata(), Bytes: b.Bytes()})
}

// Reboot implements machine.MachineService.
func (a *talosAPI) Reboot(ctx context.Context, _ *machine.RebootRequest) (*machine.RebootResponse, error) {
	if err := admin(ctx); err != nil {
		return nil, err
	}
	go func() { pause(context.Background(), 500*time.Millisecond); a.t.h.reboot() }() // after the answer
	return &machine.RebootResponse{Messages: []*machine.Reboot{{Metadata: a.metadata()}}}, nil
}

// Reset implements machine.MachineService: the system partitions are wiped.
func (a *talosAPI) Reset(ctx context.Context, req *machine.ResetRequest) (*machine.ResetResponse, error) {
	if err := admin(ctx); err != nil {
		return nil, err
	}
	for _, label := range []string{"META", "STATE", "EPHEMERAL"} {
		if err := a.t.disk.clear(a.t.disk.find(label)); err != nil {
			return nil, status.Errorf(codes.Internal, "wiping %s: %v", label, err)
		}
	}
	go func() {
		pause(context.Background(), 500*time.Millisecond) // after the answer
		if req.GetReboot() {
			a.t.h.reboot()
		}
		a.t.h.powerOff()
	}()
	return &machine.ResetResponse{Messages: []*machine.Reset{{Metadata: a.metadata()}}}, nil
}

// kubeconfig returns the administrator's kubeconfig with a new certificate.
func (t *talos) kubeconfig() ([]byte, error) {
	ca, err := newAuthority(t.config.Cluster.CA)
	if err != nil {
		return nil, fmt.Errorf("cluster.ca: %w", err)
	}
	cert, err := ca.issue(pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, x509.ExtKeyUsageClientAuth, nil, nil)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return nil, err
	}
	enc := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	name := t.config.Cluster.ClusterName
	if name == "" {
		name = "lab"
	}
	return json.MarshalIndent(map[string]any{ // JSON is YAML
		"apiVersion": "v1", "kind": "Config", "current-context": "admin@" + name,
		"clusters": []any{map[string]any{"name": name, "cluster": map[string]any{
			"server": t.config.Cluster.ControlPlane.Endpoint, "certificate-authority-data": enc("CERTIFICATE", ca.cert.Raw),
		}}},
		"users": []any{map[string]any{"name": "admin@" + name, "user": map[string]any{
			"client-certificate-data": enc("CERTIFICATE", cert.Certificate[0]), "client-key-data": enc("PRIVATE KEY", der),
		}}},
		"contexts": []any{map[string]any{"name": "admin@" + name, "context": map[string]any{
			"cluster": name, "user": "admin@" + name, "namespace": "default",
		}}},
	}, "", "  ")
}

// runKubernetes starts the API server. It answers /readyz a moment later, as the real one does.
func (t *talos) runKubernetes(ctx context.Context) {
	h := t.h
	h.stage("running", "starting Kubernetes")
	if h.fails("kubernetes") {
		h.say("no Kubernetes: told to fail")
		return
	}
	t.takeVIP()
	if err := t.serveKubernetes(ctx); err != nil {
		h.say("Kubernetes: %v", err)
		h.stage("failed", err.Error())
		return
	}
}

// serveKubernetes serves the Kubernetes API on the port of the cluster's endpoint.
func (t *talos) serveKubernetes(ctx context.Context) error {
	endpoint, err := url.Parse(t.config.Cluster.ControlPlane.Endpoint)
	if err != nil {
		return err
	}
	ca, err := newAuthority(t.config.Cluster.CA)
	if err != nil {
		return fmt.Errorf("cluster.ca: %w", err)
	}
	sans := append([]string{endpoint.Hostname(), "kubernetes", "kubernetes.default.svc"}, t.config.Cluster.APIServer.CertSANs...)
	cert, err := ca.serverCertificate(t.config.hostname, sans)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", ":6443")
	if err != nil {
		return err
	}
	k := newKubernetes(t)
	s := &http.Server{Handler: k, ReadHeaderTimeout: 10 * time.Second, TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: ca.pool,
	}}
	go func() { t.h.say("Kubernetes ended: %v", s.ServeTLS(l, "", "")) }()
	t.h.stage("running", "Kubernetes on port 6443")
	return nil
}
