package cloudinit

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	mimeparts "mime/multipart"
	"net/mail"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/inventory"
)

func testMachine() inventory.Machine {
	return inventory.Machine{
		Name: "node1", SSHKeys: []string{"ssh-ed25519 AAAA a: \"b\"", "ssh-rsa BBBB c"},
		Interfaces: []inventory.Interface{
			{
				MAC:         "52:54:00:20:01:01",
				Address:     netip.MustParseAddr("10.10.20.11"),
				Netmask:     "255.255.254.0",
				Gateway:     netip.MustParseAddr("10.10.20.1"),
				Domain:      "lab.example",
				Nameservers: []netip.Addr{netip.MustParseAddr("10.10.20.1")},
			},
			{MAC: "52:54:00:20:01:02", DisableNetboot: true},
			{
				MAC:     "52:54:00:20:01:03",
				VLAN:    30,
				Address: netip.MustParseAddr("10.10.30.11"),
				Netmask: "255.255.255.0",
				Gateway: netip.MustParseAddr("10.10.30.1"),
			},
		},
	}
}

// decode reads a document as cloud-init does, as YAML.
func decode(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	return v
}

func TestMetaData(t *testing.T) {
	v := decode(t, MetaData(testMachine(), ""))
	if v["instance-id"] != "i-node1" || v["local-hostname"] != "node1.lab.example" || len(v["public-keys"].([]any)) != 2 ||
		v["public-keys"].([]any)[0] != "ssh-ed25519 AAAA a: \"b\"" {
		t.Errorf("%v", v)
	}
	long := testMachine()
	for domain, want := range map[string]int{strings.Repeat("d", 58): 64, strings.Repeat("d", 59): 5} { // with node1 and a dot
		long.Interfaces[0].Domain = domain
		if got := decode(t, MetaData(long, ""))["local-hostname"].(string); len(got) != want {
			t.Errorf("a domain of %d characters: host name %q", len(domain), got)
		}
	}
	if v := decode(t, MetaData(testMachine(), "i-2")); v["instance-id"] != "i-2" {
		t.Errorf("%v", v)
	}
}

func TestNetworkConfig(t *testing.T) {
	var v struct {
		Version   int
		Ethernets map[string]struct {
			Match     map[string]string
			SetName   string `yaml:"set-name"`
			DHCP4     bool
			Addresses []string
			Routes    []map[string]string
		}
		VLANs map[string]struct {
			ID        int
			Link      string
			Addresses []string
			Routes    []map[string]string
		}
	}
	if err := yaml.Unmarshal(NetworkConfig(testMachine()), &v); err != nil {
		t.Fatal(err)
	}
	e0, e1, e2, vlan := v.Ethernets["eth0"], v.Ethernets["eth1"], v.Ethernets["eth2"], v.VLANs["eth2.30"]
	switch {
	case v.Version != 2 || len(v.Ethernets) != 3 || len(v.VLANs) != 1:
		t.Errorf("%+v", v)
	case e0.Match["macaddress"] != "52:54:00:20:01:01" || e0.SetName != "eth0" || e0.DHCP4 || e0.Addresses[0] != "10.10.20.11/23" || e0.Routes[0]["via"] != "10.10.20.1":
		t.Errorf("eth0: %+v", e0)
	case !e1.DHCP4 || len(e1.Addresses) != 0:
		t.Errorf("eth1: %+v", e1)
	case e2.DHCP4 || len(e2.Addresses) != 0 || vlan.ID != 30 || vlan.Link != "eth2" || vlan.Addresses[0] != "10.10.30.11/24" || vlan.Routes != nil:
		t.Errorf("VLAN: %+v %+v", e2, vlan)
	}
}

const home = "http://10.10.20.2:7172/phone-home/node1/00ff"

