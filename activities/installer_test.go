package activities

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// yard is a machine that an installer installs.
type yard struct {
	unused
	machine  inventory.Machine
	user     string
	template string
	images   []inventory.Image
	plan     inventory.Plan
	grant    inventory.Grant
}

func (y *yard) Machine(context.Context, string) (inventory.Machine, error) { return y.machine, nil }

func (y *yard) UserData(context.Context, string) (user, vendor inventory.Secret, err error) {
	return inventory.NewSecret(y.user), inventory.Secret{}, nil
}

func (y *yard) Template(context.Context, string) (inventory.Template, error) {
	return inventory.Template{Name: "t", Source: y.template}, nil
}

func (y *yard) Images(context.Context) ([]inventory.Image, error) { return y.images, nil }

func (y *yard) Image(_ context.Context, name string) (inventory.Image, error) {
	for _, i := range y.images {
		if i.Name == name {
			return i, nil
		}
	}
	return inventory.Image{}, inventory.ErrNotFound
}

func (y *yard) PutPlan(_ context.Context, p inventory.Plan) error { y.plan = p; return nil }

func (y *yard) Plan(context.Context, string) (inventory.Plan, error) { return y.plan, nil }

func (y *yard) Resumable(context.Context, string) error { return nil }

func (y *yard) Grant(context.Context, string) (inventory.Grant, error) { return y.grant, nil }

const yardTemplate = `version: "0.1"
name: t
documents:
  - {name: config, kind: harvester}
installer:
  kernel: vmlinuz
  initrd: [initrd]
  parameters: ["harvester.install.config_url={{ .documents_url }}config"]
  complete: webhook
`

const yardDocument = `scheme_version: 1
token: geheim-geheim-1
os: {hostname: h, password: geheim-geheim-2}
install:
  mode: create
  management_interface: {interfaces: [{name: eth0}], method: dhcp}
  device: /dev/disk/by-id/x
  vip: 10.0.0.30
  vip_mode: static
  iso_url: http://10.0.0.1/images/h.iso
`

func newYard() (*Activities, *yard) {
	y := &yard{
		machine: inventory.Machine{
			Name: "m1", Disks: []inventory.DeclaredDisk{{Device: "/dev/sda"}},
			Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:01", Address: netip.MustParseAddr("10.0.0.9"), Netmask: "255.255.255.0"}},
		},
		user: yardDocument, template: yardTemplate,
		images: []inventory.Image{{Name: "vmlinuz", File: "vmlinuz", SHA256: "aa"}, {Name: "initrd", File: "initrd", SHA256: "bb"}},
	}
	a := New(Config{
		Store:  storeOf(y),
		Clocks: Clocks{Now: time.Now},
		Log:    slog.New(slog.DiscardHandler),
		Site: Site{
			ClaimKey:    []byte("0123456789abcdef"),
			ImageURL:    func() string { return "http://10.0.0.1:7080/images" },
			MetadataURL: "http://10.0.0.1:7172",
		},
	})
	return a, y
}

func TestPlanOfAnInstaller(t *testing.T) {
	a, y := newYard()
	p, err := a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.NoError(t, err)
	require.Equal(t, &PlannedInstaller{Payload: "initrd", Complete: "webhook", Timeout: 5400, Loaded: true}, p.Installer)
	require.Equal(t, EvidenceWebhook, p.Evidence)
	require.Empty(t, p.Actions)
	require.Equal(t, "vmlinuz", y.plan.Installer.Kernel)
	require.Equal(t, map[string]string{"vmlinuz": "aa", "initrd": "bb"}, y.plan.Installer.Digests)
	doc := y.plan.Documents[0].Contents
	require.Contains(t, doc, "token: geheim-geheim-1", "what was checked is what will be served")
	for _, event := range []string{"STARTED", "SUCCEEDED", "FAILED"} {
		require.Contains(t, doc, inventory.RefWebhookURL+event)
	}
	digest := p.Digest
	y.user = strings.ReplaceAll(yardDocument, "geheim", "secret")
	p, err = a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.NoError(t, err)
	require.Equal(t, digest, p.Digest, "the digest enters histories, and tells nothing of secrets")
	y.images = append(y.images, inventory.Image{Name: "initrd-2", File: "initrd-2", SHA256: "cc"})
	y.template = strings.Replace(yardTemplate, "[initrd]", "[initrd-2]", 1)
	p, err = a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.NoError(t, err)
	require.NotEqual(t, digest, p.Digest)
}

func TestPlanTakesThePhoneHomeOfADocument(t *testing.T) {
	a, y := newYard()
	y.user = yardDocument + "# its system calls ingot@@phone-home-url@@\n"
	p, err := a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.NoError(t, err)
	require.Equal(t, EvidencePhoneHome, p.Evidence)
}

