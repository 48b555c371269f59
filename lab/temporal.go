package lab

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v4"
	"go.yaml.in/yaml/v3"
)

// TemporalPort is the port of a TemporalCluster's frontend, on the loopback of its namespace.
const TemporalPort = 7233

// temporalMetricsPort is the port of the frontend's metrics.
const temporalMetricsPort = 7290

// TemporalName is the name in a TemporalCluster's certificate.
const TemporalName = "temporal.lab"

// TemporalAccess is how a TemporalCluster knows its clients.
type TemporalAccess string

// The kinds of access.
const (
	TemporalOpen   TemporalAccess = ""        // no TLS, everybody may do everything
	TemporalMTLS   TemporalAccess = "mtls"    // a certificate of the cluster's authority
	TemporalAPIKey TemporalAccess = "api-key" // TLS, and a signed token (JWT, RFC 7519) with the client's permissions
)

// TemporalCluster is a Temporal as a company has it: each service is a process of its own, and PostgreSQL holds the state.
// It listens on the loopback of one namespace, and ends with the lab.
type TemporalCluster struct {
	// CA, Cert and Key are files for clients; Admin and Client hold tokens. Those that the access does not need are empty.
	CA, Cert, Key string
	// Admin may do everything; Client may use the namespace "default" and create nothing.
	Admin, Client string

	lab       *Lab
	namespace Namespace
	dir       string
	tools     string
	access    TemporalAccess
	database  *Cmd
	processes map[string]*Cmd
}

func (c *TemporalCluster) config(service string) string { return filepath.Join(c.dir, service+".yaml") }

// A service's ports are grpc and, 300 below, membership. The frontend has metrics as well.
var temporalPorts = map[string]int{
	"frontend": TemporalPort, "history": 7234, "matching": 7235, "internal-frontend": 7236, "worker": 7239,
}

const postgresPort = 5432

// TemporalCluster starts a cluster in a namespace. tools is the directory of temporal-server and temporal-sql-tool.
func (l *Lab) TemporalCluster(ctx context.Context, ns Namespace, tools string, access TemporalAccess) (*TemporalCluster, error) {
	c := &TemporalCluster{
		lab: l, namespace: ns, tools: tools, access: access, dir: filepath.Join(l.dir, "temporal-cluster"), processes: map[string]*Cmd{},
	}
	if _, err := os.Stat(filepath.Join(PackageDir("postgres"), ".stamp")); err != nil {
		return nil, fmt.Errorf("finding PostgreSQL: %w; run `deploy/deps.sh e2e`", err)
	}
	for _, step := range []func(context.Context) error{c.initDatabase, c.StartDatabase, c.createSchema} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.configure(); err != nil {
		return nil, err
	}
	for _, service := range c.Services() {
		if err := c.Start(ctx, service); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Services are the cluster's processes, in the order in which they start.
func (c *TemporalCluster) Services() []string {
	all := []string{"history", "matching", "frontend", "worker"}
	if c.access == TemporalAPIKey { // the worker has no token
		all = slices.Insert(all, 2, "internal-frontend")
	}
	return all
}

// Kill ends a service with SIGKILL.
func (c *TemporalCluster) Kill(service string) {
	p := c.processes[service]
	p.Kill()
	<-p.Done()
}

// Start starts a service and waits until its port answers.
func (c *TemporalCluster) Start(ctx context.Context, service string) error {
	p, err := c.start(service, filepath.Join(c.tools, "temporal-server"), "--config-file", c.config(service),
		"--allow-no-auth", "start", "--service", service)
	if err != nil {
		return err
	}
	c.processes[service] = p
	return c.answers(ctx, service, p, temporalPorts[service])
}

// answers waits until a port of the cluster is open.
func (c *TemporalCluster) answers(ctx context.Context, what string, p *Cmd, port int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := poll(ctx, func() (bool, error) {
		select {
		case <-p.Done():
			return false, fmt.Errorf("it has ended: %w", p.Wait())
		default:
		}
		conn, err := c.lab.DialContext(ctx, c.namespace, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false, nil
		}
		return true, conn.Close()
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w; see %s", what, err, c.log(what))
	}
	return nil
}

func (c *TemporalCluster) log(process string) string { return filepath.Join(c.dir, process+".log") }

// start starts a process that ends with the lab.
func (c *TemporalCluster) start(name, program string, args ...string) (*Cmd, error) {
	log, err := os.OpenFile(c.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own descriptor
	p := c.lab.Command(c.lab.ctx, c.namespace, program, args...)
	p.Env, p.Stdout, p.Stderr = c.env(), log, log
	return p, p.Start()
}

// env lets the unpacked PostgreSQL find its libraries.
func (c *TemporalCluster) env() []string {
	return append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(PackageDir("postgres"), "usr/lib/x86_64-linux-gnu"), "LC_ALL=C", "TZ=UTC")
}

// run runs a command to its end.
func (c *TemporalCluster) run(ctx context.Context, program string, args ...string) error {
	p := c.lab.Command(ctx, c.namespace, program, args...)
	p.Env = c.env()
	var out strings.Builder
	p.Stdout, p.Stderr = &out, &out
	if err := p.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, out.String())
	}
	return nil
}

// asNobody returns the arguments of unshare for a program of PostgreSQL, which refuses to run as root: in a user namespace of its
// own, it runs as the user nobody, and its files belong to it.
func asNobody(program string, args ...string) []string {
	return append([]string{
		"--user", "--map-user=65534", "--map-group=65534", "--",
		filepath.Join(PackageDir("postgres"), "usr/lib/postgresql/15/bin", program),
	}, args...)
}

func (c *TemporalCluster) data() string { return filepath.Join(c.dir, "postgres") }

func (c *TemporalCluster) initDatabase(ctx context.Context) error {
	if err := os.MkdirAll(c.data(), 0o700); err != nil {
		return err
	}
	return c.run(
		ctx,
		"unshare",
		asNobody("initdb", "--pgdata", c.data(), "--username", "temporal", "--auth", "trust", "--encoding", "UTF8")...)
}

// StartDatabase starts PostgreSQL and waits until it accepts connections.
func (c *TemporalCluster) StartDatabase(ctx context.Context) (err error) {
	c.database, err = c.start("postgres", "unshare", asNobody("postgres", "-D", c.data(), "-c", "listen_addresses=127.0.0.1",
		"-c", fmt.Sprintf("port=%d", postgresPort), "-c", "unix_socket_directories=", "-c", "max_connections=300")...)
	if err != nil {
		return err
	}
	if err := c.answers(ctx, "postgres", c.database, postgresPort); err != nil {
		return err
	}
	// It answers before it has started or recovered, and refuses. The last line of this file then says "ready" (PM_STATUS_READY).
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = poll(ctx, func() (bool, error) {
		text, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
		return strings.HasSuffix(strings.TrimSpace(string(text)), "ready"), err
	})
	if err != nil {
		return fmt.Errorf("starting postgres: %w; see %s", err, c.log("postgres"))
	}
	return nil
}

// limitsEvery is how often the services read their limits.
const limitsEvery = 5 * time.Second

const unlimited = 10_000

func (c *TemporalCluster) limits() string { return filepath.Join(c.dir, "limits.yaml") }

// Refused returns how many requests the frontend has answered with RESOURCE_EXHAUSTED since it started.
func (c *TemporalCluster) Refused(ctx context.Context) (int, error) {
	h := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return c.lab.DialContext(ctx, c.namespace, network, addr)
	}}}
	defer h.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", temporalMetricsPort), nil)
	if err != nil {
		return 0, err
	}
	res, err := h.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	total := 0.0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, "service_errors_resource_exhausted{") {
			n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				return 0, fmt.Errorf("reading the frontend's metrics: %q: %w", line, err)
			}
			total += n
		}
	}
	return int(total), nil
}

