package activities

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// byAddress is a shelf whose machine has an image that knows EC2 only.
type byAddress struct {
	shelf
	userData string
}

func (b *byAddress) Machine(ctx context.Context, name string) (inventory.Machine, error) {
	m, err := b.shelf.Machine(ctx, name)
	m.UserDataByAddress = true
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
		s := &byAddress{shelf{template: c.template}, c.userData}
		a := &Activities{Store: Store{Machines: s, Catalogue: s, Assignments: s}, Clocks: Clocks{Now: time.Now}, Site: Site{
			ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
		}}
		p, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
		require.NoError(t, err, name)
		if !c.warned {
			require.Empty(t, p.Warnings, name)
			continue
		}
		require.Len(t, p.Warnings, 1, name)
		require.Contains(t, p.Warnings[0], "machine m1: userData is not a document that cloud-init 22.4.2 takes", name)
		require.Contains(t, p.Warnings[0], "will wait", name)
		require.NotContains(t, p.Warnings[0], "ignition", "user data is secret")
	}
}
