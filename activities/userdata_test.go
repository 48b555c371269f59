package activities

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// byAddress is a shelf whose machine has an image that knows EC2 only.
type byAddress struct {
	shelf
	userData string
	change   func(*inventory.Machine)
}

func (b *byAddress) Machine(ctx context.Context, name string) (inventory.Machine, error) {
	m, err := b.shelf.Machine(ctx, name)
	m.UserDataByAddress = true
	if b.change != nil {
		b.change(&m)
	}
	return m, err
}

func (b *byAddress) UserData(context.Context, string) (user, vendor inventory.Secret, err error) {
	return inventory.NewSecret(b.userData), vendor, nil
}

// TestPlanWarnsOfAPhoneHomeThatDoesNotCome: only where the run relies on it, and the user data leaves no place for it.
func TestPlanWarnsOfAPhoneHomeThatDoesNotCome(t *testing.T) {
	const head = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n  - name: a\n    timeout: 60\n"
	const file = head + "    image: writefile\n    environment: {DEST_DISK: /dev/sda1, DEST_PATH: /a, FS_TYPE: ext4, UID: 0, GID: 0, MODE: 600, " +
		"DIRMODE: 755, CONTENTS: \"{{.metadata_url}}\"}\n"
	for name, c := range map[string]struct {
		template, userData string
		warned             bool
	}{
		"not a document of cloud-init":     {file, `{"ignition":{"version":"3.3.0"}}`, true},
		"byte order mark":                  {file, "\ufeff#cloud-config\n", true},
		"blank line":                       {file, "\n#Cloud-Config\n", false},
		"no user data":                     {file, "", false},
		"the phone-home is written, too":   {strings.Replace(file, "{{.metadata_url}}", "{{.metadata_url}} {{.phone_home_url}}", 1), "text", false},
		"the configdrive has one":          {head + "    image: configdrive\n", "text", false},
		"the run waits for no phone-home":  {head + "    image: noop\n", "text", false},
		"the template's own on the volume": {head + "    image: configdrive\n    environment: {VENDOR_DATA: \"#\"}\n", "text", false},
	} {
		s := &byAddress{shelf{template: c.template}, c.userData, nil}
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
		}})
		p, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
		require.NoError(t, err, name)
		if !c.warned {
			require.Empty(t, p.Warnings, name)
			continue
		}
		require.Len(t, p.Warnings, 1, name)
		require.Contains(t, p.Warnings[0], "machine m1: cloud-init 22.4.2 does not recognise userData", name)
		require.Contains(t, p.Warnings[0], "waits until its timeout", name)
		require.NotContains(t, p.Warnings[0], "ignition", "user data is secret")
	}
}

// TestSystemsThatAskByAddressPhoneHome: the configuration of cloud-init that EKS Anywhere writes names this server, and the phone-home can
// be part of what it answers. Nothing is expected of a system that cannot be answered.
func TestSystemsThatAskByAddressPhoneHome(t *testing.T) {
	const file = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n  - {name: a, image: writefile, environment: {DEST_DISK: /dev/sda1, " +
		"DEST_PATH: /a, %s}}\n"
	ec2 := func(host string) string {
		return "CONTENTS: 'datasource: {Ec2: {metadata_urls: [http://" + host + ",http://192.0.2.9:50061]}}'"
	}
	const cloudConfig = "#cloud-config\n"
	reserved := func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr("192.0.2.10") }
	for name, c := range map[string]struct {
		step, userData, last string
		machine              func(*inventory.Machine)
		want, warns          string
	}{
		"cloud-config":    {ec2("192.0.2.1:50061"), cloudConfig, "", reserved, EvidencePhoneHome, ""},
		"port 80":         {ec2("192.0.2.1"), cloudConfig, "", reserved, EvidencePhoneHome, ""},
		"no user data":    {ec2("192.0.2.1:7172"), "", "", reserved, EvidencePhoneHome, ""},
		"no cloud-init":   {ec2("192.0.2.1:7172"), `{"ignition":{}}`, "", reserved, EvidenceWeak, ""},
		"another server":  {ec2("192.0.2.12:7172"), cloudConfig, "", reserved, EvidenceWeak, ""},
		"another port":    {ec2("192.0.2.1:7000"), cloudConfig, "", reserved, EvidenceWeak, "does not answer at 192.0.2.1:7000"},
		"Hegel":           {"HEGEL_URLS: 'http://192.0.2.1:7172'", cloudConfig, "", reserved, EvidenceWeak, ""},
		"Hegel elsewhere": {"HEGEL_URLS: 'http://192.0.2.1:1'", cloudConfig, "", reserved, EvidenceWeak, "does not answer at 192.0.2.1:1:"},
		"power off":       {ec2("192.0.2.1:7172"), cloudConfig, "  - {name: off, image: poweroff}\n", reserved, EvidenceWeak, ""},
		"no address":      {ec2("192.0.2.1:7172"), cloudConfig, "", func(*inventory.Machine) {}, EvidenceWeak, ""},
		"another address": {ec2("192.0.2.1:7172"), cloudConfig, "", func(m *inventory.Machine) {
			reserved(m)
			m.Network = &inventory.SystemNetwork{Ethernets: []inventory.Ethernet{{SystemLink: inventory.SystemLink{DHCP4: true}}}}
		}, EvidenceWeak, ""},
	} {
		s := &byAddress{shelf{template: fmt.Sprintf(file, c.step) + c.last}, c.userData, c.machine}
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" }, MetadataURL: "http://192.0.2.1:7172",
			MetadataHosts: []string{"192.0.2.1:7172", "192.0.2.1:50061", "192.0.2.1:80"},
		}})
		p, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
		require.NoError(t, err)
		require.Equal(t, c.want, p.Evidence, name)
		if c.warns == "" {
			require.Empty(t, p.Warnings, name)
		} else {
			require.Contains(t, strings.Join(p.Warnings, "\n"), c.warns, name)
		}
	}
}

