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

const imagesAt = "http://10.0.0.1:7080/images"

var (
	sumA = strings.Repeat("a", 64)
	sumB = strings.Repeat("b", 64)
)

// A plan names files by digest: another image of the same name is another file.
func TestS18APlanNamesFilesByDigest(t *testing.T) {
	a, y := newYard()
	y.images = append(y.images,
		inventory.Image{Name: "debian", File: sumA, SHA256: sumA, Format: "raw"},
		inventory.Image{Name: "harvester.iso", File: sumB, SHA256: sumB, Format: "raw", Use: inventory.UseInstaller})
	y.user = strings.Replace(yardDocument, "http://10.0.0.1/images/h.iso", imagesAt+"/harvester.iso", 1)
	y.template = strings.Replace(
		strings.Replace(yardTemplate, "parameters: [", "parameters: [iso={{ .images_url }}/harvester.iso, ", 1),
		"installer:",
		"tasks:\n- name: t\n  worker: m1\n  actions:\n  - {name: w, image: image2disk, timeout: 9, environment: {IMG_URL: \"{{ .images_url }}/debian\"}}\ninstaller:",
		1,
	)
	_, err := a.Plan(t.Context(), PlanRequest{Run: "r1", Machine: "m1", Template: "t"})
	require.NoError(t, err)
	require.Equal(t, imagesAt+"/"+sumA+"/debian", y.plan.Actions[0].Environment["IMG_URL"])
	require.Equal(t, sumA, y.plan.Actions[0].Environment["IMG_SHA256"])
	require.Contains(t, y.plan.Documents[0].Contents, imagesAt+"/"+sumB+"/harvester.iso")
	require.Equal(t, "iso="+imagesAt+"/"+sumB+"/harvester.iso", y.plan.Installer.Parameters[0])
	var sums []string
	for _, i := range y.plan.Images(0) {
		sums = append(sums, i.SHA256)
	}
	require.Subset(t, sums, []string{sumA, sumB})
	require.NotContains(
		t,
		y.plan.Images(len(y.plan.Actions)),
		inventory.PlannedImage{Run: "r1", Name: "debian", SHA256: sumA},
		"no action needs it any more",
	)
}

func writing(env map[string]string) inventory.Plan {
	return inventory.Plan{Run: "r1", ImagesURL: imagesAt, Actions: []action.Action{{Name: "w", Image: action.Image2Disk, Environment: env}}}
}

// A plan of a server that did not pin addresses gets the file of its digest, too.
func TestAnEarlierPlanGetsItsFile(t *testing.T) {
	plan := writing(map[string]string{"IMG_URL": imagesAt + "/debian", "IMG_SHA256": sumA})
	require.Equal(t, []inventory.PlannedImage{{Run: "r1", Name: "debian", SHA256: sumA}}, plan.Images(0))
	a, _ := newYard()
	x := a.fromHere(plan.Actions[0], plan.ImagesURL)
	require.Equal(t, imagesAt+"/"+sumA+"/debian", x.Environment["IMG_URL"])
	require.Equal(t, imagesAt+"/debian", plan.Actions[0].Environment["IMG_URL"], "the plan is as it was approved")
	x = a.fromHere(x, plan.ImagesURL)
	require.Equal(t, imagesAt+"/"+sumA+"/debian", x.Environment["IMG_URL"])
	a.Site.ImageURL = func() string { return "http://10.0.0.2/images" }
	x = a.fromHere(plan.Actions[0], plan.ImagesURL)
	require.Equal(t, "http://10.0.0.2/images/"+sumA+"/debian", x.Environment["IMG_URL"])
	require.Empty(t, writing(map[string]string{"IMG_URL": "https://elsewhere/debian", "IMG_SHA256": sumA}).Images(0), "not ours to keep")
}

