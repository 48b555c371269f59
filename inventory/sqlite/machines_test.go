package sqlite

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// full returns a machine with every field set.
func full() inventory.Machine {
	return inventory.Machine{
		Name: "full", Labels: map[string]string{"rack": "a1"},
		Interfaces: []inventory.Interface{{
			MAC: "52:54:00:00:01:01", Address: netip.MustParseAddr("10.1.0.5"), Netmask: "255.255.255.0", Gateway: netip.MustParseAddr("10.1.0.1"),
			Hostname: "full", Domain: "example.org", Nameservers: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
			TimeServers: []netip.Addr{netip.MustParseAddr("10.1.0.2")},
			LeaseTime:   inventory.Lease(time.Hour), VLAN: 12, Arch: "x86_64", UEFI: true, Loader: "snp.efi",
		}, {MAC: "52:54:00:00:01:02", DisableDHCP: true, DisableNetboot: true}},
		Disks: []inventory.DeclaredDisk{{Device: "/dev/sda"}}, DiskSelector: &inventory.DiskSelector{Serial: "S1", MinSize: 1 << 30},
		BMC: &inventory.BMC{
			Driver: inventory.DriverRedfish, Host: "bmc.example.org", Port: 8443, User: "admin", Password: inventory.NewSecret("canary-password"),
			CipherSuite: "3", InsecureTLS: true, SystemName: "1",
		},
		Template: "image", Image: "debian-12", SSHKeys: []string{"ssh-ed25519 AAAA me"}, BootFromDisk: "ipxe-exit",
		KernelArgs: []string{"console=ttyS0"},
		UserData:   inventory.NewSecret("canary-user"), VendorData: inventory.NewSecret("canary-vendor"),
		Notes: map[string]string{"allowPXE": "true"},
	}
}

func put(t *testing.T, s *Store, replace bool, ms ...inventory.Machine) error {
	t.Helper()
	return s.Machines.PutMachines(t.Context(), ms, replace, "ann")
}

func TestMachineRoundTrip(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	m := full()
	require.NoError(t, put(t, w.Store, false, m))
	got, err := w.Machines.Machine(ctx, "full")
	require.NoError(t, err)
	want := full()
	want.UserData, want.VendorData, want.BMC.Password = inventory.Secret{}, inventory.Secret{}, inventory.Secret{}
	want.HasUserData, want.HasVendorData, want.BMC.HasPassword = true, true, true
	want.Created, want.Updated, want.Version = w.clock.Now(), w.clock.Now(), got.Version
	require.Equal(t, want, got)
	require.Equal(t, "canary-password", m.BMC.Password.Reveal(), "the caller's value is not changed")

	user, vendor, err := w.Machines.UserData(ctx, "full")
	require.NoError(t, err)
	require.Equal(t, "canary-user", user.Reveal())
	require.Equal(t, "canary-vendor", vendor.Reveal())
	password, err := w.BMCPasswords.BMCPassword(ctx, "full")
	require.NoError(t, err)
	require.Equal(t, "canary-password", password.Reveal())
	password, err = w.BMCPasswords.BMCPassword(ctx, "m1")
	require.NoError(t, err)
	require.True(t, password.IsZero())
	_, err = w.BMCPasswords.BMCPassword(ctx, "unknown")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	// A machine that was read can be stored again without losing anything.
	w.clock.Add(time.Minute)
	got.Labels["rack"] = "b2"
	require.NoError(t, put(t, w.Store, true, got))
	user, vendor, err = w.Machines.UserData(ctx, "full")
	require.NoError(t, err)
	require.Equal(t, "canary-user canary-vendor", user.Reveal()+" "+vendor.Reveal())
	got, err = w.Machines.Machine(ctx, "full")
	require.NoError(t, err)
	require.Equal(t, w.in(-time.Minute), got.Created)
	require.Equal(t, w.clock.Now(), got.Updated)
	// Without the Has fields, the secrets are removed.
	got.HasUserData = false
	require.NoError(t, put(t, w.Store, true, got))
	user, vendor, err = w.Machines.UserData(ctx, "full")
	require.NoError(t, err)
	require.True(t, user.IsZero())
	require.False(t, vendor.IsZero())

	all, err := w.Machines.Machines(ctx)
	require.NoError(t, err)
	require.Len(t, all, 2)
	byMAC, g, err := w.Machines.MachineByMAC(ctx, "52:54:00:00:01:02")
	require.NoError(t, err)
	require.Equal(t, "full", byMAC.Name)
	require.Zero(t, g)
	byAddress, _, err := w.Machines.MachineByAddress(ctx, netip.MustParseAddr("::ffff:10.1.0.5"))
	require.NoError(t, err)
	require.Equal(t, byMAC, byAddress)
	_, _, err = w.Machines.MachineByMAC(ctx, "52:54:00:00:01:99")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	ops := w.events(inventory.EventOperator)
	require.Equal(t, "ann", ops[len(ops)-1].By)
	require.Equal(t, "full", ops[len(ops)-1].Machine)
}

