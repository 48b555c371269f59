package sqlite

import (
	"context"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// Images are the records of images. The files themselves are in the image directory.
type Images struct{ *db }

type imageRow struct {
	docRow[inventory.Image]
	Created int64
}

func (r imageRow) value() (inventory.Image, error) {
	i, err := r.docRow.value()
	i.Created = moment(r.Created)
	return i, err
}

// Image returns the image called name.
func (s Images) Image(ctx context.Context, name string) (inventory.Image, error) {
	i, err := read[imageRow](ctx, s.ro, "SELECT doc, created FROM image WHERE name = ?", name)
	return i, wrap(err, "reading image %q", name)
}

// Images returns all images, sorted by name.
func (s Images) Images(ctx context.Context) ([]inventory.Image, error) {
	out, err := list[imageRow](ctx, s.ro, "SELECT doc, created FROM image ORDER BY name")
	return out, wrap(err, "listing images")
}

// PutImage stores the record of an image. It replaces the stored record of the same name.
func (s Images) PutImage(ctx context.Context, i inventory.Image, by string) error {
	return s.writeDoc(ctx, fmt.Sprintf("storing image %q", i.Name), i, func(tx *transaction, doc string) error {
		if err := recordUnused(ctx, tx, i.Name); err != nil {
			return err
		}

		err := do(ctx, tx, `INSERT INTO image (name, doc, created) VALUES (?,?,?)
			ON CONFLICT (name) DO UPDATE SET doc = excluded.doc`, i.Name, doc, nanos(s.now()))
		if err != nil {
			return err
		}
		return addOperatorEvent(ctx, tx, "", by, "image "+i.Name+" stored, sha256 "+i.SHA256)
	})
}

// DeleteImage removes the record of the image called name. The next call of UnusedImageFiles removes the image's file, unless another image
// or the plan of an open run needs it.
func (s Images) DeleteImage(ctx context.Context, name, by string) error {
	return s.write(ctx, fmt.Sprintf("deleting image %q", name), func(tx *transaction) error {
		if err := recordUnused(ctx, tx, name); err != nil {
			return err
		}
		return deleteNamed(ctx, tx, "image", name, by)
	})
}

// ExpectImageFile is called before a new file is moved into the image directory, and records its digest. If no PutImage with this file
// follows, UnusedImageFiles removes the file.
func (s Images) ExpectImageFile(ctx context.Context, digest string) error {
	return s.writeOne(ctx, "recording the digest of a new image file", "INSERT OR IGNORE INTO image_unused (sha256) VALUES (?)", digest)
}

// recordUnused records that the file of the image called name may be unused soon. It is called before the image is replaced or deleted.
func recordUnused(ctx context.Context, tx *transaction, name string) error {
	return do(ctx, tx, `INSERT OR IGNORE INTO image_unused (sha256)
		SELECT json_extract(doc, '$.sha256') FROM image WHERE name = ? AND json_extract(doc, '$.sha256') <> ''`, name)
}

// SetImageFile stores a new path for the file of an image, and changes nothing else in its record.
func (s Images) SetImageFile(ctx context.Context, name, file string) error {
	return s.writeOne(ctx, fmt.Sprintf("storing the new file path of image %q", name),
		"UPDATE image SET doc = json_set(doc, '$.file', ?) WHERE name = ?", file, name)
}

// PlannedImages returns the image files that the plans of open runs need.
func (s Images) PlannedImages(ctx context.Context) ([]inventory.PlannedImage, error) {
	out, err := s.plannedImages(ctx, s.ro)
	return out, wrap(err, "reading the plans of open runs")
}

// plannedImages is PlannedImages within a transaction. A run without a record counts as open: after a reset from outside of Ingot, a run
// stores its plan before its first record.
func (s Images) plannedImages(ctx context.Context, q sqlx.QueryerContext) ([]inventory.PlannedImage, error) {
	var rows []struct {
		Run, Machine string
		Sealed       []byte
	}
	err := sqlx.SelectContext(ctx, q, &rows, `SELECT p.run, coalesce(w.machine, '') AS machine, p.sealed
		FROM plan p LEFT JOIN workflow w ON w.run = p.run WHERE coalesce(w.final, 0) = 0 ORDER BY p.run`)
	var out []inventory.PlannedImage
	for _, r := range rows {
		var p inventory.Plan
		if err := s.unseal(r.Run, r.Sealed, &p); err != nil {
			return nil, fmt.Errorf("run %q: %w", r.Run, err)
		}

		for _, i := range p.Images(0) {
			i.Run, i.Machine = r.Run, r.Machine
			out = append(out, i)
		}
	}

	return out, err
}

// UnusedImageFiles calls remove for each file that was recorded as unused and that neither an image nor the plan of an open run needs.
// remove gets the digest of the file. If remove returns an error, UnusedImageFiles stops, and the next call tries all these files again. It
// runs in one write transaction, so no plan and no image can be stored while files are being removed.
func (s Images) UnusedImageFiles(ctx context.Context, remove func(digest string) error) error {
	what := "removing unused image files"
	if some, err := scalar[bool](ctx, s.ro, "SELECT EXISTS (SELECT 1 FROM image_unused)"); err != nil || !some {
		return wrap(err, "%s", what)
	}

	// The transaction must not end early: if its context ended, database/sql would roll it back at once, and another writer could store an
	// image while remove deletes its file.
	ctx = context.WithoutCancel(ctx)
	return s.write(ctx, what, func(tx *transaction) error {
		err := do(ctx, tx, "DELETE FROM image_unused WHERE sha256 IN (SELECT json_extract(doc, '$.sha256') FROM image)")
		if err != nil {
			return err
		}
		var digests []string
		if err := tx.SelectContext(ctx, &digests, "SELECT sha256 FROM image_unused ORDER BY sha256"); err != nil {
			return err
		}
		planned, err := s.plannedImages(ctx, tx)
		if err != nil {
			return err
		}

		for _, d := range digests {
			if slices.ContainsFunc(planned, func(p inventory.PlannedImage) bool { return p.SHA256 == d }) {
				continue
			}
			if err := remove(d); err != nil {
				return err
			}
			if err := do(ctx, tx, "DELETE FROM image_unused WHERE sha256 = ?", d); err != nil {
				return err
			}
		}

		return nil
	})
}
