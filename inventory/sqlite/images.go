package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

type imageRow struct {
	Doc     string `db:"doc"`
	Created int64  `db:"created"`
}

func (r imageRow) image() (inventory.Image, error) {
	var i inventory.Image
	err := json.Unmarshal([]byte(r.Doc), &i)
	i.Created = moment(r.Created)
	return i, err
}

// Image returns the image called name.
func (s *Store) Image(ctx context.Context, name string) (inventory.Image, error) {
	var r imageRow
	err := get(ctx, s.ro, &r, "SELECT doc, created FROM image WHERE name = ?", name)
	var i inventory.Image
	if err == nil {
		i, err = r.image()
	}
	if err != nil {
		return inventory.Image{}, fmt.Errorf("reading image %q: %w", name, err)
	}
	return i, nil
}

// Images returns all images by name.
func (s *Store) Images(ctx context.Context) ([]inventory.Image, error) {
	var rows []imageRow
	if err := s.ro.SelectContext(ctx, &rows, "SELECT doc, created FROM image ORDER BY name"); err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	out := make([]inventory.Image, len(rows))
	for n, r := range rows {
		i, err := r.image()
		if err != nil {
			return nil, fmt.Errorf("listing images: %w", err)
		}
		out[n] = i
	}
	return out, nil
}

// PutImage stores an image's record, replacing one of the same name.
func (s *Store) PutImage(ctx context.Context, i inventory.Image, by string) error {
	what := fmt.Sprintf("storing image %q", i.Name)
	doc, err := toJSON(i)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		_, err := exec(ctx, tx, `INSERT INTO image (name, doc, created) VALUES (?,?,?)
			ON CONFLICT (name) DO UPDATE SET doc = excluded.doc`, i.Name, doc, nanos(s.now()))
		if err != nil {
			return err
		}
		return s.operator(ctx, tx, "", by, "image "+i.Name+" stored, sha256 "+i.SHA256)
	})
}

// DeleteImage removes the record of the image called name; its file is the
// caller's to remove.
func (s *Store) DeleteImage(ctx context.Context, name, by string) error {
	return s.deleteNamed(ctx, "image", name, by)
}

// SetImageFile changes where the file of an image lies, which is no change of the image.
func (s *Store) SetImageFile(ctx context.Context, name, file string) error {
	return s.write(ctx, fmt.Sprintf("moving the file of image %q", name), func(tx *sqlx.Tx) error {
		_, err := exec(ctx, tx, "UPDATE image SET doc = json_set(doc, '$.file', ?) WHERE name = ?", file, name)
		return err
	})
}

// PlannedImages returns the files that the plans of open runs need.
func (s *Store) PlannedImages(ctx context.Context) ([]inventory.PlannedImage, error) {
	out, err := s.plannedImages(ctx, s.ro)
	if err != nil {
		return nil, fmt.Errorf("reading the plans of open runs: %w", err)
	}
	return out, nil
}

// plannedImages counts a run without a record as open: its plan may be older
// than its record.
func (s *Store) plannedImages(ctx context.Context, q sqlx.QueryerContext) ([]inventory.PlannedImage, error) {
	var rows []struct {
		Run     string `db:"run"`
		Machine string `db:"machine"`
		Sealed  []byte `db:"sealed"`
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

// UnusedImageFiles calls remove for those of digests that neither an image nor
// the plan of an open run needs. No plan and no image is stored meanwhile, so
// that a plan that is stored finds its file, or finds it gone.
func (s *Store) UnusedImageFiles(ctx context.Context, digests []string, remove func(digest string) error) error {
	if len(digests) == 0 {
		return nil
	}
	return s.write(ctx, "looking for unused image files", func(tx *sqlx.Tx) error {
		var used []string
		if err := tx.SelectContext(ctx, &used, "SELECT coalesce(json_extract(doc, '$.sha256'), '') FROM image"); err != nil {
			return err
		}
		planned, err := s.plannedImages(ctx, tx)
		if err != nil {
			return err
		}
		for _, p := range planned {
			used = append(used, p.SHA256)
		}
		for _, d := range digests {
			if slices.Contains(used, d) {
				continue
			}
			if err := remove(d); err != nil {
				return err
			}
		}
		return nil
	})
}
