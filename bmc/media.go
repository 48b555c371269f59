package bmc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// SetMedia inserts the image at url into the machine's virtual CD drive. If url is empty, it ejects all media instead.
// It succeeds if a read shows the change. fence has the same meaning as for Set.
func (d *Driver) SetMedia(ctx context.Context, b inventory.BMC, password inventory.Secret, url string,
	fence func(context.Context) error,
) error {
	what := "inserting virtual media"
	if url == "" {
		what = "ejecting virtual media"
	}
	is := func(inserted []string) bool {
		return slices.Equal(inserted, []string{url}) || url == "" && len(inserted) == 0
	}
	return d.with(ctx, b, password, what, func(s *session) error {
		s.fence = fence
		_, err := s.changeMedia(ctx, b.Driver, is, func(p mediaDrives) error {
			if url == "" {
				return p.eject(ctx, "")
			}
			return p.insert(ctx, url)
		})
		return err
	})
}

// EjectMedia ejects the medium at url, and no other, from the machine's virtual CD drives. It succeeds if a read shows
// that no drive holds this medium. ejected reports whether a drive held the medium before. fence has the same meaning as for Set.
func (d *Driver) EjectMedia(ctx context.Context, b inventory.BMC, password inventory.Secret, url string,
	fence func(context.Context) error,
) (ejected bool, err error) {
	gone := func(inserted []string) bool { return !slices.Contains(inserted, url) }
	err = d.with(ctx, b, password, "ejecting virtual media", func(s *session) (err error) {
		s.fence = fence
		ejected, err = s.changeMedia(ctx, b.Driver, gone, func(p mediaDrives) error { return p.eject(ctx, url) })
		return err
	})
	return ejected, err
}

// changeMedia calls change, and then reads the virtual CD drives until their media are as wanted. If the media are
// already as wanted in two reads, it does not call change, and returns false.
func (s *session) changeMedia(ctx context.Context, driver string, wanted func(inserted []string) bool,
	change func(mediaDrives) error,
) (changed bool, err error) {
	drives, ok := s.provider.(mediaDrives)
	if !ok {
		return false, fmt.Errorf("the driver %s does not support virtual media; use the driver redfish: %w", driver, inventory.ErrUnsupported)
	}
	now, err := drives.media(ctx)
	if err == nil && wanted(now) {
		now, err = drives.media(ctx) // a single answer may be wrong, so read twice
	}
	if err != nil || wanted(now) {
		return false, err
	}
	wrote := s.write(ctx, func() error { return change(drives) })
	if wrote != nil && final(wrote) {
		return false, wrote
	}
	for began := time.Now(); ; {
		now, err = drives.media(ctx)
		if err != nil || wanted(now) {
			return err == nil, err
		}
		if wrote != nil || time.Since(began) >= s.d.cfg.Hard { // the BMC may insert the medium after it has answered
			break
		}
		if err := s.d.cfg.sleep(ctx, s.d.cfg.Step); err != nil {
			return false, err
		}
	}
	return false, errors.Join(wrote, fmt.Errorf("the BMC reports the unexpected virtual media %q: %w", clipped(now), inventory.ErrUnreachable))
}

// clipped returns a copy of texts, which come from a BMC, with each text clipped so that it can be shown.
func clipped(texts []string) []string {
	texts = slices.Clone(texts)
	for i, t := range texts {
		texts[i] = clip(t)
	}
	return texts
}
