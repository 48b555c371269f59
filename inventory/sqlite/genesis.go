package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// PutGenesis stores a lab file with the files that it names, replacing one of
// the same name, and returns it with its digest and times, without the files.
func (s *Store) PutGenesis(ctx context.Context, b inventory.GenesisBundle, by string) (inventory.GenesisBundle, error) {
	what := fmt.Sprintf("storing lab file %q", b.Name)
	if err := b.Check(); err != nil {
		return inventory.GenesisBundle{}, err
	}
	files := make(map[string]string, len(b.Files))
	for name, content := range b.Files {
		files[name] = content.Reveal()
	}
	plain, err := json.Marshal(files)
	if err != nil {
		return inventory.GenesisBundle{}, fmt.Errorf("%s: %w", what, err)
	}
	b.SHA256 = b.Digest()
	b.Files = nil
	err = s.write(ctx, what, func(tx *sqlx.Tx) error {
		b.Created, b.Updated = s.now(), s.now()
		var doc string
		err := get(ctx, tx, &doc, "SELECT doc FROM genesis WHERE name = ?", b.Name)
		if err == nil {
			var before inventory.GenesisBundle
			if err := json.Unmarshal([]byte(doc), &before); err != nil {
				return err
			}
			b.Created = before.Created
		} else if !errors.Is(err, inventory.ErrNotFound) {
			return err
		}
		if doc, err = toJSON(b); err != nil {
			return err
		}
		run := genesisKey(b.Name)
		sealed, err := s.seal(sealPlan, runBinding(run), plain)
		if err != nil {
			return err
		}
		if _, err := exec(ctx, tx, `INSERT INTO genesis (run, name, doc, sealed) VALUES (?,?,?,?)
			ON CONFLICT (name) DO UPDATE SET doc = excluded.doc, sealed = excluded.sealed`, run, b.Name, doc, sealed); err != nil {
			return err
		}
		return s.operator(ctx, tx, "", by, "lab file "+b.Name+" stored, sha256 "+b.SHA256)
	})
	return b, err
}

func genesisKey(name string) string { return "genesis/" + name }

type genesisRow struct {
	Doc    string `db:"doc"`
	Sealed []byte `db:"sealed"`
}

// Genesis returns the lab file called name with the files that it names. One
// whose key was lost is inventory.ErrSealed, one that was forgotten with it
// inventory.ErrNotFound.
func (s *Store) Genesis(ctx context.Context, name string) (inventory.GenesisBundle, error) {
	what := fmt.Sprintf("reading lab file %q", name)
	var r genesisRow
	var b inventory.GenesisBundle
	if err := get(ctx, s.ro, &r, "SELECT doc, sealed FROM genesis WHERE name = ? AND length(sealed) > 0", name); err != nil {
		return b, fmt.Errorf("%s: %w", what, err)
	}
	if err := json.Unmarshal([]byte(r.Doc), &b); err != nil {
		return b, fmt.Errorf("%s: %w", what, err)
	}
	plain, err := s.open(sealPlan, runBinding(genesisKey(name)), r.Sealed)
	if err != nil {
		return inventory.GenesisBundle{}, fmt.Errorf("%s: %w", what, err)
	}
	files := map[string]string{}
	if err := json.Unmarshal(plain, &files); err != nil {
		return b, fmt.Errorf("%s: %w", what, err)
	}
	b.Files = make(map[string]inventory.Secret, len(files))
	for name, content := range files {
		b.Files[name] = inventory.NewSecret(content)
	}
	return b, nil
}

// GenesisList returns all lab files by name, without the files.
func (s *Store) GenesisList(ctx context.Context) ([]inventory.GenesisBundle, error) {
	var docs []string
	if err := s.ro.SelectContext(ctx, &docs, "SELECT doc FROM genesis ORDER BY name"); err != nil {
		return nil, fmt.Errorf("listing lab files: %w", err)
	}
	out := make([]inventory.GenesisBundle, len(docs))
	for n, doc := range docs {
		if err := json.Unmarshal([]byte(doc), &out[n]); err != nil {
			return nil, fmt.Errorf("listing lab files: %w", err)
		}
	}
	return out, nil
}

// DeleteGenesis removes the lab file called name.
func (s *Store) DeleteGenesis(ctx context.Context, name, by string) error {
	return s.write(ctx, fmt.Sprintf("deleting lab file %q", name), func(tx *sqlx.Tx) error {
		return s.deleteNamed(ctx, tx, "genesis", name, by)
	})
}

func (s *Store) resealGenesis(ctx context.Context, tx *sqlx.Tx) (int, []string, error) {
	return s.resealRuns(ctx, tx, "genesis")
}
