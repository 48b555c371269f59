package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

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
