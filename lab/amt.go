package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The ports of Intel AMT: WS-Management over HTTP and over TLS.
const (
	AMTPort    = 16992
	AMTTLSPort = 16993
)

// Controller is the kind of a machine's management controller.
type Controller string

// The kinds of controller.
const (
	ControllerIPMI    Controller = "ipmi"    // Machine.BMC
	ControllerAMT     Controller = "amt"     // Machine.AMT
	ControllerAMT16   Controller = "amt16"   // Machine.AMT by TLS alone, as version 16.1 and later are sold
	ControllerRedfish Controller = "redfish" // Machine.Redfish
)

// Chassis is the hardware that a management controller switches, such as a Machine.
type Chassis interface {
	PowerState() PowerState
	PowerOn(ctx context.Context) error
	PowerOff(ctx context.Context) error
	Reset(ctx context.Context) error
	PressPower(ctx context.Context) error
	SetNextBoot(n NextBoot)
}

// AMTFaults are the faults that an AMT can simulate. The zero value has none.
type AMTFaults struct {
	OtherPassword bool          // it has another password than AMT.Password
	Refuse        bool          // power requests answer with return value 2 and do nothing
	Idle          bool          // power requests answer with success and have no effect
	Forget        bool          // boot sources are accepted and forgotten
	Lie           PowerState    // the power state that it always reports; "" means the real one
	Drop          bool          // the connection is closed without an answer
	Delay         time.Duration // added to the time of every answer
	ClientControl bool          // client control mode: boot sources are accepted and have no effect
	Blind         bool          // it has no class that reports the selected boot source
	NoEmptyOrder  bool          // it refuses to remove a boot source
	ListsAll      bool          // it reports every boot source as selected
	ShortNonce    bool          // a log-in's nonce is valid for three requests
	Graceful      bool          // it offers a graceful power-off, which never completes
}

// AMT simulates the power and boot source functions of Intel's Active Management Technology:
// WS-Management with digest authentication, as an http.Handler. A boot source is used for one
// start, and is lost when the machine is switched off.
type AMT struct {
	Address     string // in a lab; on AMTPort unless it is ControllerAMT16, and by TLS on AMTTLSPort
	User        string
	Password    string
	Fingerprint string // of the TLS key in a lab: sha256: and the digest of the SubjectPublicKeyInfo

	chassis Chassis
	machine *Machine

	mu       sync.Mutex // one request at a time, as on real hardware
	faults   AMTFaults
	realm    string
	nonces   map[string]int // number of uses of each nonce
	pulls    map[string][]string
	made     int
	settings map[string]string // AMT_BootSettingData
	source   string            // chosen by ChangeBootOrder
	single   bool              // SetBootConfigRole: used for the next start only
	calls    []string
	refused  int
}

// NewAMT returns an AMT that controls c. In a lab, Spec.Controller creates it.
func NewAMT(c Chassis, user, password string) *AMT {
	return &AMT{
		User: user, Password: password, chassis: c, realm: "Digest:" + random(16), nonces: map[string]int{}, pulls: map[string][]string{},
		settings: map[string]string{"BIOSSetup": "true", "UseIDER": "false"},
	}
}

// Pretend sets the simulated faults, until the next call.
func (a *AMT) Pretend(f AMTFaults) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = f
}

// Calls returns the authenticated requests since the last call: "Enumerate CIM_…",
// "RequestPowerStateChange 2".
func (a *AMT) Calls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.calls
	a.calls = nil
	return out
}

// Refused returns the number of log-ins that were refused since the last call.
func (a *AMT) Refused() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.refused
	a.refused = 0
	return n
}

// Settings returns the changed properties of AMT_BootSettingData.
func (a *AMT) Settings() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.settings)
}

// Unplug removes the AMT's address from the lab's network; Plug adds it again.
func (a *AMT) Unplug(ctx context.Context) error {
	return a.machine.lab.ipBatch(ctx, BMCs, "addr del "+a.Address+"/24 dev eth0")
}

// Plug adds the AMT's address to the network.
func (a *AMT) Plug(ctx context.Context) error {
	return a.machine.lab.ipBatch(ctx, BMCs, "addr replace "+a.Address+"/24 dev eth0")
}