// S50: each part of how a BMC is reached counts, and a ciphertext opens for its own machine alone.
func TestBMCRetargetClearsPassword(t *testing.T) {
	for name, change := range map[string]func(b *inventory.BMC){
		"host":   func(b *inventory.BMC) { b.Host = "evil.example.org" },
		"port":   func(b *inventory.BMC) { b.Port = 443 },
		"driver": func(b *inventory.BMC) { b.Driver = inventory.DriverIPMI },
		"tls":    func(b *inventory.BMC) { b.InsecureTLS = !b.InsecureTLS },
		"key":    func(b *inventory.BMC) { b.Fingerprint = "sha256:00" },
		"name":   func(b *inventory.BMC) { b.Command = "plug" },
		"url":    func(b *inventory.BMC) { b.ConsumerURL = "http://evil.example.org/" },
		"user":   func(b *inventory.BMC) { b.User = "operator" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			require.NoError(t, put(t, w.Store, false, full()))
			m, err := w.Machines.Machine(t.Context(), "full")
			require.NoError(t, err)
			change(m.BMC)
			require.NoError(t, put(t, w.Store, true, m))
			p, err := w.BMCPasswords.BMCPassword(t.Context(), "full")
			require.NoError(t, err)
			require.Equal(t, name != "user", p.IsZero())
			m, err = w.Machines.Machine(t.Context(), "full")
			require.NoError(t, err)
			require.Equal(t, name == "user", m.BMC.HasPassword)
		})
	}
	// A ciphertext that was moved to another machine cannot be opened, even if that has the same BMC.
	w := newWorld(t)
	other := machine("other", 9)
	other.BMC = full().BMC
	other.BMC.Host = "second." + other.BMC.Host
	require.NoError(t, put(t, w.Store, false, full(), other))
	_, err := w.rw.ExecContext(t.Context(), `UPDATE machine SET doc = replace(doc, '"second.', '"'), (bmc_password, user_data) =
		(SELECT bmc_password, user_data FROM machine WHERE name = 'full') WHERE name = 'other'`)
	require.NoError(t, err)
	_, err = w.BMCPasswords.BMCPassword(t.Context(), "other")
	require.ErrorIs(t, err, inventory.ErrSealed)
	_, _, err = w.Machines.UserData(t.Context(), "other")
	require.ErrorIs(t, err, inventory.ErrSealed)

	// Nor one whose address was changed.
	_, err = w.rw.ExecContext(t.Context(), "UPDATE machine SET doc = replace(doc, 'bmc.example.org', 'evil.example.org')")
	require.NoError(t, err)
	_, err = w.BMCPasswords.BMCPassword(t.Context(), "full")
	require.ErrorIs(t, err, inventory.ErrSealed)
}

