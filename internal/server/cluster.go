package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdktemporal "go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/temporal/payloadcodec"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// ClusterOptions returns the options of a client for the cluster at temporal.address.
func ClusterOptions(c config.Temporal) (client.Options, error) {
	o := client.Options{HostPort: c.Address, Namespace: c.Namespace}
	var err error
	if o.ConnectionOptions.TLS, err = clusterTLS(c); err != nil {
		return o, err
	}
	o.ConnectionOptions.TLSDisabled = o.ConnectionOptions.TLS == nil
	if c.APIKeyFile != "" {
		if _, err := readAPIKey(c.APIKeyFile); err != nil {
			return o, err
		}
		o.Credentials = client.NewAPIKeyDynamicCredentials(func(context.Context) (string, error) { return readAPIKey(c.APIKeyFile) })
	}
	codec, err := payloadCodec(c)
	if codec != nil {
		o.DataConverter = converter.NewCodecDataConverter(converter.GetDefaultDataConverter(), codec)
		o.FailureConverter = sdktemporal.NewDefaultFailureConverter(sdktemporal.DefaultFailureConverterOptions{
			DataConverter: o.DataConverter, EncodeCommonAttributes: true, // also encrypt messages and stack traces
		})
	}
	return o, err
}

// payloadCodec returns the codec that encrypts payloads in the cluster at temporal.address, or nil if they are not encrypted.
func payloadCodec(c config.Temporal) (*payloadcodec.Codec, error) {
	if c.EncryptionKeyFile == "" {
		return nil, nil
	}
	codec, err := payloadcodec.Read(c.EncryptionKeyFile)
	if err != nil {
		return nil, fmt.Errorf("temporal.encryption_key_file: %w", err)
	}
	return codec, nil
}

// codecHandler returns the codec server for Temporal's UI and command, or nil if payloads are not encrypted.
func (t *temporal) codecHandler() http.Handler {
	if t.codec == nil {
		return nil
	}
	return converter.NewPayloadCodecHTTPHandler(t.codec)
}

// readAPIKey returns the API key in file. It is called for each request, so that the key can be replaced while the server runs.
func readAPIKey(file string) (string, error) {
	b, err := durablefile.ReadPrivate(file)
	if err != nil {
		return "", fmt.Errorf("temporal.api_key_file: %w", err)
	}
	key := strings.TrimSpace(string(b))
	if key == "" {
		return "", fmt.Errorf("temporal.api_key_file %q is empty: %w", file, inventory.ErrInvalid)
	}
	return key, nil
}

// clusterTLS returns the TLS configuration for the cluster, or nil for a connection without TLS, which is allowed on loopback only.
func clusterTLS(c config.Temporal) (*tls.Config, error) {
	if c.TLSCert == "" && c.TLSCA == "" && c.TLSServerName == "" {
		switch {
		case config.Loopback(c.Address):
			return nil, nil
		case c.APIKeyFile == "":
			return nil, fmt.Errorf("temporal.address %q is not a loopback address: "+
				"set temporal.tls_ca; and tls_cert and tls_key, or api_key_file, if the cluster requires them: %w", c.Address, inventory.ErrInvalid)
		}
	}

	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return nil, fmt.Errorf("temporal.address %q: %w", c.Address, err)
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cmp.Or(c.TLSServerName, host)}
	if c.TLSCert != "" {
		if _, err := clientCertificate(c); err != nil {
			return nil, err
		}
		// The files are read for each connection, so that they can be replaced while the server runs.
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return clientCertificate(c) }
	}
	if c.TLSCA != "" {
		if out.RootCAs, err = identity.Authorities(c.TLSCA); err != nil {
			return nil, fmt.Errorf("temporal.tls_ca: %w", err)
		}
	}

	return out, nil
}

// clientCertificate returns the key pair in temporal.tls_cert and temporal.tls_key.
func clientCertificate(c config.Temporal) (*tls.Certificate, error) {
	pair, err := identity.LoadKeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("temporal.tls_cert: %w", err)
	}
	return &pair, nil
}