// install serves the AMT in the lab until it is closed.
func (a *AMT) install(ctx context.Context) error {
	if err := a.Plug(ctx); err != nil {
		return err
	}
	cert, fingerprint, err := selfSigned(a.Address)
	if err != nil {
		return err
	}
	a.Fingerprint = fingerprint
	l := a.machine.lab
	for _, port := range []int{AMTPort, AMTTLSPort} {
		if port == AMTPort && a.machine.spec.Controller == ControllerAMT16 {
			continue
		}
		s, err := l.Listen(ctx, BMCs, net.JoinHostPort(a.Address, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		if port == AMTTLSPort {
			s = tls.NewListener(s, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
		}
		server := &http.Server{Handler: a, ReadHeaderTimeout: 10 * time.Second}
		if !l.onClose(server.Close) {
			return errors.Join(ErrClosed, s.Close())
		}
		go func() {
			if err := server.Serve(s); !errors.Is(err, http.ErrServerClosed) {
				l.log.Error("serving an AMT", "machine", a.machine.spec.Name, "error", err)
			}
		}()
	}
	return nil
}

// selfSigned creates a self-signed certificate like a real AMT's, and the fingerprint of its
// key.
func selfSigned(address string) (tls.Certificate, string, error) {
	fail := func(err error) (tls.Certificate, string, error) {
		return tls.Certificate{}, "", fmt.Errorf("making the certificate of %s: %w", address, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Intel AMT " + address}, IPAddresses: []net.IP{net.ParseIP(address)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return fail(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fail(err)
	}
	sum := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, "sha256:" + hex.EncodeToString(sum[:]), nil
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never returns an error, according to its documentation
	return strings.ToUpper(hex.EncodeToString(b))
}

// The names of WS-Management and of Intel's classes.
const (
	amtSOAP = "http://www.w3.org/2003/05/soap-envelope"
	amtAddr = "http://schemas.xmlsoap.org/ws/2004/08/addressing"
	amtWSM  = "http://schemas.dmtf.org/wbem/wsman/1/wsman.xsd"
	amtEnum = "http://schemas.xmlsoap.org/ws/2004/09/enumeration"
	amtXfer = "http://schemas.xmlsoap.org/ws/2004/09/transfer"
	amtCIM  = "http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/"
	amtAMT  = "http://intel.com/wbem/wscim/1/amt-schema/1/"
	amtIPS  = "http://intel.com/wbem/wscim/1/ips-schema/1/"

	amtBootConfig = "Intel(r) AMT: Boot Configuration 0"
)

// amtSources maps AMT's boot sources to those of the lab.
var amtSources = map[string]NextBoot{
	"Intel(r) AMT: Force PXE Boot":        NextNetwork,
	"Intel(r) AMT: Force Hard-drive Boot": NextDisk,
	"Intel(r) AMT: Force CD/DVD Boot":     NextDefault,
}

// amtRequest has the parts of a request that are read.
type amtRequest struct {
	Header struct {
		Action      string
		MessageID   string
		ResourceURI string
	}
	Body struct {
		Inner []byte `xml:",innerxml"`
	}
}

func (q *amtRequest) method() string {
	return q.Header.Action[strings.LastIndex(q.Header.Action, "/")+1:]
}

// ServeHTTP answers /wsman.
func (a *AMT) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.faults.Drop {
		panic(http.ErrAbortHandler) // the server closes the connection
	}
	if d := a.faults.Delay; d > 0 {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
			return
		}
	}
	if r.URL.Path != "/wsman" || r.Method != http.MethodPost {
		http.NotFound(w, r)
		return
	}
	if !a.authorized(r) {
		nonce := random(16)
		if len(a.nonces) > 256 {
			clear(a.nonces)
		}
		a.nonces[nonce] = 0
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Digest realm="%s", nonce="%s",stale="false",qop="auth"`, a.realm, nonce))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var q amtRequest
	if err == nil {
		err = xml.Unmarshal(b, &q)
	}
	if err != nil || q.Header.ResourceURI == "" {
		http.Error(w, "invalid request", http.StatusBadRequest)
		return
	}
	q.Header.Action, q.Header.ResourceURI = strings.TrimSpace(q.Header.Action), strings.TrimSpace(q.Header.ResourceURI)
	a.calls = append(a.calls, q.method()+" "+q.Header.ResourceURI[strings.LastIndex(q.Header.ResourceURI, "/")+1:])
	w.Header().Set("Content-Type", "application/soap+xml; charset=UTF-8")
	body, fault := a.answer(r.Context(), &q)
	action := q.Header.Action + "Response"
	if fault != "" {
		w.WriteHeader(http.StatusBadRequest)
		action = amtAddr + "/fault"
		body = fmt.Sprintf(
			`<a:Fault><a:Code><a:Value>a:Sender</a:Value><a:Subcode><a:Value>c:%s</a:Value></a:Subcode></a:Code>`+
				`<a:Reason><a:Text xml:lang="en-US">%s of %s</a:Text></a:Reason></a:Fault>`,
			fault,
			fault,
			q.method(),
		)
	}
	a.made++
	_, _ = fmt.Fprintf(
		w,
		`<?xml version="1.0" encoding="UTF-8"?><a:Envelope xmlns:a="%s" xmlns:b="%s" xmlns:c="%s" xmlns:g="%s">`+
			`<a:Header><b:To>%s/role/anonymous</b:To>`+
			`<b:RelatesTo>%s</b:RelatesTo><b:Action a:mustUnderstand="true">%s</b:Action>`+
			`<b:MessageID>uuid:00000000-8086-8086-8086-%012d</b:MessageID>`+
			`<c:ResourceURI>%s</c:ResourceURI></a:Header><a:Body>%s</a:Body></a:Envelope>`,
		amtSOAP,
		amtAddr,
		amtWSM,
		amtEnum,
		amtAddr,
		q.Header.MessageID,
		action,
		a.made,
		q.Header.ResourceURI,
		body,
	) // who has gone needs no answer
}

var amtParts = regexp.MustCompile(`(\w+)=(?:"([^"]*)"|([^",\s]+))`)

func md5Of(parts ...string) string {
	sum := md5.Sum([]byte(strings.Join(parts, ":")))
	return hex.EncodeToString(sum[:])
}

// authorized checks a log-in (RFC 2617). It counts the uses of each nonce and refuses a repeated
// request.
func (a *AMT) authorized(r *http.Request) bool {
	header, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Digest ")
	if !ok {
		return false
	}
	p := map[string]string{}
	for _, m := range amtParts.FindAllStringSubmatch(header, -1) {
		p[m[1]] = m[2] + m[3]
	}
	password := a.Password
	if a.faults.OtherPassword {
		password = "not-" + password
	}
	used, known := a.nonces[p["nonce"]]
	nc, err := strconv.ParseInt(p["nc"], 16, 32)
	if a.faults.ShortNonce && used >= 3 {
		delete(a.nonces, p["nonce"])
		return false
	}
	want := md5Of(md5Of(a.User, a.realm, password), p["nonce"], p["nc"], p["cnonce"], "auth", md5Of(r.Method, p["uri"]))
	if !known || err != nil || int(nc) <= used || p["uri"] != r.URL.Path || p["qop"] != "auth" || p["username"] != a.User ||
		p["response"] != want {
		a.refused++
		return false
	}
	a.nonces[p["nonce"]] = int(nc)
	return true
}

// answer carries out a request and returns the body, or the code of a fault.
func (a *AMT) answer(ctx context.Context, q *amtRequest) (body, fault string) {
	resource := q.Header.ResourceURI
	switch q.Header.Action {
	case amtEnum + "/Enumerate":
		items, ok := a.items(resource, strings.Contains(string(q.Body.Inner), "EnumerateEPR"))
		if !ok {
			return "", "DestinationUnreachable"
		}
		return "<g:EnumerateResponse>" + a.later(items) + "</g:EnumerateResponse>", ""
	case amtEnum + "/Pull":
		for at, items := range a.pulls {
			if !strings.Contains(string(q.Body.Inner), ">"+at+"<") {
				continue
			}
			delete(a.pulls, at)
			n := min(2, len(items))
			out := "<g:PullResponse>"
			end := "<g:EndOfSequence></g:EndOfSequence>"
			if n < len(items) {
				out, end = out+a.later(items[n:]), ""
			}
			return out + "<g:Items>" + strings.Join(items[:n], "") + "</g:Items>" + end + "</g:PullResponse>", ""
		}
		return "", "InvalidEnumerationContext"
	case amtXfer + "/Get":
		return a.get(resource)
	case amtXfer + "/Put":
		if resource != amtAMT+"AMT_BootSettingData" {
			return "", "DestinationUnreachable"
		}
		return a.put(q.Body.Inner)
	case amtCIM + "CIM_BootService/SetBootConfigRole":
		if !strings.Contains(string(q.Body.Inner), amtBootConfig) {
			return "", "InvalidSelectors"
		}
		a.single = value(q.Body.Inner, "Role") == "1" && !a.faults.Forget && !a.faults.ClientControl
		return returns(q, 0), ""
	case amtCIM + "CIM_BootConfigSetting/ChangeBootOrder":
		if a.faults.NoEmptyOrder && !strings.Contains(string(q.Body.Inner), "Source>") {
			return "", "InvalidParameter"
		}
		a.source = ""
		for source := range amtSources {
			if strings.Contains(string(q.Body.Inner), source) && !a.faults.Forget && !a.faults.ClientControl {
				a.source = source
			}
		}
		return returns(q, 0), ""
	case amtCIM + "CIM_PowerManagementService/RequestPowerStateChange":
		state, err := strconv.Atoi(value(q.Body.Inner, "PowerState"))
		if err != nil || !strings.Contains(string(q.Body.Inner), "ManagedSystem") {
			return "", "InvalidParameter"
		}
		a.calls[len(a.calls)-1] = "RequestPowerStateChange " + strconv.Itoa(state)
		return returns(q, a.change(ctx, state)), ""
	}
	return "", "ActionNotSupported"
}

// later stores the items of an enumeration for a later pull.
func (a *AMT) later(items []string) string {
	if len(a.pulls) > 64 {
		clear(a.pulls)
	}
	at := random(4) + "-0000-0000-0000-000000000000"
	a.pulls[at] = items
	return "<g:EnumerationContext>" + at + "</g:EnumerationContext>"
}

func returns(q *amtRequest, n int) string {
	return fmt.Sprintf(
		`<h:%s_OUTPUT xmlns:h="%s"><h:ReturnValue>%d</h:ReturnValue></h:%s_OUTPUT>`,
		q.method(),
		q.Header.ResourceURI,
		n,
		q.method(),
	)
}

// value returns the text of the first element with that name.
func value(body []byte, name string) string {
	d := xml.NewDecoder(strings.NewReader("<x>" + string(body) + "</x>"))
	d.Strict = false
	for {
		t, err := d.Token()
		if err != nil {
			return ""
		}
		if s, ok := t.(xml.StartElement); ok && s.Name.Local == name {
			var text string
			if d.DecodeElement(&text, &s) != nil {
				return ""
			}
			return strings.TrimSpace(text)
		}
	}
}

func (a *AMT) on() bool {
	if a.faults.Lie != "" {
		return a.faults.Lie == On
	}
	return a.chassis.PowerState() == On
}

// amtReference returns a reference to an instance.
func amtReference(tag, class string, selectors ...string) string {
	var b strings.Builder
	fmt.Fprintf(
		&b,
		`<%s><b:Address>%s/role/anonymous</b:Address><b:ReferenceParameters><c:ResourceURI>%s</c:ResourceURI><c:SelectorSet>`,
		tag,
		amtAddr,
		amtCIM+class,
	)
	for i := 0; i+1 < len(selectors); i += 2 {
		fmt.Fprintf(&b, `<c:Selector Name="%s">%s</c:Selector>`, selectors[i], selectors[i+1])
	}
	return b.String() + fmt.Sprintf("</c:SelectorSet></b:ReferenceParameters></%s>", tag)
}

// items returns the instances of a class, or references to them.
func (a *AMT) items(resource string, references bool) ([]string, bool) {
	class := strings.TrimPrefix(resource, amtCIM)
	wrap := func(format string, args ...any) string {
		return fmt.Sprintf(`<h:%s xmlns:h="%s">`, class, resource) + fmt.Sprintf(format, args...) + fmt.Sprintf("</h:%s>", class)
	}
	ref := func(selectors ...string) string { return amtReference("b:EndpointReference", class, selectors...) }
	switch {
	case class == "CIM_AssociatedPowerManagementService" && !references:
		state, may := 8, []int{2}
		if a.on() {
			state, may = 2, []int{8, 5, 10}
			if a.faults.Graceful {
				may = append([]int{12, 14}, may...)
			}
		}
		var b strings.Builder
		for _, m := range may {
			fmt.Fprintf(&b, "<h:AvailableRequestedPowerStates>%d</h:AvailableRequestedPowerStates>", m)
		}
		return []string{
			wrap("%s<h:PowerState>%d</h:PowerState><h:RequestedPowerState>%d</h:RequestedPowerState>", b.String(), state, state),
		}, true
	case class == "CIM_ComputerSystem" && references:
		return []string{
			ref("CreationClassName", "CIM_ComputerSystem", "Name", "Intel(r) AMT"),
			ref("CreationClassName", "CIM_ComputerSystem", "Name", "ManagedSystem"),
		}, true
	case class == "CIM_BootConfigSetting" && references:
		return []string{ref("InstanceID", amtBootConfig)}, true
	case class == "CIM_BootSourceSetting" && references:
		var out []string
		for _, source := range slices.Sorted(maps.Keys(amtSources)) {
			out = append(out, ref("InstanceID", source))
		}
		return out, true
	case class == "CIM_ElementSettingData" && !references && !a.faults.Blind:
		next := 2
		if a.single {
			next = 3
		}
		other := wrap("%s%s<h:IsCurrent>1</h:IsCurrent>", amtReference("h:ManagedElement", "CIM_ComputerSystem", "Name", "Intel(r) AMT"),
			amtReference("h:SettingData", "AMT_GeneralSettings", "InstanceID", "Intel(r) AMT: General Settings"))
		return []string{
			other,
			other,
			wrap("%s%s<h:IsNext>%d</h:IsNext>", amtReference("h:ManagedElement", "CIM_ComputerSystem", "Name", "ManagedSystem"),
				amtReference("h:SettingData", "CIM_BootConfigSetting", "InstanceID", amtBootConfig), next),
		}, true
	case class == "CIM_OrderedComponent" && !references && !a.faults.Blind:
		var out []string
		for _, source := range slices.Sorted(maps.Keys(amtSources)) {
			sequence := 0
			if source == a.source || a.faults.ListsAll {
				sequence = 1
			}
			out = append(
				out,
				wrap("<h:AssignedSequence>%d</h:AssignedSequence>%s%s", sequence,
					amtReference("h:GroupComponent", "CIM_BootConfigSetting", "InstanceID", amtBootConfig),
					amtReference("h:PartComponent", "CIM_BootSourceSetting", "InstanceID", source)),
			)
		}
		return out, true
	}
	return nil, false
}

func (a *AMT) get(resource string) (body, fault string) {
	switch resource {
	case amtIPS + "IPS_HostBasedSetupService":
		mode := 2
		if a.faults.ClientControl {
			mode = 1
		}
		return fmt.Sprintf(
			`<h:IPS_HostBasedSetupService xmlns:h="%s"><h:CurrentControlMode>%d</h:CurrentControlMode></h:IPS_HostBasedSetupService>`,
			resource,
			mode,
		), ""
	case amtAMT + "AMT_BootSettingData":
		all := map[string]string{
			"BIOSLastStatus":         "2",
			"BIOSPause":              "false",
			"BootMediaIndex":         "0",
			"ConfigurationDataReset": "false",
			"ElementName":            "Intel(r) AMT Boot Configuration Settings",
			"InstanceID":             "Intel(r) AMT:BootSettingData 0",
			"OptionsCleared":         "true",
			"OwningEntity":           "Intel(r) AMT",
			"SecureErase":            "false",
			"UseSOL":                 "false",
		}
		maps.Copy(all, a.settings)
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(all)) {
			fmt.Fprintf(&b, "<h:%s>%s</h:%s>", k, all[k], k)
		}
		return fmt.Sprintf(`<h:AMT_BootSettingData xmlns:h="%s">%s</h:AMT_BootSettingData>`, resource, b.String()), ""
	}
	return "", "DestinationUnreachable"
}

// put stores AMT_BootSettingData. The data must not contain properties that only AMT may write.
func (a *AMT) put(body []byte) (answer, fault string) {
	var data struct {
		Settings []struct {
			XMLName xml.Name
			Text    string `xml:",chardata"`
		} `xml:",any"`
	}
	d := xml.NewDecoder(strings.NewReader(string(body)))
	d.Strict = false // prefixes were declared outside the fragment
	if err := d.Decode(&data); err != nil || len(data.Settings) == 0 {
		return "", "SchemaValidationError"
	}
	for _, s := range data.Settings {
		if s.XMLName.Local == "OptionsCleared" || s.XMLName.Local == "BIOSLastStatus" {
			return "", "InvalidRepresentation"
		}
		a.settings[s.XMLName.Local] = s.Text
	}
	return a.get(amtAMT + "AMT_BootSettingData")
}

// change carries out a RequestPowerStateChange and returns its value.
func (a *AMT) change(ctx context.Context, state int) int {
	switch {
	case a.faults.Refuse:
		return 2
	case a.faults.Idle:
		return 0
	}
	start := func(how func(context.Context) error) error {
		if a.single && a.source != "" {
			a.chassis.SetNextBoot(amtSources[a.source])
		}
		a.single, a.source = false, ""
		return how(ctx)
	}
	var err error
	switch state {
	case 2:
		err = start(a.chassis.PowerOn)
	case 6, 8:
		a.single, a.source = false, ""
		err = a.chassis.PowerOff(ctx)
	case 12, 13:
		if !a.faults.Graceful {
			err = a.chassis.PressPower(ctx)
		}
	case 5, 9:
		if err = a.chassis.PowerOff(ctx); err == nil {
			err = start(a.chassis.PowerOn)
		}
	case 10:
		err = start(a.chassis.Reset)
	default:
		return 4097 // invalid state transition
	}
	if err != nil {
		return 2
	}
	return 0
}