func TestClashesAreReportedTogether(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, put(t, w.Store, false, full()))
	a, b := machine("a", 2), machine("b", 3)
	a.Interfaces[0].MAC = "52-54-00-00-01-01" // full's, written differently
	a.Interfaces[0].Address = netip.MustParseAddr("10.1.0.5")
	a.BMC = &inventory.BMC{Driver: inventory.DriverRedfish, Host: "BMC.example.org", Port: 8443, SystemName: "1"}
	b.Interfaces[0].Hostname = "a"
	b.Interfaces = append(b.Interfaces, a.Interfaces[0], inventory.Interface{MAC: "52:54:00:00:00:03"})
	err := put(t, w.Store, false, a, b, machine("a", 9))
	require.ErrorIs(t, err, inventory.ErrConflict)
	var ps inventory.Problems
	require.ErrorAs(t, err, &ps)
	text := err.Error()
	for _, want := range []string{
		`machine "a": MAC 52:54:00:00:01:01 belongs to machine "full"`, `machine "a": address 10.1.0.5 belongs to machine "full"`,
		`machine "a": BMC bmc.example.org belongs to machine "full"`, `machine "b": host name a belongs to machine "a"`,
		`machine "b": MAC 52:54:00:00:01:01 belongs to machine "full"`, `machine "b": MAC 52:54:00:00:00:03 is given twice`,
		`machine "a" is given twice`,
	} {
		require.Contains(t, text, want)
	}
	require.Contains(t, text, "interfaces[1].mac")
	all, err := w.Machines.Machines(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2, "nothing was stored")

	// Existing names, without replace.
	err = put(t, w.Store, false, machine("c", 4), machine("m1", 1), full())
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, `"m1"`)
	require.ErrorContains(t, err, `"full"`)
	_, err = w.Machines.Machine(t.Context(), "c")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	// Two machines in a batch may swap their values.
	x, y := machine("x", 20), machine("y", 21)
	require.NoError(t, put(t, w.Store, false, x, y))
	x.Interfaces, y.Interfaces = y.Interfaces, x.Interfaces
	require.NoError(t, put(t, w.Store, true, x, y))
	// Two systems of one Redfish service are two BMCs.
	x.BMC = &inventory.BMC{Driver: inventory.DriverRedfish, Host: "10.0.0.99", SystemName: "1"}
	y.BMC = &inventory.BMC{Driver: inventory.DriverRedfish, Host: "10.0.0.99", SystemName: "2"}
	require.NoError(t, put(t, w.Store, true, x, y))
	y.BMC.SystemName, y.BMC.Port = "1", 443
	require.ErrorContains(t, put(t, w.Store, true, y), `BMC 10.0.0.99 belongs to machine "x"`)
}

func TestDeleteMachine(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, put(t, w.Store, false, full()))
	g, err := w.Grants.TakeGrant(ctx, "full", "run-1", "machine/full", false)
	require.NoError(t, err)
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: "run-1", Machine: "full", State: inventory.StateRunning}))
	require.NoError(t, w.Plans.PutPlan(ctx, inventory.Plan{Run: "run-1"}))
	err = w.Machines.DeleteMachine(ctx, "full", "ann")
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "run-1")
	require.NoError(t, w.Grants.EndGrant(ctx, g.Owner))
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: "run-1", Machine: "full", State: inventory.StateFailed}))
	_, err = w.Grants.ArmByHand(ctx, "full", "ann", w.in(time.Hour))
	require.NoError(t, err)
	require.NoError(t, w.Machines.DeleteMachine(ctx, "full", "ann"))
	require.ErrorIs(t, w.Machines.DeleteMachine(ctx, "full", "ann"), inventory.ErrNotFound)
	_, _, err = w.Machines.MachineByMAC(ctx, "52:54:00:00:01:01")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Plans.Plan(ctx, "run-1")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	grants, err := w.Grants.Grants(ctx)
	require.NoError(t, err)
	require.Empty(t, grants, "an operator's grant ends with the machine")
	_, err = w.Workflows.Workflow(ctx, "run-1")
	require.NoError(t, err, "records stay")
	require.NoError(t, put(t, w.Store, false, full()), "its MAC is free again")
}

