package tracing

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	requestTime = 10 * time.Second
	maxHeaders  = 16 << 10 // bytes of HeadersFile
	maxAnswer   = 1 << 20  // bytes
)

// A refusedError means that the collector will never accept a request, or some of the spans in it.
type refusedError struct {
	status string
	spans  int64 // number of refused spans; 0 means all
}

func (r refusedError) Error() string { return "the collector answered " + r.status }

// uploader sends spans by OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp). Unlike the client of the
// OpenTelemetry library it takes nothing but the proxy from the environment, reads the headers again for each
// request, and distinguishes permanent errors.
type uploader struct {
	url, headers string
	http         *http.Client
}

func newUploader(endpoint, headersFile, caFile string) (*uploader, error) {
	transport := httpclient.NewTransport(&tls.Config{MinVersion: tls.VersionTLS12}, requestTime)
	transport.Proxy, transport.MaxIdleConns, transport.IdleConnTimeout = http.ProxyFromEnvironment, 1, time.Minute
	transport.ForceAttemptHTTP2 = true
	if caFile != "" {
		authorities, err := identity.Authorities(caFile)
		if err != nil {
			return nil, fmt.Errorf("tracing.tls_ca: %w", err)
		}
		transport.TLSClientConfig.RootCAs = authorities
	}
	out := &uploader{url: endpoint, headers: headersFile, http: httpclient.New(transport)}
	out.http.Timeout = requestTime
	u, err := url.Parse(out.url)
	if err != nil {
		return nil, fmt.Errorf("reading tracing.endpoint: %w", inventory.ErrInvalid)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces" // the default path of OTLP, for a URL without a path
		out.url = u.String()
	}
	_, err = out.readHeaders()
	return out, err
}

// Start implements otlptrace.Client.
func (*uploader) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (*uploader) Stop(context.Context) error { return nil }

// UploadTraces sends spans. A refusedError means that the collector will never accept them.
func (c *uploader) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	plain, err := proto.Marshal(&collector.ExportTraceServiceRequest{ResourceSpans: spans})
	if err != nil {
		return err
	}
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	if _, err = z.Write(plain); err == nil {
		err = z.Close()
	}
	if err != nil {
		return err
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, &body)
	if err != nil {
		return err
	}
	if req.Header, err = c.readHeaders(); err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "gzip")
	res, err := c.http.Do(req)
	if whole, ok := errors.AsType[*url.Error](err); ok {
		return whole.Err // the error without the URL, whose path may hold a token
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case res.StatusCode/100 == 2:
		return checkPartial(answer)
	case err != nil:
		return err
	case res.StatusCode == http.StatusBadRequest, res.StatusCode == http.StatusRequestEntityTooLarge,
		res.StatusCode == http.StatusUnsupportedMediaType, res.StatusCode == http.StatusUnprocessableEntity:
		return refusedError{status: res.Status}
	}
	// Any other failure may be temporary: a wrong address, a wrong token, a busy collector.
	return fmt.Errorf("the collector answered %s", res.Status)
}

// checkPartial returns a refusedError if the collector's answer reports that it rejected some spans.
func checkPartial(answer []byte) error {
	var r collector.ExportTraceServiceResponse
	if err := proto.Unmarshal(answer, &r); err != nil {
		return nil // the collector accepted the spans; only its answer is unreadable
	}
	if n := r.GetPartialSuccess().GetRejectedSpans(); n > 0 {
		return refusedError{fmt.Sprintf("that it rejected %d spans", n), n}
	}
	return nil
}

// readHeaders returns the headers in HeadersFile.
func (c *uploader) readHeaders() (http.Header, error) {
	if c.headers == "" {
		return http.Header{}, nil
	}
	text, err := durablefile.ReadPrivate(c.headers)
	if err != nil {
		return nil, fmt.Errorf("reading tracing.headers_file: %w", err)
	}
	lines := strings.TrimSpace(string(text[:min(len(text), maxHeaders)])) + "\r\n\r\n"
	h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(lines))).ReadMIMEHeader()
	if err != nil { // the error may quote a line with a token
		return nil, fmt.Errorf("tracing.headers_file %s: write one line \"Name: value\" for each header: %w", c.headers, inventory.ErrInvalid)
	}
	return http.Header(h), nil
}