// All problems are returned at once, with their remedies and without secrets. S18: among them an image of an installer without a
// declared digest.
func TestPlanRefusesAnInstaller(t *testing.T) {
	a, y := newYard()
	y.machine.Disks = append(y.machine.Disks, inventory.DeclaredDisk{Device: "/dev/sdb"})
	y.images = []inventory.Image{{Name: "initrd", URL: "http://elsewhere/initrd"}}
	y.user = strings.Replace(yardDocument, "  iso_url: http://10.0.0.1/images/h.iso\n", "", 1)
	_, err := a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	for _, want := range []string{
		"machine.m1.diskSelector", "declares 2 disks and no diskSelector", `there is no image "vmlinuz"`, "ingot image add initrd http://elsewhere/initrd",
		"document config of machine m1", "iso_url",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "geheim")
	require.Empty(t, y.plan.Run, "nothing was stored")

	a, y = newYard()
	y.machine.ProtectedDisks = []action.DiskID{{Serial: "KEEP"}}
	_, err = a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.ErrorContains(t, err, "does not spare protected disks")

	a, y = newYard()
	y.user = ""
	_, err = a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.ErrorContains(t, err, "is the machine's user data, but the machine has no user data")

	a, y = newYard()
	a.Site.RequireDigest = true
	y.images[0].FirstSeen = true
	_, err = a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.ErrorContains(t, err, `image "vmlinuz" was added without a digest`)
}

func TestOnlyARunWithATalosDocumentWaitsForItsAPI(t *testing.T) {
	a, y := newYard()
	y.plan = inventory.Plan{Run: "r1", Documents: []inventory.Document{{Name: "note", Kind: inventory.DocumentText}}}
	_, err := a.waitForProof(t.Context(), inventory.Owner{Machine: "m1", Run: "r1", Epoch: 3})
	require.ErrorIs(t, err, inventory.ErrInvalid)
}

// The plan pins its images. A later image of the same name changes nothing; a missing file
// is detected before anything is done.
func TestImagesOfAnInstallerArePinned(t *testing.T) {
	a, y := newYard()
	y.images[0].SHA256, y.images[1].SHA256 = sumA, sumB
	gone := ""
	a.Site.ImageStored = func(_ context.Context, i inventory.PlannedImage) error {
		if i.SHA256 == gone {
			return inventory.ErrNotFound
		}
		return nil
	}
	planned, err := a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.NoError(t, err)
	y.grant = inventory.Grant{Owner: inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}}
	boot := PowerRequest{Owner: y.grant.Owner, Boot: 1, Installer: true}
	require.NoError(t, a.checkPlanned(t.Context(), boot))
	name := y.images[0].Name
	y.images[0].SHA256 = strings.Repeat("e", 64)
	require.NoError(t, a.checkPlanned(t.Context(), boot), "its own file is still there")

	gone = sumA
	_, err = a.Power(t.Context(), boot)
	require.Equal(t, TypeConflict, typeOf(t, err))
	require.ErrorContains(t, err, `image "`+name+`" (sha256 aaaaaaaaaaaa) was replaced or deleted`)
	require.ErrorContains(t, err, "ingot workflow retry m1 --from start")
	y.grant.Spent = true
	boot.Unclaimed = true
	require.NoError(t, a.checkPlanned(t.Context(), boot), "the installer that was given up has come: it needs nothing more")
	boot.Unclaimed, y.grant.Boot = false, 1
	require.NoError(t, a.checkPlanned(t.Context(), boot), "the worker died when this boot's installer was at work already")
	y.grant.Boot = 0
	require.Error(t, a.checkPlanned(t.Context(), boot), "an earlier boot's was")

	a.Workflows = ended{a.Workflows}
	_, err = a.Plan(t.Context(), PlanRequest{Run: "r2", Machine: "m1", Resume: "r1"})
	require.Equal(t, TypeConflict, typeOf(t, err))

	again, err := a.Plan(t.Context(), PlanRequest{Run: "r3", Machine: "m1", Template: "t"})
	require.NoError(t, err)
	require.NotEqual(t, planned.Digest, again.Digest)
	y.images[1].SHA256 = ""
	_, err = a.Plan(t.Context(), PlanRequest{Run: "r3", Machine: "m1", Template: "t"})
	require.ErrorContains(t, err, "is not known")
}

// ended reports every run as failed.
type ended struct{ storeWorkflows }

func (ended) Workflow(_ context.Context, run string) (inventory.Workflow, error) {
	return inventory.Workflow{Run: run, Machine: "m1", State: inventory.StateFailed}, nil
}
