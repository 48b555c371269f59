package bmc

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// hostileAnswer is a Redfish service whose answer to one request of an operation is replaced.
type hostileAnswer struct {
	service  http.Handler
	at       int64 // the request whose answer is replaced, from 0
	status   int
	location string
	body     []byte
	requests atomic.Int64
}

func (h *hostileAnswer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if h.requests.Add(1)-1 != h.at {
		h.service.ServeHTTP(w, q)
		return
	}
	w.Header().Set("Location", h.location)
	w.Header().Set("X-Auth-Token", "token")
	w.WriteHeader(h.status)
	_, _ = w.Write(h.body) // the client may have closed the connection
}

// FuzzRedfishAnswers replaces one answer of a BMC. What the service says is bounded and printable in
// errors and reports, repeats no password, and causes a bounded number of requests.
func FuzzRedfishAnswers(f *testing.F) {
	for _, body := range []string{
		`{}`, `[]`, `null`, ``, `{"PowerState":"On"}`, `{"PowerState":7}`, `{"Members":[{"@odata.id":"/redfish/v1/Systems/1"}]}`,
		`{"Members":[{"@odata.id":"//192.0.2.1/redfish/v1/Systems/1"}]}`, `{"Members":[{"@odata.id":"/redfish/v1/Systems"}]}`,
		`{"error":{"message":"\u001b[2J` + canary + `","@Message.ExtendedInfo":[{"Message":"limit of sessions"}]}}`,
		`{"@odata.type":"#ComputerSystem.v1_0_0.ComputerSystem","@Redfish.Settings":{"SettingsObject":"/redfish/v1/Systems/1"},"Boot":7}`,
		`{"Members":[{"@odata.id":"/redfish/v1/Systems/1"}],"Members@odata.nextLink":"/redfish/v1/Systems?$skip=1"}`,
		`{"Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideTarget":"Pxe","BootSourceOverrideMode":"UEFI"}}`,
	} {
		for at := range uint8(12) {
			f.Add(at*3, uint16(200), "/redfish/v1/SessionService/Sessions/1", []byte(body))
		}
		f.Add(uint8(3), uint16(401), "http://192.0.2.1/redfish/", []byte(body))
		f.Add(uint8(30), uint16(200), "/redfish\x00\x10/v1/SessionService/Sessions/1", []byte(body))
	}

	f.Add(uint8('+'), uint16(201), "/redfish/"+strings.Repeat("\x93", 1000), []byte(`{}`)) // net/http repeats a malformed header

	f.Fuzz(func(t *testing.T, at uint8, status uint16, location string, body []byte) {
		// Each answer meets a BMC of its own: sessions that were left open, and refused credentials, have an
		// effect on later operations. What an answer delays is waited for briefly.
		bench := newRedfishBench(t, vlab.RedfishSupermicro)
		bench.cfg.Step, bench.cfg.Hard, bench.cfg.request, bench.cfg.logout = time.Millisecond, 2*time.Millisecond, time.Second, time.Second
		h := &hostileAnswer{
			service: bench.service, at: int64(at), status: 200 + int(status)%400, location: location, body: body,
		}
		bench.server.Config.Handler = h
		ctx := t.Context()
		var texts []string
		note := func(err error) {
			if err != nil {
				texts = append(texts, strings.ReplaceAll(err.Error(), "\n", "; ")) // errors.Join
			}
		}

		r, err := bench.Check(ctx, bench.bmc, password())
		note(err)
		texts = append(texts, r.Boot, r.Maker, r.Model, r.Firmware, r.Controller, r.SecureBoot)
		texts = append(append(texts, r.Media...), r.Odd...)
		for _, s := range r.Sensors {
			texts = append(texts, s.Name, s.Unit, s.Health)
		}
		note(bench.Set(ctx, bench.bmc, password(), "on", nil))
		warning, err := bench.SetBootDevice(ctx, bench.bmc, password(), inventory.BootDevice{Device: "pxe", EFI: true}, nil)
		note(err)
		texts = append(texts, warning)
		note(bench.SetMedia(ctx, bench.bmc, password(), "http://10.0.0.1/a.iso", nil))

		if n := h.requests.Load(); n > 500 {
			t.Errorf("%d requests", n)
		}
		for _, text := range texts {
			if len(text) > 4<<10 || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("%d characters: %q", len(text), text)
			}
			if strings.Contains(text, canary) && !strings.Contains(string(body), canary) {
				t.Errorf("the password is in %q", text)
			}
		}
	})
}

// TestRedfishNullAnswers: no answer of a BMC that is null ends the server (security S35).
func TestRedfishNullAnswers(t *testing.T) {
	for at, refused := int64(0), false; ; at++ {
		bench := newRedfishBench(t, vlab.RedfishSupermicro)
		h := &hostileAnswer{service: bench.service, at: at, status: http.StatusOK, body: []byte(" \r\n\tnull")}
		bench.server.Config.Handler = h
		_, err := bench.Check(t.Context(), bench.bmc, password())
		refused = refused || errors.Is(err, errNull)
		if h.requests.Load() <= at { // each answer was replaced once
			if !refused {
				t.Error("no answer was refused")
			}
			return
		}
	}
}
