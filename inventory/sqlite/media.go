package sqlite

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Media are the records of images that runs have inserted into virtual CD drives.
type Media struct{ *db }

// PutMedia records the image that a run is about to insert into the virtual CD drive of its machine.
func (s Media) PutMedia(ctx context.Context, m inventory.Media) error {
	return s.writeOne(ctx, "recording virtual media", `INSERT INTO bmc_media (machine, run, url, bmc) VALUES (?, ?, ?, ?)
		ON CONFLICT (machine) DO UPDATE SET run = excluded.run, url = excluded.url, bmc = excluded.bmc`,
		m.Machine, m.Run, m.URL, m.BMC)
}

// Media returns the images that runs have inserted into virtual CD drives and that have not been ejected yet.
func (s Media) Media(ctx context.Context) (out []inventory.Media, err error) {
	err = s.ro.SelectContext(ctx, &out, "SELECT machine, run, url, bmc FROM bmc_media")
	return out, wrap(err, "listing virtual media")
}

// noMedia returns inventory.ErrConflict if a run has inserted an image into the machine's virtual CD drive, and the image has not been
// ejected yet. Such a machine must not be deleted, because its BMC is needed for ejecting.
func noMedia(ctx context.Context, tx *transaction, machine string) error {
	var urls []string
	if err := tx.SelectContext(ctx, &urls, "SELECT url FROM bmc_media WHERE machine = ?", machine); err != nil || len(urls) == 0 {
		return err
	}
	return fmt.Errorf("%s is still in the machine's virtual CD drive: wait until the server has ejected it; if the BMC no longer works, "+
		"remove bmc from the machine first: %w", urls[0], inventory.ErrConflict)
}

// DeleteMedia deletes the record of the image that the run m.Run has inserted. It is called after this image was ejected. If another run
// has inserted an image since, the record of that image stays.
func (s Media) DeleteMedia(ctx context.Context, m inventory.Media) error {
	return s.writeOne(ctx, "recording ejected media", "DELETE FROM bmc_media WHERE machine = ? AND run = ?", m.Machine, m.Run)
}
