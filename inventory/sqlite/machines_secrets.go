package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/inventory"
)

const secretColumns = "name, doc, user_data, vendor_data, bmc_password"

type secretRow struct {
	Name       string `db:"name"`
	Doc        string `db:"doc"`
	UserData   []byte `db:"user_data"`
	VendorData []byte `db:"vendor_data"`
	Password   []byte `db:"bmc_password"`
}

type sealedField struct {
	name, column, purpose, binding string
	sealed                         []byte
}

// sealedFields returns what r holds sealed.
func (r secretRow) sealedFields() []sealedField {
	var m inventory.Machine
	// A document that cannot be read gives no binding, and so opens nothing.
	_ = json.Unmarshal([]byte(r.Doc), &m)
	all := []sealedField{
		{"userData", "user_data", sealUserData, userBinding(r.Name, "user"), r.UserData},
		{"vendorData", "vendor_data", sealUserData, userBinding(r.Name, "vendor"), r.VendorData},
		{"bmc.password", "bmc_password", sealBMC, bmcBinding(r.Name, m.BMC), r.Password},
	}
	return slices.DeleteFunc(all, func(f sealedField) bool { return len(f.sealed) == 0 })
}

func (s *Store) secrets(ctx context.Context) ([]secretRow, error) {
	var rows []secretRow
	err := s.ro.SelectContext(ctx, &rows, "SELECT "+secretColumns+" FROM machine ORDER BY name")
	return rows, err
}

// reveal opens the named fields of a machine; one that is not set is zero.
func (s *Store) reveal(ctx context.Context, machine string, names ...string) ([]inventory.Secret, error) {
	var r secretRow
	if err := get(ctx, s.ro, &r, "SELECT "+secretColumns+" FROM machine WHERE name = ?", machine); err != nil {
		return nil, err
	}
	out := make([]inventory.Secret, len(names))
	for _, f := range r.sealedFields() {
		if i := slices.Index(names, f.name); i >= 0 {
			plain, err := s.open(f.purpose, f.binding, f.sealed)
			if err != nil {
				return nil, err
			}
			out[i] = inventory.NewSecret(string(plain))
		}
	}
	return out, nil
}

// UserData returns a machine's user data and vendor data, zero where there is
// none; inventory.ErrSealed when they cannot be opened.
func (s *Store) UserData(ctx context.Context, name string) (user, vendor inventory.Secret, err error) {
	out, err := s.reveal(ctx, name, "userData", "vendorData")
	if err != nil {
		return user, vendor, fmt.Errorf("reading user data of machine %q: %w", name, err)
	}
	return out[0], out[1], nil
}

// BMCPassword returns the password of a machine's BMC, zero when there is
// none; inventory.ErrSealed when it cannot be opened.
func (s *Store) BMCPassword(ctx context.Context, name string) (inventory.Secret, error) {
	out, err := s.reveal(ctx, name, "bmc.password")
	if err != nil {
		return inventory.Secret{}, fmt.Errorf("reading BMC password of machine %q: %w", name, err)
	}
	return out[0], nil
}

func userBinding(machine, which string) string { return "machine=" + machine + " " + which }

func bmcBinding(machine string, b *inventory.BMC) string {
	if b == nil {
		return ""
	}
	return fmt.Sprintf("machine=%s driver=%s host=%s port=%d tls=%t key=%s command=%s",
		machine, b.Driver, b.Host, b.Port, !b.InsecureTLS, b.Fingerprint, b.Command)
}
