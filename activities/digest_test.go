package activities

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// shelf is a store with two images; one of them was declared.
type shelf struct {
	unused
	template string
	image    string // the machine's
	images   []inventory.Image
	plan     *inventory.Plan
	stored   bool // plan is found
}

func (s *shelf) Machine(context.Context, string) (inventory.Machine, error) {
	return inventory.Machine{Name: "m1", Image: s.image, Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:01"}}}, nil
}

func (s *shelf) Template(context.Context, string) (inventory.Template, error) {
	return inventory.Template{Name: "t", Source: s.template}, nil
}

func (s *shelf) Images(context.Context) ([]inventory.Image, error) {
	if s.images != nil {
		return s.images, nil
	}
	return []inventory.Image{
		{Name: "declared", File: "declared.raw", SHA256: declaredDigest, Format: "raw"},
		{Name: "seen", File: "seen.raw", SHA256: seenDigest, Format: "raw", FirstSeen: true},
		{Name: "made", File: "made.zst", SHA256: madeDigest, Format: "zst", Source: &inventory.ImageSource{SHA256: declaredDigest}},
	}, nil
}

func (s *shelf) Image(ctx context.Context, name string) (inventory.Image, error) {
	all, err := s.Images(ctx)
	for _, i := range all {
		if i.Name == name {
			return i, err
		}
	}
	return inventory.Image{}, inventory.ErrNotFound
}

func (s *shelf) PutPlan(_ context.Context, p inventory.Plan) error {
	s.plan = &p
	return nil
}

// The digests of the images of a shelf.
var declaredDigest, seenDigest, madeDigest = strings.Repeat("d1", 32), strings.Repeat("5e", 32), strings.Repeat("3a", 32)

// TestS18DigestsAreDeclaredOrRecorded: every image that a plan writes has a digest. An
// undeclared digest causes a warning and, with require_digest, an error, however the
// template names the image.
func TestS18DigestsAreDeclaredOrRecorded(t *testing.T) {
	const head = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n  - name: write\n    image: image2disk\n    timeout: 60\n    environment:\n      DEST_DISK: /dev/sda\n"
	plan := func(template, image string, require bool) (Planned, *inventory.Plan, error) {
		s := &shelf{template: template, image: image}
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			RequireDigest: require, ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
		}})
		p, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
		return p, s.plan, err
	}
	site := Site{ImageURL: func() string { return "http://192.0.2.1/images" }}
	url := func(name string) string {
		return site.URLOf(
			inventory.Image{Name: name, File: name + ".raw", SHA256: map[string]string{"declared": declaredDigest, "seen": seenDigest}[name]},
		)
	}
	for _, c := range []struct {
		name, template, image, digest string
		seen                          bool
	}{
		{"the machine's, declared", head, "declared", declaredDigest, false},
		{"the machine's, first seen", head, "seen", seenDigest, true},
		{"by URL, declared", head + "      IMG_URL: " + url("declared") + "\n", "", declaredDigest, false},
		{
			"by URL, with the digest of the file that was given",
			head + "      IMG_URL: " + url("made") + "\n      IMG_SHA256: " + declaredDigest + "\n", "", madeDigest, false,
		},
		{"by URL, first seen", head + "      IMG_URL: " + url("seen") + "\n", "", seenDigest, true},
		{"by URL, first seen, on a machine whose own is declared", head + "      IMG_URL: " + url("seen") + "\n", "declared", seenDigest, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, stored, err := plan(c.template, c.image, false)
			require.NoError(t, err)
			require.Equal(t, c.digest, stored.Actions[0].Environment["IMG_SHA256"])
			require.Equal(t, c.seen, len(p.Warnings) == 1, "%q", p.Warnings)
			_, stored, err = plan(c.template, c.image, true)
			if !c.seen {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "require_digest")
			require.Nil(t, stored, "nothing was planned")
		})
	}
	// With require_digest, a URL of another server is refused without a digest.
	foreign := head + "      IMG_URL: https://user:secret-1@mirror.example/x.raw?token=secret-2\n"
	_, _, err := plan(foreign, "", true)
	require.ErrorContains(t, err, "IMG_SHA256")
	require.ErrorContains(t, err, "https://mirror.example/x.raw")
	require.NotContains(t, err.Error(), "secret-", "credentials of the URL")
	_, stored, err := plan(foreign+"      IMG_SHA256: "+strings.Repeat("a", 64)+"\n", "", true)
	require.NoError(t, err, "its digest is declared where it is named")
	require.Equal(t, strings.Repeat("a", 64), stored.Actions[0].Environment["IMG_SHA256"])
}

