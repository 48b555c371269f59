package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Genesis stores the lab files, the machines in lab files, and the facts. A fact is a result of an operation.
type Genesis struct{ *db }

// PutGenesis stores a lab file together with the files that it names. It replaces a stored lab file of the same name. It returns the lab
// file with its digest and times, but without the files.
func (s Genesis) PutGenesis(ctx context.Context, b inventory.GenesisBundle, by string) (inventory.GenesisBundle, error) {
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
	err = s.write(ctx, what, func(tx *transaction) error {
		before, err := optional(readDoc[inventory.GenesisBundle](ctx, tx, "SELECT doc FROM genesis WHERE name = ?", b.Name))
		if err != nil {
			return err
		}
		b.Created, b.Updated = before.Created, s.now()
		if b.Created.IsZero() {
			b.Created = b.Updated
		}
		doc, err := toJSON(b)
		if err != nil {
			return err
		}

		run := genesisKey(b.Name)
		sealed, err := s.seal(sealPlan, runBinding(run), plain)
		if err != nil {
			return err
		}
		err = do(ctx, tx, `INSERT INTO genesis (run, name, doc, sealed) VALUES (?,?,?,?)
			ON CONFLICT (name) DO UPDATE SET doc = excluded.doc, sealed = excluded.sealed`, run, b.Name, doc, sealed)
		if err != nil {
			return err
		}
		return addOperatorEvent(ctx, tx, "", by, "lab file "+b.Name+" stored, sha256 "+b.SHA256)
	})

	return b, err
}

func genesisKey(name string) string { return "genesis/" + name }

// Genesis returns the lab file called name together with the files that it names. If the key that opens the files was lost, the error is
// inventory.ErrSealed. Once ResetSecrets has deleted such files, the error is inventory.ErrNotFound.
func (s Genesis) Genesis(ctx context.Context, name string) (inventory.GenesisBundle, error) {
	b, err := s.readGenesis(ctx, name)
	return b, wrap(err, "reading lab file %q", name)
}

func (s Genesis) readGenesis(ctx context.Context, name string) (b inventory.GenesisBundle, err error) {
	var r struct {
		Doc    string
		Sealed []byte
	}
	if err := get(ctx, s.ro, &r, "SELECT doc, sealed FROM genesis WHERE name = ? AND length(sealed) > 0",
		name); err != nil {
		return b, err
	}
	files := map[string]string{}
	if err := s.unseal(genesisKey(name), r.Sealed, &files); err != nil {
		return b, err
	}
	if err := json.Unmarshal([]byte(r.Doc), &b); err != nil {
		return b, err
	}

	b.Files = make(map[string]inventory.Secret, len(files))
	for name, content := range files {
		b.Files[name] = inventory.NewSecret(content)
	}
	return b, nil
}

// GenesisList returns all lab files, sorted by name, without the files that they name.
func (s Genesis) GenesisList(ctx context.Context) ([]inventory.GenesisBundle, error) {
	out, err := listDocs[inventory.GenesisBundle](ctx, s.ro, "SELECT doc FROM genesis ORDER BY name")
	return out, wrap(err, "listing lab files")
}

// DeleteGenesis deletes the lab file called name.
func (s Genesis) DeleteGenesis(ctx context.Context, name, by string) error {
	return s.write(ctx, fmt.Sprintf("deleting lab file %q", name), func(tx *transaction) error {
		return deleteNamed(ctx, tx, "genesis", name, by)
	})
}
