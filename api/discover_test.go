package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// S3, S7: an unknown machine that DHCP has admitted reports its hardware; every other MAC and address
// gets the answer of an unknown path. What was reported is listed, and added on acceptance.
func TestS3S7Discover(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	report := func(mac string) action.Discovery {
		return action.Discovery{Protocol: action.Protocol, MAC: mac, Facts: action.Facts{
			Serial: "SN9", Firmware: "uefi", NICs: []action.NIC{{MAC: guestMAC}, {MAC: "52:54:00:00:00:98"}},
		}}
	}
	unknown := send(t, s.agent, http.MethodPost, "/agent/v1/nothing", report(guestMAC))
	for _, mac := range []string{mac, "52:54:00:00:00:97", "nonsense"} {
		rec := send(t, s.agent, http.MethodPost, "/agent/v1/discover", report(mac))
		require.Equal(t, http.StatusNotFound, rec.Code, mac)
		require.Equal(t, unknown.Body.String(), rec.Body.String(), mac)
	}
	big := report(guestMAC)
	big.Facts.Product = strings.Repeat("x", action.MaxHello)
	require.Equal(t, http.StatusRequestEntityTooLarge, send(t, s.agent, http.MethodPost, "/agent/v1/discover", big).Code)

	rec := send(t, s.agent, http.MethodPost, "/agent/v1/discover", report(guestMAC))
	require.Equal(t, http.StatusOK, rec.Code, rec.Body)
	require.JSONEq(t, `{"known":false,"again":60}`, rec.Body.String())
	for _, body := range []any{report(guestMAC), big} { // refused before the body is read
		require.Equal(t, http.StatusTooManyRequests, send(t, s.agent, http.MethodPost, "/agent/v1/discover", body).Code)
	}
	s.Clock.Move(30 * time.Second)

	require.Contains(t, s.do(http.MethodGet, "/v1/seen", nil).Body.String(), `"serial":"SN9"`)
	accepted := s.do(http.MethodPost, "/v1/seen/"+guestMAC+"/accept", `{"name":"m9","address":"192.0.2.29","netmask":"255.255.255.0"}`)
	require.Equal(t, http.StatusCreated, accepted.Code, accepted.Body)
	m, err := s.cfg.Store.Machine(t.Context(), "m9")
	require.NoError(t, err)
	require.Len(t, m.Interfaces, 2)
	require.True(t, m.Interfaces[0].UEFI && !m.Interfaces[0].DisableNetboot)
	require.True(t, m.Interfaces[1].DisableNetboot, "a report can name the card of another machine")
	require.Equal(t, "SN9", m.Labels["serial"])

	rec = send(t, s.agent, http.MethodPost, "/agent/v1/discover", report(guestMAC))
	require.JSONEq(t, `{"known":true,"machine":"m9","again":60}`, rec.Body.String())
	_, err = s.cfg.Store.SeenMAC(t.Context(), guestMAC)
	require.ErrorIs(t, err, inventory.ErrNotFound)
}