// TestS18FilesWithoutADigestAreFetched: a file of another server without a digest becomes an image of this server before the run is
// planned, and the plan names the digest that was seen.
func TestS18FilesWithoutADigestAreFetched(t *testing.T) {
	const address = "https://user:secret-1@mirror.example/Ubuntu_22.04.gz?token=secret-2"
	step := func(name string) string {
		return "  - {name: " + name + ", image: image2disk, timeout: 60, environment: {DEST_DISK: /dev/sda, IMG_URL: '" + address + "'}}\n"
	}
	s := &shelf{
		template: "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n" + step("write") + step("again"),
		images:   []inventory.Image{{Name: "other", File: "o", SHA256: declaredDigest}},
	}
	fetched := 0
	a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
		ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
		FetchImage: func(_ context.Context, name, from, by string) error {
			require.Equal(t, []string{address, "alice"}, []string{from, by})
			fetched++
			s.images = append(s.images, inventory.Image{
				Name: name, File: seenDigest, SHA256: seenDigest, FirstSeen: true, URL: "https://mirror.example/Ubuntu_22.04.gz",
			})
			return nil
		},
	}})
	q := PlanRequest{Machine: "m1", Run: "r1", Template: "t", By: "alice"}
	p, err := a.Plan(t.Context(), q)
	require.NoError(t, err)
	require.Len(t, p.Fetch, 1, "it is fetched once")
	require.Regexp(t, `^fetched-[0-9a-f]{16}-ubuntu-22-04-gz$`, p.Fetch[0])
	require.NoError(t, inventory.ValidateImageName(p.Fetch[0]).Err())
	require.NotContains(t, strings.Join(p.Warnings, " "), "secret-")
	require.Nil(t, s.plan, "nothing is stored yet")

	require.NoError(t, a.FetchImages(t.Context(), q))
	require.NoError(t, a.FetchImages(t.Context(), q))
	require.Equal(t, 1, fetched)
	name := p.Fetch[0]
	p, err = a.Plan(t.Context(), q)
	require.NoError(t, err)
	require.Empty(t, p.Fetch)
	require.Equal(t, []string{"image " + name + ": the digest is first-seen: this server computed it, and no one declared it"}, p.Warnings)
	for _, x := range s.plan.Actions[:2] {
		require.Equal(t, action.Environment{
			"DEST_DISK": "/dev/sda", "IMG_SHA256": seenDigest, "IMG_URL": "http://192.0.2.1/images/" + seenDigest + "/" + name,
		}, x.Environment)
	}
}

// TestDeclaredDigestsGoToTheirServer: a digest that the template gives is checked against the file of the URL, even if this server has
// fetched another file from there; a URL of this server without an image is a mistake.
func TestDeclaredDigestsGoToTheirServer(t *testing.T) {
	const at = "https://mirror.example/x.raw"
	plan := func(env string, require bool) (*inventory.Plan, error) {
		s := &shelf{
			template: "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n  - {name: a, image: image2disk, environment: {DEST_DISK: /dev/sda, " +
				env + "}}\n",
			images: []inventory.Image{{Name: inventory.FetchedName(at), File: seenDigest, SHA256: seenDigest, FirstSeen: true, URL: at}},
		}
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			RequireDigest: require, ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
		}})
		_, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
		return s.plan, err
	}
	for _, strict := range []bool{false, true} {
		stored, err := plan("IMG_URL: '"+at+"', IMG_SHA256: "+declaredDigest, strict)
		require.NoError(t, err)
		require.Equal(t, at, stored.Actions[0].Environment["IMG_URL"])
	}
	_, err := plan("IMG_URL: 'http://192.0.2.1/images/debain'", false)
	require.ErrorContains(t, err, "this server has no image at http://192.0.2.1/images/debain")
}

// TestQemuImg2DiskIsPlanned: it gets digests as image2disk does, and a qcow2 image of another server is refused before power.
func TestQemuImg2DiskIsPlanned(t *testing.T) {
	const head = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n" +
		"  - name: write\n    image: quay.io/tinkerbell/actions/qemuimg2disk:v1\n    timeout: 60\n    environment:\n      DEST_DISK: /dev/sda\n"
	plan := func(more string) (*inventory.Plan, error) {
		s := &shelf{template: head + more, image: "declared", images: []inventory.Image{
			{Name: "declared", File: "declared.raw", SHA256: declaredDigest, Format: "raw"},
			{Name: "kernel", File: "kernel", SHA256: seenDigest, Use: "installer"},
			{Name: "a.qcow2", File: "a.zst", SHA256: madeDigest, Format: "zst"},
		}}
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			ClaimKey: make([]byte, 32), ImageURL: func() string { return "http://192.0.2.1/images" },
		}})
		_, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
		return s.plan, err
	}
	for more, digest := range map[string]string{
		"": declaredDigest,
		"      IMG_URL: http://192.0.2.1/images/a.qcow2\n":                                                               madeDigest,
		"      IMG_URL: https://mirror.example/a.img\n      IMG_SHA256: " + seenDigest + "\n      FORMAT: host_device\n": seenDigest,
	} {
		stored, err := plan(more)
		require.NoError(t, err, more)
		require.Equal(t, digest, stored.Actions[0].Environment["IMG_SHA256"])
	}
	for more, says := range map[string]string{
		"      IMG_URL: https://u:hush@mirror.example/a.qcow2?key=hush\n      IMG_SHA256: " + seenDigest + "\n": "ingot image add NAME URL",
		"      IMG_URL: http://192.0.2.1/images/kernel\n":                                                       "name a disk image",
		"      FORMAT: raw\n":            "must be host_device",
		"      EXTRA_ARGS: -t none\n":    "EXTRA_ARGS: it must be empty",
		"      IMG_URL: file:///a.img\n": "IMG_URL; must be an http:// or https:// URL with a host",
	} {
		stored, err := plan(more)
		require.ErrorIs(t, err, inventory.ErrInvalid, more)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "hush")
		require.Nil(t, stored)
	}
}

// TestTaskOfAnotherWorkerIsRefused: the plan of a run of its own is for one machine.
func TestTaskOfAnotherWorkerIsRefused(t *testing.T) {
	s := &shelf{template: "version: \"0.1\"\nname: t\ntasks:\n- {name: one, worker: '{{.device_1}}', actions: [{name: a, image: noop}]}\n" +
		"- {name: two, worker: '{{.other}}', actions: [{name: a, image: noop}]}\n"}
	a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
		ImageURL: func() string { return "http://192.0.2.1/images" },
	}})
	_, err := a.Plan(t.Context(), PlanRequest{
		Machine: "m1", Run: "r1", Template: "t", HardwareMap: map[string]string{"other": "52:54:00:00:00:02"},
	})
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, `t:5: tasks[1].worker: "52:54:00:00:00:02" is neither a MAC address nor the name of machine "m1"`)
	require.Nil(t, s.plan)
}