// Limit makes the frontend answer RESOURCE_EXHAUSTED to more than rps requests per second of a namespace, until Undo.
func (c *TemporalCluster) Limit(rps int) (Undo, error) {
	if err := c.writeLimit(rps); err != nil {
		return nil, err
	}
	return c.lab.undoable("a limit of Temporal's frontend", func() error { return c.writeLimit(unlimited) })
}

func (c *TemporalCluster) writeLimit(rps int) error {
	b, err := yaml.Marshal(map[string]any{"frontend.namespaceRPS": []any{map[string]any{"value": rps}}})
	if err != nil {
		return err
	}
	return os.WriteFile(c.limits(), b, 0o644)
}

// KillDatabase ends PostgreSQL with SIGKILL.
func (c *TemporalCluster) KillDatabase() {
	c.database.Kill()
	<-c.database.Done()
}

// createSchema makes Temporal's two databases with Temporal's own tool.
func (c *TemporalCluster) createSchema(ctx context.Context) error {
	for database, schema := range map[string]string{
		"temporal": "postgresql/v12/temporal", "temporal_visibility": "postgresql/v12/visibility",
	} {
		tool := func(args ...string) error {
			return c.run(ctx, filepath.Join(c.tools, "temporal-sql-tool"), append([]string{
				"--plugin", "postgres12", "--endpoint", "127.0.0.1", "--port", fmt.Sprint(postgresPort), "--user", "temporal", "--database", database,
			}, args...)...)
		}
		for _, args := range [][]string{{"create"}, {"setup-schema", "--version", "0.0"}, {"update-schema", "--schema-name", schema}} {
			if err := tool(args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// configure writes the configuration of all services.
func (c *TemporalCluster) configure() error {
	type m = map[string]any
	store := func(database string) m {
		return m{"sql": m{
			"pluginName": "postgres12", "databaseName": database, "connectAddr": fmt.Sprintf("127.0.0.1:%d", postgresPort),
			"connectProtocol": "tcp", "user": "temporal", "password": "", "maxConns": 20, "maxIdleConns": 20, "maxConnLifetime": "1h",
		}}
	}
	services := m{}
	for service, port := range temporalPorts {
		if service != "internal-frontend" || c.access == TemporalAPIKey {
			services[service] = m{"rpc": m{"grpcPort": port, "membershipPort": port - 300, "bindOnLocalHost": true}}
		}
	}
	global := m{"membership": m{"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"}}
	config := m{
		"log": m{"stdout": true, "level": "info"},
		"persistence": m{
			"defaultStore": "default", "visibilityStore": "visibility", "numHistoryShards": 4,
			"datastores": m{"default": store("temporal"), "visibility": store("temporal_visibility")},
		},
		"global": global, "services": services,
		"clusterMetadata": m{
			"enableGlobalNamespace": false, "failoverVersionIncrement": 10, "masterClusterName": "active", "currentClusterName": "active",
			"clusterInformation": m{"active": m{
				"enabled": true, "initialFailoverVersion": 1, "rpcName": "frontend", "rpcAddress": fmt.Sprintf("127.0.0.1:%d", TemporalPort),
			}},
		},
		"dcRedirectionPolicy": m{"policy": "noop"},
		"dynamicConfigClient": m{"filepath": c.limits(), "pollInterval": limitsEvery.String()},
	}
	if err := c.writeLimit(unlimited); err != nil {
		return err
	}
	if c.access != TemporalAPIKey {
		config["publicClient"] = m{"hostPort": fmt.Sprintf("127.0.0.1:%d", TemporalPort)}
	}
	if c.access != TemporalOpen {
		if err := c.makeCertificates(); err != nil {
			return err
		}
		server := m{"certFile": c.Cert, "keyFile": c.Key, "requireClientAuth": true, "clientCaFiles": []string{c.CA}}
		client := m{"serverName": TemporalName, "rootCaFiles": []string{c.CA}}
		frontend := m{
			"certFile": c.Cert, "keyFile": c.Key, "requireClientAuth": c.access == TemporalMTLS, "clientCaFiles": []string{c.CA},
		}
		global["tls"] = m{
			"internode":    m{"server": server, "client": client},
			"frontend":     m{"server": frontend, "client": client},
			"systemWorker": m{"certFile": c.Cert, "keyFile": c.Key, "client": client},
		}
	}
	if c.access == TemporalAPIKey {
		keys, err := c.makeTokens()
		if err != nil {
			return err
		}
		global["authorization"] = m{
			"jwtKeyProvider":       m{"keySourceURIs": []string{"file://" + keys}, "refreshInterval": "1m"},
			"permissionsClaimName": "permissions", "authorizer": "default", "claimMapper": "default",
		}
	}
	for _, service := range c.Services() {
		delete(global, "metrics")
		if service == "frontend" {
			global["metrics"] = m{"prometheus": m{"listenAddress": fmt.Sprintf("127.0.0.1:%d", temporalMetricsPort)}}
		}
		b, err := yaml.Marshal(config)
		if err == nil {
			err = os.WriteFile(c.config(service), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeCertificates makes an authority and one certificate, which services and clients share.
func (c *TemporalCluster) makeCertificates() error {
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: TemporalName}, DNSNames: []string{TemporalName},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		return err
	}
	file := func(name, kind string, der []byte) (string, error) {
		path := filepath.Join(c.dir, name)
		return path, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
	}
	var errs [3]error
	c.CA, errs[0] = file("ca.pem", "CERTIFICATE", caDER)
	c.Cert, errs[1] = file("cert.pem", "CERTIFICATE", leafDER)
	c.Key, errs[2] = file("key.pem", "PRIVATE KEY", keyDER)
	return errors.Join(errs[:]...)
}

// makeTokens makes the two tokens, and returns the file of the keys by which the cluster checks them.
func (c *TemporalCluster) makeTokens() (keys string, err error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "lab", Algorithm: "RS256", Use: "sig"}}})
	if err != nil {
		return "", err
	}
	token := func(name string, permissions ...string) (string, error) {
		t := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
			"sub": name, "permissions": permissions, "exp": time.Now().Add(24 * time.Hour).Unix(),
		})
		t.Header["kid"] = "lab"
		text, err := t.SignedString(key)
		if err != nil {
			return "", err
		}
		file := filepath.Join(c.dir, name+".token")
		return file, os.WriteFile(file, []byte(text), 0o600)
	}
	keys = filepath.Join(c.dir, "keys.json")
	var errs [3]error
	c.Admin, errs[0] = token("admin", "temporal-system:admin")
	c.Client, errs[1] = token("client", "default:write")
	errs[2] = os.WriteFile(keys, set, 0o600)
	return keys, errors.Join(errs[:]...)
}