// S24: the database without the keys reveals no secret.
func TestSecretsAreEncryptedAtRest(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, put(t, w.Store, false, full()))
	o := w.armed()
	_, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	secret := action.Action{Name: "write", Image: "writefile", Environment: map[string]string{"CONTENTS": "canary-environment"}, Timeout: 1}
	require.NoError(t, w.Plans.PutPlan(ctx, inventory.Plan{Run: "run-1", Digest: "d", Actions: []action.Action{secret}}))
	a := assignment(o, 0, 1)
	a.Payload.Action = secret
	require.NoError(t, w.Assignments.Assign(ctx, a))
	got, err := w.Assignments.NextAssignment(ctx, o)
	require.NoError(t, err)
	require.Equal(t, a.Payload, got.Payload)
	p, err := w.Plans.Plan(ctx, "run-1")
	require.NoError(t, err)
	require.Equal(t, "canary-environment", p.Actions[0].Environment["CONTENTS"])

	look := func() (all string) {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			b, err := os.ReadFile(w.path + suffix)
			if os.IsNotExist(err) {
				continue
			}
			require.NoError(t, err)
			require.Equal(t, "-rw-------", modeOf(t, w.path+suffix), "S24: %s", suffix)
			all += string(b)
		}
		return all
	}
	text := look()
	require.Contains(t, text, "bmc.example.org", "the machine is there")
	require.NotContains(t, text, "canary-")
	to := w.path + ".copy"
	require.NoError(t, w.Backup(ctx, to))
	require.NoError(t, w.Close())
	require.NotContains(t, look(), "canary-")
	b, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Contains(t, string(b), "bmc.example.org")
	require.NotContains(t, string(b), "canary-")
	require.Equal(t, "-rw-------", modeOf(t, to), "S24: the copy")
}

func modeOf(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Mode().String()
}

func TestKeys(t *testing.T) {
	right := keyring.New()
	var none *keyring.Ring
	for name, keys := range map[string]Sealer{
		"no sealer": nil, "no ring": none, "wrong": keyring.New(),
		"some": right.Only(keyring.UserData),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.keys = keyring.New()
			if name == "some" {
				w.keys = right
			}
			// The database of newWorld has check values of other keys.
			require.NoError(t, w.Close())
			require.NoError(t, os.Remove(w.path))
			w.Store = nil
			w.reopen(w.keys)
			ctx := t.Context()
			require.NoError(t, put(t, w.Store, false, full(), machine("m1", 1)))
			require.NoError(t, w.Plans.PutPlan(ctx, inventory.Plan{Run: "run-0"}))
			require.NoError(t, w.Keys.KeyCheck(ctx))
			w.reopen(keys)

			// Everything that is not secret works.
			require.ErrorIs(t, w.Keys.KeyCheck(ctx), inventory.ErrSealed)
			m, _, err := w.Machines.MachineByMAC(ctx, "52:54:00:00:01:01")
			require.NoError(t, err)
			require.True(t, m.BMC.HasPassword)
			m.Labels = map[string]string{"rack": "c3"}
			require.NoError(t, put(t, w.Store, true, m))
			o := w.armed()
			require.NoError(t, w.Grants.CloseNetboot(ctx, o))

			// Secrets are refused, and never written with such keys.
			_, err = w.BMCPasswords.BMCPassword(ctx, "full")
			require.ErrorIs(t, err, inventory.ErrSealed)
			_, err = w.Plans.Plan(ctx, "run-0")
			require.ErrorIs(t, err, inventory.ErrSealed)
			require.ErrorIs(t, w.Plans.PutPlan(ctx, inventory.Plan{Run: "run-1"}), inventory.ErrSealed)
			require.ErrorIs(t, w.Assignments.Assign(ctx, assignment(o, 0, 1)), inventory.ErrSealed)
			m.BMC.Password, m.Version = inventory.NewSecret("new"), 0
			require.ErrorIs(t, put(t, w.Store, true, m), inventory.ErrSealed)
			lost, err := w.Keys.SecretsUnreadable(ctx)
			require.NoError(t, err)
			_, _, err = w.Machines.UserData(ctx, "full")
			if name == "some" {
				require.NoError(t, err)
				require.Equal(t, []string{"full: bmc.password"}, lost)
			} else {
				require.ErrorIs(t, err, inventory.ErrSealed)
				require.Equal(t, []string{"full: userData", "full: vendorData", "full: bmc.password"}, lost)
			}

			// With the right keys, everything is readable.
			w.reopen(w.keys)
			require.NoError(t, w.Keys.KeyCheck(ctx))
			p, err := w.BMCPasswords.BMCPassword(ctx, "full")
			require.NoError(t, err)
			require.Equal(t, "canary-password", p.Reveal())
			lost, err = w.Keys.SecretsUnreadable(ctx)
			require.NoError(t, err)
			require.Empty(t, lost)
		})
	}
}

