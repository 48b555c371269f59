package api

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestS28PowerCommandsAreNamedOnly: the inventory can only name a command of the server's
// configuration.
func TestS28PowerCommandsAreNamedOnly(t *testing.T) {
	s := newSite(t, func(c *siteConfig) {
		c.CheckPowerCommand = func(name string) error {
			if name != "plug" {
				return fmt.Errorf("there is no command %q: %w", name, inventory.ErrInvalid)
			}
			return nil
		}
	})
	push := func(b *inventory.BMC) (int, []inventory.Problem) {
		m := machine("m1", mac)
		m.BMC = b
		rec := s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{m}, "replace": true})
		if rec.Code == http.StatusCreated {
			return rec.Code, nil
		}
		return rec.Code, decode[answer](t, rec, http.StatusBadRequest).Problems
	}
	code, _ := push(&inventory.BMC{Driver: inventory.DriverExec, Command: "plug"})
	require.Equal(t, http.StatusCreated, code)
	for _, bad := range []string{"nobody", "/bin/sh", "plug; reboot", ""} {
		_, ps := push(&inventory.BMC{Driver: inventory.DriverExec, Command: bad})
		require.NotEmpty(t, ps, bad)
		require.Equal(t, "bmc.command", ps[0].Field, bad)
	}
	rec := s.do(
		http.MethodPost,
		"/v1/machines",
		`{"machines":[{"name":"m1","interfaces":[{"mac":"`+mac+`"}],"bmc":{"driver":"exec","command":"plug","on":["/bin/sh"]}}],"replace":true}`,
	)
	require.Equal(t, http.StatusBadRequest, rec.Code)
}

// TestWakeOnLANOnlySwitchesOn is told when the job is made, not when it fails.
func TestWakeOnLANOnlySwitchesOn(t *testing.T) {
	s := newSite(t)
	m := machine("m1", mac)
	m.BMC = &inventory.BMC{Driver: inventory.DriverWOL}
	require.Equal(t, http.StatusCreated, s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{m}}).Code)
	for word, want := range map[string]int{"on": http.StatusAccepted, "off": http.StatusBadRequest, "cycle": http.StatusBadRequest, "status": http.StatusBadRequest} {
		require.Equal(t, want, s.do(http.MethodPost, "/v1/machines/m1/power", map[string]any{"action": word}).Code, word)
	}
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/v1/machines/m1/boot-device", map[string]any{"device": "pxe"}).Code)
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/v1/bmc/check", map[string]any{"machine": "m1"}).Code)
}

// TestPasswordsAreRotatedWhereTheDriverCan: another driver's job is refused before it begins, with what to do instead.
func TestPasswordsAreRotatedWhereTheDriverCan(t *testing.T) {
	s := newSite(t)
	for driver, want := range map[string]int{inventory.DriverRedfish: http.StatusAccepted, inventory.DriverAMT: http.StatusBadRequest} {
		m := machine("m1", mac)
		m.BMC = &inventory.BMC{Driver: driver, Host: "10.0.9.1", User: "admin"}
		pushed := s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{m}, "replace": true})
		require.Equal(t, http.StatusCreated, pushed.Code, pushed.Body)
		rec := s.do(http.MethodPost, "/v1/bmc/jobs", `{"machine":"m1","tasks":[{"rotatePassword":true}]}`)
		require.Equal(t, want, rec.Code, rec.Body)
		if want == http.StatusBadRequest {
			require.Contains(t, rec.Body.String(), "ingot machine push --replace")
		}
	}
}
