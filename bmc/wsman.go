package bmc

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/inventory"
)

// Namespaces of WS-Management (DSP0226) and of Intel's classes.
const (
	nsSOAP    = "http://www.w3.org/2003/05/soap-envelope"
	nsAddr    = "http://schemas.xmlsoap.org/ws/2004/08/addressing"
	nsWSMan   = "http://schemas.dmtf.org/wbem/wsman/1/wsman.xsd"
	nsEnum    = "http://schemas.xmlsoap.org/ws/2004/09/enumeration"
	nsXfer    = "http://schemas.xmlsoap.org/ws/2004/09/transfer"
	nsCIM     = "http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/"
	nsAMT     = "http://intel.com/wbem/wscim/1/amt-schema/1/"
	nsIPS     = "http://intel.com/wbem/wscim/1/ips-schema/1/"
	anonymous = nsAddr + "/role/anonymous"
)

const (
	// maxAnswer limits the size of an answer in bytes. maxPulls limits in how many parts an enumeration may be read.
	maxAnswer = 1 << 20
	maxPulls  = 64
	// requestTime limits one request.
	requestTime = 10 * time.Second
)

// wsman is a client for WS-Management over HTTP. It uses digest authentication (RFC 2617), so it never sends the
// password itself. It follows no redirects and uses no proxy.
type wsman struct {
	ports    []amtPort // ports to try, in order; once one has answered, only that port
	port     amtPort   // the port that is currently used
	user     string
	password inventory.Secret
	http     *http.Client
	asked    challenge
	count    int
	// spokeTLS is set once the BMC has presented a certificate. From then on, the port without TLS must not be used.
	spokeTLS atomic.Bool
	// mayBeClear returns an error if the port without TLS must not be tried after the port with TLS has failed; nil =
	// it may always be tried.
	mayBeClear func(context.Context) error
}

// newWSMan returns a client for AMT, which listens on one of ports. config checks AMT's certificate.
func newWSMan(ports []amtPort, user string, password inventory.Secret, config *tls.Config) *wsman {
	w := &wsman{ports: ports, port: ports[0], user: user, password: password}
	for _, s := range tls.CipherSuites() {
		config.CipherSuites = append(config.CipherSuites, s.ID)
	}
	// AMT before version 16 supports only RSA key exchange.
	config.CipherSuites = append(config.CipherSuites, tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA)
	verify := config.VerifyConnection
	config.VerifyConnection = func(s tls.ConnectionState) error {
		w.spokeTLS.Store(true)
		return verify(s)
	}
	connect := requestTime / time.Duration(len(ports)) // a closed port may drop packets, so the ports share the time limit
	t := httpclient.NewTransport(config, connect)
	t.MaxIdleConnsPerHost, t.DisableCompression = 1, true
	w.http = httpclient.New(t)
	return w
}

// challenge is a server's request for digest authentication.
type challenge struct {
	realm, nonce, opaque string
	qop                  bool
	used                 int
}

var challengeParts = regexp.MustCompile(`(\w+)\s*=\s*(?:"([^"]*)"|([^",\s]+))`)

// parseChallenge returns the first digest challenge that this client supports: MD5,
// without qop or with qop auth.
func parseChallenge(headers []string) (challenge, bool) {
	for _, h := range headers {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(h), " ")
		if !strings.EqualFold(scheme, "Digest") {
			continue
		}
		parts := map[string]string{}
		for _, m := range challengeParts.FindAllStringSubmatch(rest, -1) {
			parts[strings.ToLower(m[1])] = m[2] + m[3]
		}
		c := challenge{realm: parts["realm"], nonce: parts["nonce"], opaque: parts["opaque"]}
		for q := range strings.SplitSeq(parts["qop"], ",") {
			c.qop = c.qop || strings.TrimSpace(q) == "auth"
		}
		if a := parts["algorithm"]; c.nonce == "" || a != "" && !strings.EqualFold(a, "MD5") || parts["qop"] != "" && !c.qop {
			continue
		}
		return c, true
	}
	return challenge{}, false
}

func hash(parts ...string) string {
	sum := md5.Sum([]byte(strings.Join(parts, ":"))) // MD5, because AMT supports no other digest
	return hex.EncodeToString(sum[:])
}

// answer returns the header Authorization with which a POST to uri answers the challenge.
func (c *challenge) answer(uri, user, password string) string {
	c.used++
	ha1, ha2 := hash(user, c.realm, password), hash(http.MethodPost, uri)
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	out := fmt.Sprintf(`Digest username="%s", realm="%s", nonce="%s", uri="%s"`, quote(user), c.realm, c.nonce, uri)
	if c.opaque != "" {
		out += fmt.Sprintf(`, opaque="%s"`, c.opaque)
	}
	if !c.qop {
		return out + fmt.Sprintf(`, response="%s"`, hash(ha1, c.nonce, ha2))
	}
	nc, cnonce := fmt.Sprintf("%08x", c.used), rand.Text()[:16]
	return out + fmt.Sprintf(`, qop=auth, nc=%s, cnonce="%s", response="%s"`, nc, cnonce,
		hash(ha1, c.nonce, nc, cnonce, "auth", ha2))
}