func TestResetSecrets(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, put(t, w.Store, false, full()))
	all := []string{"full: userData", "full: vendorData", "full: bmc.password"}

	// Without keys, no secret is removed.
	for _, keys := range []Sealer{nil, w.keys.Only(), w.keys.Only(keyring.BMC)} {
		w.reopen(keys)
		_, err := w.Keys.ResetSecrets(ctx, "ann")
		require.ErrorIs(t, err, inventory.ErrSealed)
	}
	w.reopen(w.keys)
	lost, err := w.Keys.ResetSecrets(ctx, "ann")
	require.NoError(t, err)
	require.Empty(t, lost, "nothing is lost")

	// With new keys, secrets sealed with the old keys are removed, and new ones can be entered.
	w.reopen(keyring.New())
	lost, err = w.Keys.ResetSecrets(ctx, "ann")
	require.NoError(t, err)
	require.Equal(t, all, lost)
	require.NoError(t, w.Keys.KeyCheck(ctx))
	m, err := w.Machines.Machine(ctx, "full")
	require.NoError(t, err)
	require.False(t, m.HasUserData || m.HasVendorData || m.BMC.HasPassword)
	require.NoError(t, put(t, w.Store, true, full()))
	p, err := w.BMCPasswords.BMCPassword(ctx, "full")
	require.NoError(t, err)
	require.Equal(t, "canary-password", p.Reveal())
}

func TestDisksWritten(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("run-1")
	require.ErrorIs(t, w.Disks.DiskWritten(ctx, o, action.Disk{Path: "/dev/sda"}), inventory.ErrInvalid)
	require.NoError(t, w.Disks.DiskWritten(ctx, o, action.Disk{Path: "/dev/sda", Serial: "S1", WWN: "0x5"}))
	o = w.take("run-2")
	require.NoError(t, w.Disks.DiskWritten(ctx, o, action.Disk{Path: "/dev/sda", Serial: "S1"}))
	got, err := w.Disks.DisksWritten(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"serial:S1": "run-2", "wwn:0x5": "run-1"}, got)
}

func TestSeenIsBounded(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for batch := range 5 {
		var seen []inventory.Seen
		for i := range 500 {
			n := batch*500 + i
			at := w.in(time.Duration(n) * time.Second)
			seen = append(seen, inventory.Seen{
				MAC: fmt.Sprintf("52:54:00:01:%02x:%02x", n>>8, n&255), First: at, Last: at, Count: 2,
				Class: strings.Repeat("x", 5000),
			})
		}
		require.NoError(t, w.Seen.PutSeen(ctx, seen))
	}
	got, err := w.Seen.SeenUnknown(ctx)
	require.NoError(t, err)
	require.Len(t, got, maxSeen)
	require.Equal(t, w.in(2499*time.Second), got[0].Last)
	require.LessOrEqual(t, len(got[0].Class), 256)

	// Counts are added; a stored machine's MAC is not unknown, and a new machine's is
	// removed.
	newest := got[0]
	require.NoError(t, w.Seen.PutSeen(ctx, []inventory.Seen{
		{MAC: newest.MAC, First: w.clock.Now(), Last: newest.Last.Add(time.Hour), Count: 3},
		{MAC: "52:54:00:00:00:01", Last: newest.Last, Count: 1},
	}))
	got, err = w.Seen.SeenUnknown(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(5), got[0].Count)
	require.Equal(t, newest.First, got[0].First)

	// What an unknown machine reports is kept with it; a stored machine's report is not.
	facts := action.Facts{Serial: "SN1", Disks: []action.Disk{{Path: "/dev/sda", Signatures: []string{"LVM"}}}}
	name, err := w.Seen.PutDiscovered(ctx, newest.MAC, facts, w.in(time.Minute))
	require.NoError(t, err)
	require.Empty(t, name)
	seen, err := w.Seen.SeenMAC(ctx, newest.MAC)
	require.NoError(t, err)
	require.Equal(t, &facts, seen.Facts)
	require.Equal(t, w.in(time.Minute), seen.Reported)
	require.Equal(t, int64(5), seen.Count)
	name, err = w.Seen.PutDiscovered(ctx, "52:54:00:00:00:01", facts, w.in(time.Minute))
	require.NoError(t, err)
	require.NotEmpty(t, name)
	_, err = w.Seen.SeenMAC(ctx, "52:54:00:00:00:01")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	m := machine("new", 7)
	m.Interfaces[0].MAC = newest.MAC
	require.NoError(t, put(t, w.Store, false, m))
	got, err = w.Seen.SeenUnknown(ctx)
	require.NoError(t, err)
	require.Len(t, got, maxSeen-1)
}

