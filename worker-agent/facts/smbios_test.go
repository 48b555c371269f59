package facts

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"unsafe"

	"github.com/ingotmetal/ingot/action"
)

// structure returns a structure of SMBIOS with its strings.
func structure(kind byte, data []byte, texts ...string) []byte {
	b := append([]byte{kind, byte(4 + len(data)), 1, 0}, data...)
	for _, s := range texts {
		b = append(append(b, s...), 0)
	}
	if len(texts) == 0 {
		b = append(b, 0)
	}
	return append(b, 0)
}

// hostInterface returns the data of a network host interface with a record of Redfish over IP.
func hostInterface(format byte, service netip.Addr, port uint16) []byte {
	record := make([]byte, 91)
	record[51] = format
	copy(record[52:68], service.AsSlice())
	binary.LittleEndian.PutUint16(record[84:], port)
	device := []byte{2, 0x6b, 0x1d, 0x07, 0x01, 0} // USB, vendor, product
	b := append([]byte{0x40, byte(len(device))}, device...)
	b = append(b, 2, 1, 3, 9, 9, 9) // two records, the first of a protocol that is not Redfish
	return append(append(b, 4, byte(len(record))), record...)
}

func TestSMBIOS(t *testing.T) {
	ipmi := structure(38, []byte{1, 0x20, 0x20, 0xff, 0xa3, 0x0c, 0, 0, 0, 0, 0, 0})
	system := structure(1, make([]byte, 23), "ACME", "Box")
	v4 := structure(42, hostInterface(1, netip.MustParseAddr("169.254.0.17"), 443))
	v6 := structure(42, hostInterface(2, netip.MustParseAddr("fe80::1"), 8443))
	end := structure(127, nil)
	join := func(parts ...[]byte) (out []byte) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	for name, x := range map[string]struct {
		tables []byte
		want   *action.InsideBMC
	}{
		"none":                    {join(system, end), nil},
		"IPMI":                    {join(system, ipmi, end), &action.InsideBMC{IPMI: "2.0"}},
		"IPMI and Redfish":        {join(ipmi, system, v4, end), &action.InsideBMC{IPMI: "2.0", Redfish: "169.254.0.17:443"}},
		"Redfish by IPv6":         {join(v6, end), &action.InsideBMC{Redfish: "[fe80::1]:8443"}},
		"after the end":           {join(end, ipmi), nil},
		"without its end":         {join(system, ipmi), &action.InsideBMC{IPMI: "2.0"}},
		"cut":                     {join(ipmi, v4[:40]), &action.InsideBMC{IPMI: "2.0"}},
		"a length that is wrong":  {join(ipmi, []byte{42, 2, 0, 0}, v4), &action.InsideBMC{IPMI: "2.0"}},
		"no service address":      {join(structure(42, hostInterface(1, netip.IPv4Unspecified(), 443)), end), nil},
		"a serial host interface": {join(structure(42, []byte{0x06, 0, 0}), end), nil},
	} {
		got := ReadSMBIOS(x.tables)
		if (got == nil) != (x.want == nil) || got != nil && *got != *x.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzSMBIOS(f *testing.F) {
	f.Add(structure(38, []byte{1, 0x20, 0x20, 0xff}))
	f.Add(structure(42, hostInterface(1, netip.MustParseAddr("169.254.0.17"), 443)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if x := ReadSMBIOS(b); x != nil && len(x.IPMI)+len(x.Redfish) > 80 {
			t.Fatalf("%+v", x)
		}
	})
}

// fakeBMC answers requests by netfn, command and data.
type fakeBMC map[string][]byte

func (f fakeBMC) request(netfn, command byte, data ...byte) ([]byte, error) {
	if b, ok := f[string(append([]byte{netfn, command}, data...))]; ok {
		return b, nil
	}
	return nil, errors.New("completion code 0xc1")
}

// The address belongs to the first network channel that has one.
func TestAskIPMI(t *testing.T) {
	bmc := fakeBMC{
		"\x06\x01":                 {0x20, 0x81, 1, 2, 0x02, 0xbf, 0xa2, 0x02, 0xf0, 0, 1},
		"\x06\x42\x01":             {1, 4}, // a network without an address
		"\x06\x42\x02":             {2, 5}, // serial
		"\x06\x42\x08":             {8, 0x84},
		"\x0c\x02\x01\x03\x00\x00": {0x11, 0, 0, 0, 0},
		"\x0c\x02\x08\x03\x00\x00": {0x11, 10, 0, 9, 17},
		"\x0c\x02\x08\x05\x00\x00": {0x11, 0x52, 0x54, 0, 1, 2, 3},
	}
	got, err := askIPMI(bmc, &action.InsideBMC{IPMI: "1.5", Redfish: "169.254.0.17:443"})
	if err != nil || *got != (action.InsideBMC{
		IPMI: "2.0", Maker: 674, Firmware: "1.02", Redfish: "169.254.0.17:443", Address: "10.0.9.17", MAC: "52:54:00:01:02:03",
	}) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = askIPMI(fakeBMC{"\x06\x01": {0x20, 0x81, 1, 2, 0x51}}, nil)
	if err != nil || *got != (action.InsideBMC{IPMI: "1.5", Firmware: "1.02"}) {
		t.Errorf("without a network: %+v, %v", got, err)
	}
	known := &action.InsideBMC{IPMI: "2.0"}
	if got, err := askIPMI(fakeBMC{}, known); err == nil || got != known {
		t.Errorf("no answer: %+v, %v", got, err)
	}
}

// The kernel takes the structures by their size and layout.
func TestIPMIStructures(t *testing.T) {
	if n := unsafe.Sizeof(ipmiRequest{}); n != ipmiSend>>16&0x3fff {
		t.Errorf("a request has %d bytes", n)
	}
	if n := unsafe.Sizeof(ipmiResponse{}); n != ipmiReceive>>16&0x3fff {
		t.Errorf("a response has %d bytes", n)
	}
}