// node is an XML element of an answer.
type node struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Nodes   []node     `xml:",any"`
}

// first returns the first element with this name, which is n itself or an element below n. It returns nil if there is
// no such element.
func (n *node) first(name string) *node {
	if n == nil || n.XMLName.Local == name {
		return n
	}

	for i := range n.Nodes {
		if found := n.Nodes[i].first(name); found != nil {
			return found
		}
	}
	return nil
}

func (n *node) text(name string) string {
	if found := n.first(name); found != nil {
		return strings.TrimSpace(found.Text)
	}
	return ""
}

// selector returns the value of the first selector with this name in n or below n, or "".
func (n *node) selector(name string) string {
	if n == nil {
		return ""
	}

	isNamed := func(a xml.Attr) bool { return a.Name.Local == "Name" && a.Value == name }
	if n.XMLName.Local == "Selector" && slices.ContainsFunc(n.Attrs, isNamed) {
		return strings.TrimSpace(n.Text)
	}

	for i := range n.Nodes {
		if v := n.Nodes[i].selector(name); v != "" {
			return v
		}
	}
	return ""
}

// element returns an XML element that has the namespace prefix r, this name and this text.
func element(name, text string) string {
	return "<r:" + name + ">" + escape(text) + "</r:" + name + ">"
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // writing to a strings.Builder never fails
	return b.String()
}

// reference returns the content of an endpoint reference to an instance. selectors alternates between the name and the
// value of each selector.
func reference(resource string, selectors ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<a:Address>%s</a:Address><a:ReferenceParameters><w:ResourceURI>%s</w:ResourceURI><w:SelectorSet>`,
		anonymous, resource)
	for i := 0; i+1 < len(selectors); i += 2 {
		fmt.Fprintf(&b, `<w:Selector Name="%s">%s</w:Selector>`, selectors[i], selectors[i+1])
	}
	return b.String() + `</w:SelectorSet></a:ReferenceParameters>`
}

// invoke calls a method of a class and returns its ReturnValue.
func (w *wsman) invoke(ctx context.Context, resource, method, input string) (int, error) {
	answer, err := w.call(ctx, resource+"/"+method, resource,
		fmt.Sprintf(`<r:%s_INPUT xmlns:r="%s">%s</r:%s_INPUT>`, method, resource, input, method))
	if err != nil {
		return 0, err
	}
	value := answer.text("ReturnValue")
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0, fmt.Errorf("%s: invalid return value %q; must be a number: %w", method, clip(value), inventory.ErrUnsupported)
	}
	return n, nil
}

// get returns the only instance of a class. resource is the URI of the class.
func (w *wsman) get(ctx context.Context, resource string) (*node, error) {
	answer, err := w.call(ctx, nsXfer+"/Get", resource, "")
	if err != nil {
		return nil, err
	}
	body := answer.first("Body")
	if body == nil || len(body.Nodes) == 0 {
		return nil, fmt.Errorf("reading %s: the answer is empty: %w", class(resource), inventory.ErrUnsupported)
	}
	return &body.Nodes[0], nil
}

// list returns all instances of a class. resource is the URI of the class.
func (w *wsman) list(ctx context.Context, resource string) ([]node, error) {
	answer, err := w.call(ctx, nsEnum+"/Enumerate", resource,
		fmt.Sprintf(`<e:Enumerate xmlns:e="%s"></e:Enumerate>`, nsEnum))
	if err != nil {
		return nil, err
	}
	var out []node
	for range maxPulls {
		at := answer.text("EnumerationContext")
		if at == "" {
			return nil, fmt.Errorf("listing %s: the answer has no enumeration context: %w", class(resource),
				inventory.ErrUnsupported)
		}
		answer, err = w.call(ctx, nsEnum+"/Pull", resource, fmt.Sprintf(
			`<e:Pull xmlns:e="%s"><e:EnumerationContext>%s</e:EnumerationContext>`+
				`<e:MaxElements>100</e:MaxElements><e:MaxCharacters>99999</e:MaxCharacters></e:Pull>`, nsEnum, escape(at)))
		if err != nil {
			return nil, err
		}
		if items := answer.first("Items"); items != nil {
			out = append(out, items.Nodes...)
		}
		if answer.first("EndOfSequence") != nil {
			return out, nil
		}
	}

	return nil, fmt.Errorf("listing %s: the list does not end after %d requests: %w", class(resource), maxPulls,
		inventory.ErrUnsupported)
}

// class returns the last part of a URI, which names a class or method in errors.
func class(resource string) string { return resource[strings.LastIndex(resource, "/")+1:] }

// call sends one request and returns the envelope of the answer. If the nonce has expired, it repeats the request with
// the new nonce.
func (w *wsman) call(ctx context.Context, act, resource, body string) (*node, error) {
	w.count++
	envelope := fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>`+
		`<s:Envelope xmlns:s="%s" xmlns:a="%s" xmlns:w="%s"><s:Header>`+
		`<a:Action s:mustUnderstand="true">%s</a:Action><a:To s:mustUnderstand="true">/wsman</a:To>`+
		`<w:ResourceURI s:mustUnderstand="true">%s</w:ResourceURI><a:MessageID s:mustUnderstand="true">%d</a:MessageID>`+
		`<a:ReplyTo><a:Address s:mustUnderstand="true">%s</a:Address></a:ReplyTo>`+
		`<w:OperationTimeout>PT60S</w:OperationTimeout></s:Header><s:Body>%s</s:Body></s:Envelope>`,
		nsSOAP, nsAddr, nsWSMan, act, resource, w.count, anonymous, body)
	if w.asked.nonce == "" {
		if err := w.findPort(ctx); err != nil {
			return nil, err
		}
	}

	for {
		proven := w.asked.used > 0
		status, headers, text, err := w.post(ctx, envelope, w.asked.answer("/wsman", w.user, w.password.Reveal()))
		if err != nil {
			return nil, err
		}

		if status == http.StatusUnauthorized {
			// If the old nonce was accepted before, it may have expired: try the new nonce. Otherwise the credentials
			// are wrong, and must not be sent again.
			if c, ok := parseChallenge(headers.Values("WWW-Authenticate")); ok && proven && c.nonce != w.asked.nonce {
				w.asked = c
				continue
			}
			w.asked = challenge{}
			return nil, fmt.Errorf("AMT refused user %q (check user and password of AMT): %w", w.user, inventory.ErrRefused)
		}

		return answer(act, status, text)
	}
}

