package activities

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

const slurping = "version: \"0.1\"\nname: t\ntasks:\n- name: keep\n  worker: \"{{.device_1}}\"\n  actions:\n" +
	"  - name: read\n    image: quay.io/tinkerbell/actions/slurp:latest\n    timeout: 60\n    environment:\n      IMG_NAME: a\n      DEST_URL: "

// TestS59DisksAreSentToListedHostsOnly: neither a plan nor an order names another host, also
// when the host comes from data, from a wrapped action or from a secret.
func TestS59DisksAreSentToListedHostsOnly(t *testing.T) {
	hosts := []string{"store.example", "192.0.2.7"}
	plan := func(source string, hosts []string) (Planned, *inventory.Plan, error) {
		s := &shelf{template: source}
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			UploadHosts: hosts, ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
		}})
		p, err := a.Plan(t.Context(), PlanRequest{
			Machine: "m1", Run: "r1", Template: "t", HardwareMap: map[string]string{"to": "store.example.evil.example"},
		})
		return p, s.plan, err
	}

	for _, address := range []string{
		"http://store.example/put", "https://user:hush@store.example:8443/put?key=hush", "http://192.0.2.7/",
	} {
		p, stored, err := plan(slurping+address+"\n", hosts)
		require.NoError(t, err, address)
		require.True(t, p.Actions[0].Writes, "a disk is bound")
		require.False(t, stored.Actions[0].WritesDisk())
		_, stored, err = plan(slurping+address+"\n", nil)
		require.ErrorIs(t, err, inventory.ErrInvalid)
		require.ErrorContains(t, err, "actions[0].environment.DEST_URL: the host")
		require.ErrorContains(t, err, "images.upload_hosts")
		require.NotContains(t, err.Error(), "hush")
		require.Nil(t, stored, "nothing was planned")
	}
	for _, address := range []string{
		"http://other.example/", "http://sub.store.example/", "http://store.example.evil.example/", "http://{{.to}}/", "http://192.0.2.1/",
		"http://store.example@evil.example/", "'http://{{.nonce}}/'", "'http://store.example{{.nonce}}/'", "http://[::1]/",
	} {
		_, stored, err := plan(slurping+address+"\n", hosts)
		require.ErrorContains(t, err, "DEST_URL", address)
		require.Nil(t, stored, address)
	}
	_, _, err := plan("version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n  - name: w\n    image: image2disk\n    timeout: 9\n"+
		"    on-failure: [slurp, DEST_URL=http://store.example/, IMG_NAME=x]\n", hosts)
	require.ErrorContains(t, err, "is not allowed after a failure")
}

// TestS59OrdersNameListedHosts: what a reference is replaced with, and a list that became shorter
// since the plan was made, are checked before an order is signed.
func TestS59OrdersNameListedHosts(t *testing.T) {
	_, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	for address, allowed := range map[string]bool{
		"http://store.example/":                               true,
		"http://gone.example/":                                false,
		"http://" + inventory.RefUserData + "@store.example/": false, // becomes http://#cloud-config@store.example/
	} {
		s := &planned{plan: inventory.Plan{Run: "r1", Actions: []action.Action{{
			Name: "read", Image: action.Slurp, Timeout: 60,
			Environment: map[string]string{action.UploadURLVariable: address, action.UploadNameVariable: "x"},
		}}}}
		s.plan.Digest, err = digestPlan(s.plan)
		require.NoError(t, err)
		a := New(Config{
			Store:  storeOf(s),
			Site:   Site{PlanKey: private, ClaimKey: make([]byte, 32), UploadHosts: []string{"store.example"}},
			Clocks: Clocks{Now: time.Now},
		})
		err := a.Assign(t.Context(), AssignRequest{
			Owner: inventory.Owner{Machine: "m1", Run: "r1", Epoch: 4}, Boot: 3, Key: action.Key{Epoch: 4, Attempt: 1},
			Disk: &action.Disk{Path: "/dev/vda", Serial: "S1", Size: 1 << 30},
		})
		if allowed {
			require.NoError(t, err)
			require.False(t, s.assigned[0].Writes, "the installation on the disk stays")
			continue
		}
		require.ErrorContains(t, err, "DEST_URL", address)
		require.Empty(t, s.assigned)
	}
}
