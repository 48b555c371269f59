package activities

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// findMisfit returns why an image of the plan cannot be written to the disk, or why the machine could not start
// from it; "" if no reason is known. findMisfit knows what this server found in each image when the image was
// stored. Only the agent checks the images that another server serves, before its first write.
//
// findMisfit also returns why a second disk of an action cannot be used. An image that does not fit its disk is never written. If the image
// has no loader for the machine's firmware, findMisfit sets canConfirm: the image is written if the operator then names the disk, because
// the settings of the firmware can be changed later.
func (a *assignments) findMisfit(
	ctx context.Context, q BindRequest, m inventory.Machine, bound action.Disk, f action.Facts,
) (reason string, canConfirm bool, err error) {
	plan, err := a.Plans.Plan(ctx, q.Owner.Run)
	if err != nil {
		return "", false, fmt.Errorf("reading the plan of run %q: %w", q.Owner.Run, err)
	}
	disks := make([]action.Disk, len(plan.Actions)) // that the actions use
	for n, x := range plan.Actions {
		disks[n] = bound
		if x.Second == nil || n < q.From {
			continue
		}
		second, reason := findSecondDisk(m, *x.Second, bound, f)
		if second == nil {
			return reason, false, nil
		}
		disks[n] = *second
	}
	if !slices.ContainsFunc(plan.Actions, writesImage) {
		return "", false, nil
	}
	images, err := a.Images.Images(ctx)
	if err != nil {
		return "", false, err
	}

	for n, x := range plan.Actions {
		if n < q.From || !writesImage(x) {
			continue
		}
		at := slices.IndexFunc(images, func(i inventory.Image) bool { return i.SHA256 == x.Environment["IMG_SHA256"] })
		if at < 0 {
			continue
		}

		img, d := images[at], disks[n]
		if err := action.ImageFits(img.SectorSize, img.DiskSize, d); err != nil {
			return fmt.Sprintf("image %s cannot be written to disk %s (serial %q): %v", img.Name, d.Path, d.Serial, err), false, nil
		}
		if x.Second != nil || !x.WritesWhole(plan.DiskAlias) {
			continue // the loader may be on another disk or partition
		}
		if reason := cannotBoot(img, f); reason != "" && !q.Anyway && !bringsLoader(plan.Actions[n+1:]) {
			return reason + ": use another image, or name the disk to write this image anyway", true, nil
		}
	}
	return "", false, nil
}

// writesImage reports whether the action writes an image to the disk or to a partition of it.
func writesImage(x action.Action) bool {
	native, _ := x.Native()
	return action.Describe(native).Whole
}

// bringsLoader reports whether one of the actions might add a boot loader to the disk.
func bringsLoader(actions []action.Action) bool {
	return slices.ContainsFunc(actions, func(x action.Action) bool {
		native, ok := x.Native()
		return !ok || action.Describe(native).Loader
	})
}

// cannotBoot returns why the machine's firmware finds no loader in the image; "" if the firmware may find a loader.
func cannotBoot(img inventory.Image, f action.Facts) string {
	form := f.BootForm()
	if form == "" || len(img.Boots) == 0 || slices.Contains(img.Boots, form) {
		return ""
	}
	return fmt.Sprintf("image %s boots by %s only, but the machine boots by %s", img.Name, strings.Join(img.Boots, ", "), form)
}