// requestChallenge sends an empty request and stores the challenge that the answer contains.
func (w *wsman) requestChallenge(ctx context.Context) error {
	status, headers, _, err := w.post(ctx, "", "")
	if err != nil {
		return err
	}
	c, ok := parseChallenge(headers.Values("WWW-Authenticate"))
	if status != http.StatusUnauthorized || !ok {
		return fmt.Errorf("the BMC answered HTTP %d without a supported digest challenge, so it is not AMT: %w", status,
			inventory.ErrUnsupported)
	}
	w.asked = c
	return nil
}

func (w *wsman) post(ctx context.Context, body, authorization string) (
	status int, headers http.Header, text []byte, err error,
) {
	limited, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	r, err := http.NewRequestWithContext(limited, http.MethodPost, w.port.url+"/wsman", strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}

	r.Header.Set("Content-Type", "application/soap+xml;charset=UTF-8")
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}

	res, err := w.http.Do(r)
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
		err = errors.Join(err, res.Body.Close())
	}
	switch untrusted := judgeTLS(bare(err)); {
	case ctx.Err() != nil:
		return 0, nil, nil, ctx.Err()
	case untrusted != nil:
		return 0, nil, nil, untrusted
	case err != nil:
		return 0, nil, nil, requestLost("AMT", err)
	case len(text) > maxAnswer:
		return 0, nil, nil, fmt.Errorf("the answer has more than %d bytes: %w", maxAnswer, inventory.ErrUnsupported)
	}

	return res.StatusCode, res.Header, text, nil
}

// answer parses text, an answer with a SOAP envelope. If the envelope contains a SOAP fault, it returns an error.
func answer(act string, status int, text []byte) (*node, error) {
	what := class(act)
	var envelope node
	err := xml.Unmarshal(text, &envelope)
	if err == nil && envelope.first("Fault") != nil {
		return nil, fault(what, envelope.first("Fault"))
	}

	switch {
	case status == http.StatusForbidden:
		return nil, fmt.Errorf("%s: this user has no permission (HTTP 403): %w", what, inventory.ErrRefused)
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		return nil, fmt.Errorf("%s: AMT is busy (HTTP %d): %w", what, status, inventory.ErrUnreachable)
	case status != http.StatusOK:
		return nil, fmt.Errorf("%s: HTTP %d: %w", what, status, inventory.ErrUnsupported)
	case err != nil || envelope.XMLName.Local != "Envelope":
		return nil, fmt.Errorf("%s: invalid answer; must be SOAP: %w", what, inventory.ErrUnsupported)
	}

	return &envelope, nil
}

// fault returns the error that a SOAP fault of WS-Management means (DSP0226, tables 50 ff.). what is the name of the
// request.
func fault(what string, f *node) error {
	code := f.first("Subcode").text("Value")
	code = code[strings.LastIndex(code, ":")+1:]
	kind := inventory.ErrUnreachable // for InternalError, Concurrency, TimedOut and QuotaLimit: retry later

	switch code {
	case "AccessDenied":
		kind = inventory.ErrRefused
	case "DestinationUnreachable", "ActionNotSupported", "InvalidSelectors", "InvalidParameter", "SchemaValidationError",
		"UnsupportedFeature", "CannotProcessFilter", "InvalidMessageInformationHeader":
		kind = inventory.ErrUnsupported
	}
	return fmt.Errorf("%s: AMT reports %s (%s): %w", what, clip(code), clip(f.text("Text")),
		kind)
}
