package sqlite

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Templates are the templates of installations.
type Templates struct{ *db }

type templateRow struct {
	inventory.Template
	Created, Updated int64
}

func (r templateRow) value() (inventory.Template, error) {
	r.Template.Created, r.Template.Updated = moment(r.Created), moment(r.Updated)
	return r.Template, nil
}

const templateColumns = "name, source, builtin, created, updated"

// Template returns the template called name.
func (s Templates) Template(ctx context.Context, name string) (inventory.Template, error) {
	t, err := read[templateRow](ctx, s.ro, "SELECT "+templateColumns+" FROM template WHERE name = ?", name)
	return t, wrap(err, "reading template %q", name)
}

// Templates returns all templates, sorted by name.
func (s Templates) Templates(ctx context.Context) ([]inventory.Template, error) {
	out, err := list[templateRow](ctx, s.ro, "SELECT "+templateColumns+" FROM template ORDER BY name")
	return out, wrap(err, "listing templates")
}

// PutTemplate stores a template. It replaces the stored template of the same name. If t.Updated is set and the stored template was not
// updated then, or does not exist, the error is inventory.ErrStale.
func (s Templates) PutTemplate(ctx context.Context, t inventory.Template, by string) error {
	return s.writeOnce(ctx, fmt.Sprintf("storing template %q", t.Name), func(tx *transaction) error {
		if !t.Updated.IsZero() {
			updated, err := optional(scalar[int64](ctx, tx, "SELECT updated FROM template WHERE name = ?", t.Name))
			if err != nil {
				return err
			}
			if updated != nanos(t.Updated) {
				return inventory.ErrStale
			}
		}
		return putTemplate(ctx, tx, t, by)
	})
}

func putTemplate(ctx context.Context, tx *transaction, t inventory.Template, by string) error {
	now := nanos(tx.db.now())
	err := do(ctx, tx, `INSERT INTO template (name, source, builtin, created, updated) VALUES (?,?,?,?,?)
		ON CONFLICT (name) DO UPDATE SET source = excluded.source, builtin = excluded.builtin, updated = excluded.updated`,
		t.Name, t.Source, t.Builtin, now, now)
	if err != nil {
		return err
	}
	return addOperatorEvent(ctx, tx, "", by, "template "+t.Name+" stored")
}

// DeleteTemplate deletes the template called name.
func (s Templates) DeleteTemplate(ctx context.Context, name, by string) error {
	return s.write(ctx, fmt.Sprintf("deleting template %q", name), func(tx *transaction) error {
		return deleteNamed(ctx, tx, "template", name, by)
	})
}

// deleteNamed deletes the row called name from table. If there is no such row, the error is inventory.ErrNotFound.
func deleteNamed(ctx context.Context, tx *transaction, table, name, by string) error {
	if err := doOne(ctx, tx, inventory.ErrNotFound, "DELETE FROM "+table+" WHERE name = ?", name); err != nil {
		return err
	}
	if err := do(ctx, tx, "DELETE FROM applied WHERE run = ?", appliedKey(table, name)); err != nil {
		return err
	}
	return addOperatorEvent(ctx, tx, "", by, table+" "+name+" deleted")
}