// searchAttributes are the search attributes of all workflow executions. All have the type Keyword.
var searchAttributes = []string{workflows.AttrMachine, workflows.AttrTemplate, workflows.AttrPhase, workflows.AttrCluster}

// States of a SetupStep.
const (
	SetupThere   = "there"
	SetupMade    = "made"
	SetupMissing = "missing"
)

// A SetupStep is one item that Ingot needs in an external Temporal cluster, and the item's state.
type SetupStep struct {
	What  string `json:"what"`
	State string `json:"state"` // SetupThere, SetupMade or SetupMissing
	// Why says why the item is missing. Remedy is the command with which an administrator of the cluster creates the item.
	Why    string `json:"why,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	hidden bool   // this client is not allowed to see whether it exists
}

// SetUpCluster creates what Ingot needs in the cluster at temporal.address, and sets the retention; it changes nothing else. If check is
// set, it changes nothing at all. A missing item is a step with SetupMissing, not an error.
func SetUpCluster(ctx context.Context, c config.Temporal, check bool) ([]SetupStep, error) {
	if c.Address == "" {
		return nil, fmt.Errorf("temporal.address is not set, and the embedded server needs no setup: %w", inventory.ErrInvalid)
	}
	opts, err := ClusterOptions(c)
	if err != nil {
		return nil, err
	}
	tc, err := client.DialContext(ctx, opts)
	if err != nil {
		return nil, human.WithKind(fmt.Errorf("dialling Temporal at %s: %w", c.Address, err), inventory.ErrUnreachable)
	}
	defer tc.Close()

	s := setup{Client: tc, config: c, check: check}
	namespace, err := s.namespace(ctx)
	if err != nil {
		return nil, err
	}
	if namespace.State == SetupMissing {
		steps := []SetupStep{namespace}
		for _, a := range searchAttributes {
			step, remedy := s.attribute(a)
			steps = append(steps, missing(step, "needs the namespace", remedy))
		}
		return steps, nil
	}
	retention, err := s.retention(ctx)
	if err != nil {
		return nil, err
	}
	attributes, err := s.attributes(ctx)
	return append([]SetupStep{namespace, retention}, attributes...), err
}

type setup struct {
	client.Client
	config config.Temporal
	check  bool
}

// retentionText returns d in the form that the temporal command reads, for example 720h.
func retentionText(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return d.String()
}

func (s setup) namespace(ctx context.Context) (SetupStep, error) {
	name := s.config.Namespace
	step := SetupStep{What: "namespace " + name, State: SetupThere}
	_, err := s.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: name})
	remedy := fmt.Sprintf("temporal operator namespace create --retention %s %s", retentionText(s.config.Retention), name)
	var gone *serviceerror.NamespaceNotFound
	switch {
	case err == nil:
		return step, nil
	case refused(err):
		return missing(step, "this client is not allowed to see it", remedy), nil
	case !errors.As(err, &gone):
		return step, fmt.Errorf("looking for namespace %q: %w", name, err)
	case s.check:
		return missing(step, "it does not exist", remedy), nil
	}

	_, err = s.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: name, Description: "Ingot", WorkflowExecutionRetentionPeriod: durationpb.New(s.config.Retention),
	})
	return made(step, err, fmt.Sprintf("creating namespace %q", name), "this client is not allowed to create it", remedy)
}

// namespacePatience is how long Temporal's services may need to see a new namespace: they read the list every 2 to 10 s.
const namespacePatience = 30 * time.Second

func (s setup) retention(ctx context.Context) (SetupStep, error) {
	name, want := s.config.Namespace, s.config.Retention
	step := SetupStep{What: "retention " + retentionText(want), State: SetupThere}
	d, err := s.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: name})
	if err != nil {
		return step, fmt.Errorf("reading the retention of namespace %q: %w", name, err)
	}
	have := d.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration()
	remedy := fmt.Sprintf("temporal operator namespace update --retention %s %s", retentionText(want), name)
	switch {
	case have == want:
		return step, nil
	case s.check:
		return missing(step, "it is "+retentionText(have), remedy), nil
	}

	update := d.GetConfig()
	update.WorkflowExecutionRetentionTtl = durationpb.New(want)
	_, err = s.WorkflowService().UpdateNamespace(ctx, &workflowservice.UpdateNamespaceRequest{Namespace: name, Config: update})
	return made(step, err, fmt.Sprintf("setting the retention of namespace %q", name),
		"it is "+retentionText(have)+", and this client is not allowed to change it", remedy)
}

// attribute returns a SetupStep for a search attribute, with the state SetupThere; remedy is the command that creates the attribute.
func (s setup) attribute(name string) (step SetupStep, remedy string) {
	return SetupStep{What: "search attribute " + name + " (Keyword)", State: SetupThere},
		fmt.Sprintf("temporal operator search-attribute create --namespace %s --name %s --type Keyword", s.config.Namespace, name)
}

func (s setup) attributes(ctx context.Context) ([]SetupStep, error) {
	name := s.config.Namespace
	listed, err := s.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: name})
	unknown := new(serviceerror.NamespaceNotFound)
	for deadline := time.Now().Add(namespacePatience); errors.As(err, &unknown) && time.Now().Before(deadline); {
		time.Sleep(time.Second)
		listed, err = s.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: name})
	}
	hidden := refused(err)
	if err != nil && !hidden {
		return nil, fmt.Errorf("listing the search attributes of namespace %q: %w", name, err)
	}

	have := listed.GetCustomAttributes()
	var steps []SetupStep
	for _, a := range searchAttributes {
		step, remedy := s.attribute(a)
		switch t, ok := have[a]; {
		case hidden:
			step = missing(step, "this client is not allowed to list search attributes, so this one may already exist", remedy)
			step.hidden = true
		case ok && t != enumspb.INDEXED_VALUE_TYPE_KEYWORD:
			step = missing(step, "it has the type "+t.String(),
				fmt.Sprintf("temporal operator search-attribute remove --namespace %s --name %s && %s", name, a, remedy))
		case ok:
		case s.check:
			step = missing(step, "it does not exist", remedy)
		default:
			if step, err = s.makeAttribute(ctx, step, a, remedy); err != nil {
				return steps, err
			}
		}
		steps = append(steps, step)
	}

	return steps, nil
}

func (s setup) makeAttribute(ctx context.Context, step SetupStep, name, remedy string) (SetupStep, error) {
	_, err := s.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace: s.config.Namespace, SearchAttributes: map[string]enumspb.IndexedValueType{name: enumspb.INDEXED_VALUE_TYPE_KEYWORD},
	})
	return made(step, err, fmt.Sprintf("adding search attribute %q", name), "this client is not allowed to create it", remedy)
}

// made returns s after a request that makes its item: doing says what the request does, err is its result, and why says why the item is
// missing if the request was refused.
func made(s SetupStep, err error, doing, why, remedy string) (SetupStep, error) {
	switch {
	case refused(err):
		return missing(s, why, remedy), nil
	case err != nil:
		return s, fmt.Errorf("%s: %w", doing, err)
	}
	s.State = SetupMade
	return s, nil
}

func missing(s SetupStep, why, remedy string) SetupStep {
	s.State, s.Why, s.Remedy = SetupMissing, why, remedy
	return s
}

// refused reports whether err means that this client lacks the permission for a request.
func refused(err error) bool {
	var denied *serviceerror.PermissionDenied
	return errors.As(err, &denied)
}

// requireSetUp returns an error if a search attribute is missing in the cluster. It ignores attributes that this client may not list.
func (t *temporal) requireSetUp(ctx context.Context, c client.Client) error {
	steps, err := setup{Client: c, config: t.cfg.Temporal, check: true}.attributes(ctx)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if s.State == SetupMissing && !s.hidden {
			return human.Advise(fmt.Errorf("namespace %q: %s is missing: %s: %w", t.cfg.Temporal.Namespace, s.What, s.Why, inventory.ErrConflict),
				"ingot temporal setup")
		}
	}
	return nil
}