// notText is binary user data.
const notText = "\x1f\x8b\x00\xff\r\n"

// TestAssignmentsKeepBytes: the agent gets binary user data byte for byte, in what the store keeps and in what is signed.
func TestAssignmentsKeepBytes(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	s := &planned{userData: notText, plan: inventory.Plan{Run: "r1", Actions: []action.Action{
		{Name: "seed", Image: "configdrive", Timeout: 60},
		{Name: "file", Image: "writefile", Timeout: 60, Environment: action.Environment{"CONTENTS": "<" + inventory.RefUserData + ">"}},
	}}}
	s.plan.Digest, err = digest(s.plan.Actions)
	require.NoError(t, err)
	a := New(Config{Store: storeOf(s), Site: Site{PlanKey: private}, Clocks: Clocks{Now: time.Now}})
	for n, want := range []action.Environment{{"USER_DATA": notText}, {"CONTENTS": "<" + notText + ">"}} {
		owner := inventory.Owner{Machine: "m1", Run: "r1", Epoch: 4}
		q := AssignRequest{Owner: owner, Boot: 1, Key: action.Key{Epoch: 4, Action: n, Attempt: 1}}
		require.NoError(t, a.Assign(t.Context(), q))
		stored, err := json.Marshal(s.assigned[n].Payload)
		require.NoError(t, err)
		var got action.Assignment
		require.NoError(t, json.Unmarshal(stored, &got))
		order, err := got.Signed.Verify(public)
		require.NoError(t, err)
		for name, value := range want {
			require.Equal(t, value, got.Action.Environment[name])
			require.Equal(t, value, order.Action.Environment[name])
		}
	}
}

// TestPlanRefusesBytesThatItCannotDeliver: a command, a handler and a document are text.
func TestPlanRefusesBytesThatItCannotDeliver(t *testing.T) {
	const head = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n  - name: a\n    timeout: 60\n"
	for template, want := range map[string]string{
		head + "    image: noop\n    on-failure: [noop, \"MESSAGE={{.user_data}}\"]\n":         "actions[0] a: the action's command or a handler contains",
		head + "    image: noop\n    command: [\"{{.user_data}}\"]\n":                          "actions[0] a: the action's command or a handler contains",
		head + "    image: noop\n    environment: {A: \"{{.user_data}}\"}\n":                   "",
		head + "    image: noop\ndocuments:\n- {name: config}\n":                               "is not text",
		head + "    image: noop\ndocuments:\n- {name: config, contents: \"{{.user_data}}\"}\n": "is not text",
	} {
		for userData, want := range map[string]string{notText: want, "#!/bin/sh\n": ""} {
			s := &byAddress{shelf{template: template}, userData, nil}
			a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
				ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
			}})
			_, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
			if want == "" {
				require.NoError(t, err, template)
				continue
			}
			require.ErrorContains(t, err, want, template)
			require.ErrorIs(t, err, inventory.ErrInvalid)
			require.Nil(t, s.plan, "nothing was planned")
		}
	}
}

// TestPlanRefusesWhatUserDataMakesInvalid: user data is filled in when the agent gets the action, and what it makes invalid is
// found before the machine is switched on.
func TestPlanRefusesWhatUserDataMakesInvalid(t *testing.T) {
	plan := func(environment, userData string) error {
		s := &byAddress{
			shelf{template: "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n  - name: a\n    timeout: 60\n" + environment},
			userData, nil,
		}
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
		}})
		_, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
		return err
	}
	const inside = "    image: inject\n    environment: {FILES: '[{\"path\": \"/x\", \"contents\": \"{{.user_data}}\"}]'}\n"
	const extra = "    image: inject\n    environment: {FILES: '[{\"path\": \"/x\", \"from\": \"DATA\"}]', DATA: \"{{.user_data}}{{.nonce}}\"}\n"
	const program = "    image: cexec\n    environment: {CMD_LINE: id, DATA: \"{{.user_data}}\"}\n"
	require.NoError(t, plan(inside, "one line"))
	require.NoError(t, plan(extra, "#cloud-config\n\"x\"\n"))
	require.NoError(t, plan(program, "#cloud-config\n"))
	for environment, text := range map[string]string{inside: "#cloud-config\nhush\n", program: "\x1f\x8b\x00hush"} {
		err := plan(environment, text)
		require.ErrorIs(t, err, inventory.ErrInvalid)
		require.ErrorContains(t, err, "the action's environment is invalid with the machine's user data or vendor data in it")
		require.NotContains(t, err.Error(), "hush")
	}
}