func TestTemplatesAndImages(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for _, src := range []string{"version: 1", "version: 2"} {
		require.NoError(t, w.Templates.PutTemplate(ctx, inventory.Template{Name: "t", Source: src}, "ann"))
	}
	tpl, err := w.Templates.Template(ctx, "t")
	require.NoError(t, err)
	require.Equal(t, "version: 2", tpl.Source)
	tpls, err := w.Templates.Templates(ctx)
	require.NoError(t, err)
	require.Equal(t, []inventory.Template{tpl}, tpls)
	require.NoError(t, w.Templates.DeleteTemplate(ctx, "t", "ann"))
	require.ErrorIs(t, w.Templates.DeleteTemplate(ctx, "t", "ann"), inventory.ErrNotFound)
	_, err = w.Templates.Template(ctx, "t")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	img := inventory.Image{Name: "i", File: "i.raw", Size: 5, SHA256: strings.Repeat("ab", 32), FirstSeen: true, Format: "raw", DiskSize: 9}
	require.NoError(t, w.Images.PutImage(ctx, img, "ann"))
	created := w.clock.Now()
	w.clock.Add(time.Hour)
	img.Size = 6
	require.NoError(t, w.Images.PutImage(ctx, img, "ann"))
	got, err := w.Images.Image(ctx, "i")
	require.NoError(t, err)
	img.Created = created
	require.Equal(t, img, got)
	imgs, err := w.Images.Images(ctx)
	require.NoError(t, err)
	require.Equal(t, []inventory.Image{img}, imgs)
	require.NoError(t, w.Images.DeleteImage(ctx, "i", "ann"))
	_, err = w.Images.Image(ctx, "i")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.Len(t, w.events(inventory.EventOperator), 7)
}

// TestUserDataKeepsBytes: binary user data is the same after storing, storing again, new keys and a copy.
func TestUserDataKeepsBytes(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	m := machine("bytes", 9)
	m.UserData, m.VendorData = inventory.NewSecret("\x1f\x8b\x00\xff\r\n"), inventory.NewSecret("\x80")
	require.NoError(t, put(t, w.Store, false, m))
	same := func(s *Store) {
		t.Helper()
		user, vendor, err := s.Machines.UserData(ctx, "bytes")
		require.NoError(t, err)
		require.Equal(t, "\x1f\x8b\x00\xff\r\n \x80", user.Reveal()+" "+vendor.Reveal())
	}
	same(w.Store)
	got, err := w.Machines.Machine(ctx, "bytes")
	require.NoError(t, err)
	require.NoError(t, put(t, w.Store, true, got))
	same(w.Store)

	to := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, w.Copy(ctx, to, "b1"))
	restored, err := Open(ctx, to, w.keys)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, restored.Close()) })
	same(restored)
}