// partsOf returns content types and contents of a multipart document, nested
// ones flattened, as Python's email.walk does.
func partsOf(t *testing.T, doc []byte) (types, contents []string) {
	t.Helper()
	msg, err := mail.ReadMessage(bytes.NewReader(doc))
	if err != nil {
		t.Fatalf("%v in\n%s", err, doc)
	}
	var walk func(contentType, encoding string, body io.Reader)
	walk = func(contentType, encoding string, body io.Reader) {
		kind, params, err := mime.ParseMediaType(contentType)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(kind, "multipart/") {
			r := mimeparts.NewReader(body, params["boundary"])
			for {
				p, err := r.NextRawPart()
				if err == io.EOF {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				walk(p.Header.Get("Content-Type"), p.Header.Get("Content-Transfer-Encoding"), p)
			}
		}
		if encoding == "base64" {
			body = base64.NewDecoder(base64.StdEncoding, body)
		}
		b, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		types, contents = append(types, kind), append(contents, string(b))
	}
	walk(msg.Header.Get("Content-Type"), "", msg.Body)
	return types, contents
}

func TestVendorData(t *testing.T) {
	m := testMachine()
	doc := VendorData(m, home)
	if !bytes.HasPrefix(doc, []byte(CloudConfig)) {
		t.Fatalf("%s", doc)
	}
	var v struct {
		PhoneHome struct {
			URL   string   `yaml:"url"`
			Post  []string `yaml:"post"`
			Tries int      `yaml:"tries"`
		} `yaml:"phone_home"`
	}
	if err := yaml.Unmarshal(
		doc,
		&v,
	); err != nil || v.PhoneHome.URL != home || strings.Join(v.PhoneHome.Post, " ") != "instance_id hostname fqdn" ||
		v.PhoneHome.Tries*3 < 5*60 { // 3 s between two tries: a server may be away for five minutes
		t.Errorf("%+v, %v", v, err)
	}
	if doc := VendorData(m, ""); len(decode(t, doc)) != 0 {
		t.Errorf("%s", doc)
	}
	own := "#!/bin/sh\necho " + strings.Repeat("grüße\n--==ingot-part==--\n", 20)
	m.VendorData = inventory.NewSecret(own)
	types, contents := partsOf(t, VendorData(m, home))
	if strings.Join(types, " ") != "text/x-shellscript text/cloud-config" || contents[0] != own || contents[1] != string(doc) {
		t.Errorf("%q\n%q", types, contents)
	}
	if string(VendorData(m, "")) != own {
		t.Error("own vendor-data alone was changed")
	}
}

func TestCombined(t *testing.T) {
	m := testMachine()
	if !bytes.Equal(Combined(m, home), VendorData(m, home)) {
		t.Error("without user-data")
	}
	m.UserData = inventory.NewSecret("#cloud-config\nhostname: mine\n")
	types, contents := partsOf(t, Combined(m, home))
	if strings.Join(types, " ") != "text/cloud-config text/cloud-config" || contents[1] != m.UserData.Reveal() ||
		!strings.Contains(contents[0], home) {
		t.Errorf("%q\n%q", types, contents)
	}
	m.VendorData = inventory.NewSecret("#include\nhttp://10.10.20.2/x\n")
	m.UserData = inventory.NewSecret(
		"Content-Type: multipart/mixed; boundary=\"B\"\nMIME-Version: 1.0\n\n--B\nContent-Type: text/cloud-config\n\na: 1\n--B\nContent-Type: text/x-shellscript\n\n#!/bin/sh\n--B--\n",
	)
	types, _ = partsOf(t, Combined(m, home))
	if strings.Join(types, " ") != "text/x-include-url text/cloud-config text/cloud-config text/x-shellscript" {
		t.Errorf("%q", types)
	}
	ignition := `{"ignition":{"version":"3.4.0"}}`
	m.UserData = inventory.NewSecret(ignition)
	if string(Combined(m, home)) != ignition {
		t.Error("user-data that is not cloud-init's was changed")
	}
}

func TestUserData(t *testing.T) {
	m := testMachine()
	if got := decode(t, UserData(m)); len(got) != 0 {
		t.Errorf("%v", got)
	}
	m.UserData = inventory.NewSecret("#!/bin/sh\n")
	if string(UserData(m)) != "#!/bin/sh\n" {
		t.Error("user-data was changed")
	}
}

// structure returns the keys and types of a JSON document, and how long its lists are.
func structure(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				v[k] = walk(x)
			}
			return v
		case []any:
			for i, x := range v {
				v[i] = walk(x)
			}
			return v
		}
		return fmt.Sprintf("%T", v)
	}
	return walk(v)
}

// instead returns other in place of a value that is not empty.
func instead(value, other string) string {
	if value == "" {
		return ""
	}
	return other
}

// S16: whatever a machine is called and holds, the documents stay well-formed, and have the keys and lists that they have with
// harmless values.
func FuzzDocuments(f *testing.F) {
	f.Add("node1", "lab.example", "#cloud-config\na: 1\n", "ssh-rsa A")
	f.Add("a\": {", "x\ny: 1", "Content-Type: x\n\n--==ingot-part==--\n", "k\u2028")
	f.Fuzz(func(t *testing.T, hostname, domain, user, key string) {
		m := testMachine()
		m.Interfaces[0].Hostname, m.Interfaces[0].Domain = hostname, domain
		m.UserData, m.VendorData, m.SSHKeys = inventory.NewSecret(user), inventory.NewSecret(user), []string{key}
		plain := testMachine()
		plain.Interfaces[0].Hostname, plain.Interfaces[0].Domain = instead(hostname, "node1"), instead(domain, "lab.example")
		plain.SSHKeys = []string{instead(key, "ssh-rsa A")}
		for _, pair := range [][2][]byte{{MetaData(m, ""), MetaData(plain, "")}, {NetworkConfig(m), NetworkConfig(plain)}} {
			if got, want := structure(t, pair[0]), structure(t, pair[1]); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s\nhas another structure than\n%s", pair[0], pair[1])
			}
		}
		VendorData(m, home)
		if user == "" || bytes.Equal(UserData(m), []byte(user)) {
			Combined(m, home)
			return
		}
		t.Fatal("user-data was changed")
	})
}