// The handlers of an action count in its plan: their time, their disk, their files and the run's values.
func TestPlanCountsHandlers(t *testing.T) {
	s := &shelf{template: "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n" +
		"  - {name: a, image: noop, timeout: 9}\n" +
		"  - name: b\n    image: noop\n    timeout: 9\n" +
		"    on-failure: [writefile, DEST_PATH=/url, \"CONTENTS={{ .images_url }}/declared {{ .nonce }}\"]\n    on-timeout: [echo, late]\n"}
	s.images = []inventory.Image{{Name: "declared", File: sumA, SHA256: sumA, Format: "raw"}}
	a := New(Config{
		Store:  storeOf(s),
		Clocks: Clocks{Now: time.Now},
		Site:   Site{ClaimKey: make([]byte, 32), ImageURL: func() string { return imagesAt }},
	})
	p, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.NoError(t, err)
	require.Equal(t, []action.Seconds{9, 9 + action.HandlerTime}, []action.Seconds{p.Actions[0].Timeout, p.Actions[1].Timeout})
	require.Equal(t, []bool{false, true}, []bool{p.Actions[0].Writes, p.Actions[1].Writes})
	require.Equal(t, EvidenceWeak, p.Evidence, "a handler shows no success")
	require.Equal(t, []inventory.PlannedImage{{Run: "r1", Name: "declared", SHA256: sumA}}, s.plan.Images(0))
	pinned := s.plan.Actions[1].OnFailure[2]
	require.Contains(t, pinned, "CONTENTS="+imagesAt+"/"+sumA+"/declared ingot@@")

	// The agent gets the run's values, from the address of this server.
	a.Site.ImageURL = func() string { return "http://10.0.0.2/images" }
	owner := inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}
	x, err := a.secrets(t.Context(), owner, inventory.Machine{Name: "m1"}, s.plan.Actions[1])
	require.NoError(t, err)
	x = a.fromHere(x, s.plan.ImagesURL)
	require.Contains(t, x.OnFailure[2], "CONTENTS=http://10.0.0.2/images/"+sumA+"/declared ")
	require.NotContains(t, x.OnFailure[2], "ingot@@")
	require.Equal(t, pinned, s.plan.Actions[1].OnFailure[2], "the plan is as it was approved")
}

// A plan whose file is gone ends before any machine is touched.
func TestAPlanNeedsItsFiles(t *testing.T) {
	s := &shelf{
		template: "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n  - {name: w, image: image2disk, timeout: 9}\n",
		image:    "declared",
	}
	s.images = []inventory.Image{{Name: "declared", File: sumA, SHA256: sumA, Format: "raw"}}
	gone := false
	a := New(Config{
		Store:  storeOf(s),
		Clocks: Clocks{Now: time.Now},
		Site: Site{ClaimKey: make([]byte, 32), ImageURL: func() string { return imagesAt }, ImageStored: func(
			_ context.Context, i inventory.PlannedImage,
		) error {
			require.Equal(t, sumA, i.SHA256)
			require.NotNil(t, s.plan, "it is asked for when the plan keeps it already")
			if gone {
				return inventory.ErrNotFound
			}
			return nil
		}},
	})
	_, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.NoError(t, err)
	gone = true
	_, err = a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.Equal(t, TypeConflict, typeOf(t, err))
	require.ErrorContains(t, err, `image "declared" (sha256 aaaaaaaaaaaa) was replaced or deleted`)
}

// S18: a template cannot declare another digest for an image of this server.
func TestAPlanRefusesAnImageThatIsNotForDisks(t *testing.T) {
	s := &shelf{
		template: "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n  - {name: w, image: image2disk, timeout: 9}\n",
		image:    "cd",
	}
	s.images = []inventory.Image{
		{Name: "cd", File: sumA, SHA256: sumA, Format: "raw", Use: inventory.UseInstaller, Contents: "an ISO 9660 image"},
	}
	a := New(Config{
		Store:  storeOf(s),
		Clocks: Clocks{Now: time.Now},
		Site:   Site{ClaimKey: make([]byte, 32), ImageURL: func() string { return imagesAt }},
	})
	_, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.ErrorContains(t, err, "image cd is for installers (an ISO 9660 image), not for disks")
	s.images[0].Use, s.images[0].Contents = inventory.UseArchive, "tar archive, 7 entries"
	_, err = a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.ErrorContains(t, err, "image cd is for archives (tar archive, 7 entries), not for disks")

	disk := s.template
	s.template = strings.Replace(disk, "image2disk", "archive2disk", 1)
	_, err = a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.NoError(t, err)
	require.Equal(t, sumA, s.plan.Actions[0].Environment["TARFILE_CHECKSUM"])
	require.Equal(t, imagesAt+"/"+sumA+"/cd", s.plan.Actions[0].Environment["ARCHIVE_URL"])
	s.images[0].Use, s.plan = "", nil
	_, err = a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.ErrorContains(t, err, "image cd is a disk image (tar archive, 7 entries), not an archive")
	s.template = strings.Replace(
		disk,
		"image: image2disk, timeout: 9",
		"image: archive2disk, timeout: 9, environment: {ARCHIVE_URL: \"http://x/y\"}",
		1,
	)
	p, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.NoError(t, err)
	require.Equal(t, []string{inventory.FetchedName("http://x/y")}, p.Fetch)
	s.template = disk

	s.images[0].Use = ""
	s.template = strings.Replace(s.template, "timeout: 9", "timeout: 9, environment: {IMG_URL: \""+imagesAt+"/cd\", IMG_SHA256: "+sumB+"}", 1)
	_, err = a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1"})
	require.ErrorContains(t, err, "is bbbbbbbbbbbb, but image cd has the digest aaaaaaaaaaaa")
	require.Nil(t, s.plan)
}
